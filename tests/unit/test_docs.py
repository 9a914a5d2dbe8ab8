"""What the documentation names is there: files, links between pages, modules and tests."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayrec.config import ServeConfig

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [
    REPOSITORY / "README.md",
    *sorted((REPOSITORY / "docs").glob("*.md")),
    *sorted(REPOSITORY.glob("rayrec/*/*/README.md")),
]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
PATH = re.compile(r"`((?:rayrec|jobs|serve|tune|cluster|cuda_ops|benchmarks|tests|docs|requirements)/[\w./-]*)`")
COMMAND_PATH = re.compile(r"\b((?:tests|benchmarks)/[\w/]+\.\w+)")
MODULE = re.compile(
    r"(?:python -m |`)((?:rayrec|jobs|serve|tune|cluster|cuda_ops|benchmarks|tests)\.[a-z_]+(?:\.[a-z_]+)*)\b"
)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = (re.sub(r"[`*]", "", title).lower() for title in HEADING.findall(page.read_text()))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def named(pattern: re.Pattern[str]) -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for name in pattern.findall(page.read_text()):
            yield page, name


def test_links_lead_somewhere() -> None:
    wrong = []
    for page in PAGES:
        for target, anchor in LINK.findall(page.read_text()):
            path = (page.parent / target).resolve() if target else page
            if not path.exists() or (anchor and anchor not in anchors(path)):
                wrong.append(f"{page.name}: {target}#{anchor}")
    assert wrong == []


@pytest.mark.parametrize("pattern", [PATH, COMMAND_PATH], ids=["named files", "files of commands"])
def test_named_files_are_there(pattern: re.Pattern[str]) -> None:
    # `benchmarks/results/` has what commands write; a page may name a file that no commit has.
    wrong = [f"{page.name}: {path}" for page, path in named(pattern) if not (REPOSITORY / path).exists()]
    assert wrong == []


def test_named_modules_are_there() -> None:
    wrong = [f"{page.name}: {name}" for page, name in named(MODULE) if not is_there(name)]
    assert wrong == []


def is_there(name: str) -> bool:
    """Whether `name` is a module, or a name in one."""
    section, _, key = name.partition(".")
    if section == "serve" and key in ServeConfig.model_fields:
        return True  # a key of recipes
    path = REPOSITORY
    for part in name.split("."):
        if (path / part).is_dir():
            path /= part
        elif (path / f"{part}.py").is_file():
            path /= f"{part}.py"
        else:
            module = path if path.is_file() else path / "__init__.py"
            return module.is_file() and re.search(rf"\b{part}\b", module.read_text()) is not None
    return True
