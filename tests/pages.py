"""The pages of the documentation, and the commands that they show."""

import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = [
    *(REPOSITORY / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")),
    *sorted((REPOSITORY / "docs").glob("*.md")),
    *sorted(REPOSITORY.glob("rayrec/*/*/README.md")),
]
_BLOCK = re.compile(r"^```(\w*)\n((?s:.*?))^```$|((?:^ {4}.*\n)+)", re.MULTILINE)
_PROGRAMS = "curl|docker|eval|export|kubectl|make|mv|python|ray|rayrec|serve|source"
_COMMAND = re.compile(rf"^(?: {{4}})?(?:\$ )?((?:{_PROGRAMS}|\d+ \d+ \* \* \*) .*)$", re.MULTILINE)


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the language and the text of each block of code of a page, diagrams aside."""
    for match in _BLOCK.finditer(page.read_text()):
        if match[1] != "mermaid":
            yield match[1] or "", match[2] or match[3]


def commands(page: Path) -> list[str]:
    """Return the lines for a shell that a page shows, and its programs that begin with `import rayrec`, in order."""
    found = []
    for language, text in blocks(page):
        program = text.replace("\n    ", "\n").strip()
        if program.startswith("import rayrec\n"):
            found.append(f"python - <<'END'\n{program}\nEND")
        elif language not in {"python", "yaml", "toml", "text"}:
            found += _COMMAND.findall(text)
    return found
