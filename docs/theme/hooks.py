"""Build what mkdocs.yml cannot describe: pages from outside of docs/, notebooks as pages, the script of diagrams."""

import json
import re
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "rayrec/*/*/README.md")
"""Pages outside of docs/."""


class Notebook(File):
    """A Jupyter notebook as a page: its text, its code, and what the code printed and drew."""

    def is_documentation_page(self) -> bool:
        return True

    @property
    def content_string(self) -> str:
        cells = json.loads(Path(str(self.abs_src_path)).read_text())["cells"]
        return "\n\n".join(_text(cell) for cell in cells)


def _text(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    return "\n\n".join([f"```python\n{source}\n```", *map(_printed, cell["outputs"])])


def _printed(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        picture = "".join(data["image/png"].split())
        return f'<img alt="Picture that the code above draws" src="data:image/png;base64,{picture}">'
    if "text/html" in data:
        # The theme styles tables without attributes.
        return re.sub("<table[^>]*>", "<table>", "".join(data["text/html"]))
    return f"```text\n{''.join(output.get('text') or data['text/plain']).rstrip()}\n```"


def on_config(config: MkDocsConfig) -> None:
    """Replace each pattern of files in `nav` by the files."""
    config.nav = [_expanded(entry, _root(config)) for entry in config.nav or []]


def _expanded(entry: dict[str, Any], root: Path) -> dict[str, Any]:
    ((title, content),) = entry.items()
    if isinstance(content, list):
        return {title: [_expanded(inner, root) for inner in content]}
    return {title: _paths(root, content)} if "*" in content else entry


def _root(config: MkDocsConfig) -> Path:
    return Path(config.docs_dir).parent


def _paths(root: Path, pattern: str) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.glob(pattern))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the files of the site, with their paths in the repository."""
    root = _root(config)
    inside = [file for file in files if file.src_dir == config.docs_dir]
    paths = [f"docs/{file.src_uri}" for file in inside]
    paths += [path for pattern in PAGES for path in _paths(root, pattern)]
    mermaid = _file("assets/mermaid.js", Path(str(package_files("mermaidx"))), config)
    return Files([*(file for file in files if file not in inside), *(_file(p, root, config) for p in paths), mermaid])


def _file(path: str, folder: Path, config: MkDocsConfig) -> File:
    if path.endswith(".ipynb"):
        return Notebook(path, str(folder), config.site_dir, False, dest_uri=f"{path}.html")
    return File(path, str(folder), config.site_dir, False)


def on_page_content(html: str, **_: Any) -> str:
    """Remove the backslash that GitHub needs before a bar in the code of a table."""
    return re.sub(r"<td.*?</td>", lambda cell: cell[0].replace(r"\|", "|"), html, flags=re.DOTALL)
