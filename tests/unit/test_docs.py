"""What the documentation names is there: files, links between pages, modules, tests, commands and functions."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import rayrec
from jobs.command import parse_command
from rayrec.common.errors import ConfigError
from rayrec.config import ServeConfig
from rayrec.config.validation import is_yaml_file
from rayrec.store import mlflow_server
from tests import recipe_reference
from tests.pages import PAGES, REPOSITORY, blocks

LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
PATH = re.compile(r"`((?:rayrec|jobs|serve|tune|cluster|cuda_ops|benchmarks|tests|docs|requirements)/[\w./-]*)`")
SHORT_PATH = re.compile(r"`((?:\w+/)*\w+\.py)`")
COMMAND_PATH = re.compile(r"\b((?:tests|benchmarks)/[\w/]+\.\w+)")
MODULE = re.compile(
    r"(?:python -m |`)((?:rayrec|jobs|serve|tune|cluster|cuda_ops|benchmarks|tests)\.[a-z_]+(?:\.[a-z_]+)*)\b"
)
COMMAND = re.compile(r"(?:^|[\s/])rayrec ([a-z](?:.*\\\n)*.*)", re.MULTILINE)
UNKNOWN_RECIPES = {"fm-shop": "of the package that adding.md builds; tests/end_to_end/test_adding.py runs its commands"}
"""Recipes that commands in pages name and that are not shipped, and why."""
FUNCTION = re.compile(r"\brayrec\.(\w+)\(")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
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


def test_files_named_by_the_end_of_their_path_are_there() -> None:
    ends = [f"/{path.relative_to(REPOSITORY)}" for path in REPOSITORY.rglob("*.py") if ".venv" not in path.parts]
    # adding.md has its reader write the files that it names.
    wrong = [
        f"{page.name}: {name}"
        for page, name in named(SHORT_PATH)
        if page.name != "adding.md" and not any(end.endswith(f"/{name}") for end in ends)
    ]
    assert wrong == []


def test_named_modules_are_there() -> None:
    wrong = [f"{page.name}: {name}" for page, name in named(MODULE) if not is_there(name)]
    assert wrong == []


def is_there(name: str) -> bool:
    """Whether `name` is a module, or a name in one."""
    section, _, key = name.partition(".")
    key, _, inner = key.partition(".")
    if section == "serve" and key in ServeConfig.model_fields:  # a key of recipes
        return not inner or inner in getattr(ServeConfig.model_fields[key].annotation, "model_fields", {})
    if section == "rayrec" and key in rayrec.__all__:
        return True
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


def found_in_blocks(pattern: re.Pattern[str]) -> Iterator[tuple[Path, str]]:
    """Yield what a pattern finds in the blocks of code of all pages, diagrams aside."""
    for page in PAGES:
        for _, block in blocks(page):
            yield from ((page, text) for text in pattern.findall(block))


def test_commands_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    # The MLflow server of a page is the reader's own.
    monkeypatch.setattr(mlflow_server, "registered_folder", lambda uri, staging: "model")
    wrong, unknown = [], set()
    for page, line in found_in_blocks(COMMAND):
        words = shlex.split(line, comments=True)
        end = next((place for place, word in enumerate(words) if re.fullmatch(r"\d?>>?|[|;]|&&", word)), None)
        try:
            _, request, _ = parse_command(words[:end])
            recipe = getattr(request, "recipe", None)
            if recipe in UNKNOWN_RECIPES:
                unknown.add(recipe)
            elif recipe is None or not is_yaml_file(recipe):  # a recipe file is the reader's own
                request.check()
        except ConfigError as error:
            wrong.append(f"{page.name}: rayrec {line}: {error}")
    assert wrong == []
    assert unknown == set(UNKNOWN_RECIPES)


def test_functions_are_there() -> None:
    wrong = [f"{page.name}: {name}" for page, name in named(FUNCTION) if name not in rayrec.__all__]
    assert wrong == []


def test_targets_of_make_are_there() -> None:
    targets = re.findall(r"^([a-z][\w-]*):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    used = [
        *named(re.compile(r"`make ([a-z][\w-]*)")),
        *found_in_blocks(re.compile(r"^make ([a-z][\w-]*)", re.MULTILINE)),
    ]
    assert [f"{page.name}: {target}" for page, target in used if target not in targets] == []


def test_the_keys_of_recipes_are_those_of_their_classes() -> None:
    # `python -m tests.recipe_reference` writes the page.
    assert recipe_reference.DOCUMENT.read_text() == recipe_reference.document()
