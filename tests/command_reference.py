"""What is written from the requests of the commands: the options in docs/cli.md, and the types of the Python API.

`python -m tests.command_reference` writes both files.
"""

import inspect
import json
import re
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any, Literal

from jobs import COMMANDS, GROUPS
from jobs.command.interface import FLAGS, RequestField, docstring, fields_of
from jobs.command.request import Overrides, PathText, PathTexts, RecipeText
from jobs.command.runner import load_command
from rayrec import api
from rayrec.store.paths import Folder, LocalPath

REPOSITORY = Path(__file__).resolve().parents[1]
DOCUMENT = REPOSITORY / "docs" / "cli.md"
STUB = REPOSITORY / "rayrec" / "api.pyi"
_STUB_TYPES = (
    (Folder, "AnyPath"), (LocalPath, "AnyPath"), (PathText, "AnyPath"), (RecipeText, "AnyPath"),
    (PathTexts, "AnyPath | Sequence[AnyPath]"), (Overrides, "Mapping[str, Any] | Sequence[str]"),
)  # fmt: skip
"""What a field of an annotated type takes in Python."""


def document() -> str:
    """docs/cli.md with the options as the requests have them."""
    summaries = [
        f"- **{title}**: " + ", ".join(f"[`{name}`](#{_anchor(name)})" for name in commands)
        for title, commands in GROUPS.items()
    ]
    text = _filled(DOCUMENT.read_text(), "commands", "\n".join(summaries))
    text = _filled(text, "shared options", _shared_options())
    return _filled(text, "options", "\n\n".join(map(_options, COMMANDS)))


def _anchor(command: str) -> str:
    return f"rayrec-{command.replace(' ', '-')}"


def _filled(text: str, name: str, content: str) -> str:
    """`text` with `content` between the comments that mark its part `name`."""
    begin, end = f"<!-- {name}: written by tests/command_reference.py -->", f"<!-- end of {name} -->"
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"


def _options(command: str) -> str:
    request = load_command(command).request
    lines = [f"### rayrec {command}", "", *COMMANDS[command].text.splitlines(), ""]
    lines += [f"Example: `{COMMANDS[command].example}`", ""]
    fields = fields_of(request)
    own = [field for field in fields if not _is_listed_once(field)]
    if own:
        lines += [*map(_row, own), ""]
    if shared := [f"`{field.option}`" for field in fields if _is_listed_once(field)]:
        lines += [f"Also {', '.join(shared)}."]
    return "\n".join(lines).rstrip()


def _is_listed_once(field: RequestField) -> bool:
    return field.is_shared and not field.is_positional


def _shared_options() -> str:
    """Return the options that several commands share, once."""
    fields = [field for command in COMMANDS for field in fields_of(load_command(command).request)]
    by_name = {field.name: field for field in fields if _is_listed_once(field)}
    flags = [f"- `--{name}`: {text}" for name, text in FLAGS.items()]
    return "\n".join([*map(_row, by_name.values()), *flags])


def _row(field: RequestField) -> str:
    if field.is_positional:
        option = field.metavar + (" ..." if field.is_repeated else "")
    else:
        option = ", ".join(field.flags) if field.is_flag else f"{field.option} {field.metavar}"
    default = " (required)" if field.is_required else f" (`{field.default_text}`)" if field.default_text else ""
    return f"- `{option}`{default}: {field.help}"


def stub() -> str:
    """rayrec/api.pyi: the typed functions of the commands, and the other functions as they are written."""
    source = [
        "# Written by tests/command_reference.py.",
        "from collections.abc import Mapping, Sequence",
        "from os import PathLike",
        "from typing import Any, Literal",
        "",
        "from jobs.command.result import Result as Result",
        "from rayrec.inference.explanation import Explainer",
        "from rayrec.inference.predictor import Predictor",
        "from rayrec.inference.rank import Ranker",
        "from rayrec.inference.recommender import Recommender",
        "from rayrec.recipes import Recipe",
        "AnyPath = str | PathLike[str]",
        f"__all__ = {json.dumps(api.__all__)}",
        "COMMANDS: tuple[str, ...]",
        *map(_command_stub, api.COMMANDS),
        *(_function_stub(getattr(api, name)) for name in api.__all__ if name not in api.COMMANDS),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(STUB), "-"],
        input="\n".join(source), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def _command_stub(name: str) -> str:
    command = load_command(name)
    fields = fields_of(command.request)
    by_position = [field for field in fields if field.is_by_position]
    by_name = [field for field in fields if field not in by_position]
    parameters = [*map(_parameter, by_position), "*", *map(_parameter, by_name), "progress: bool = True"]
    text = docstring(command).replace("\n", "\n    ")
    return f'def {name}({", ".join(parameters)}) -> Result:\n    """{text}\n    """'


def _parameter(field: RequestField) -> str:
    if field.is_required:
        return f"{field.name}: {_type_text(field.type)}"
    optional = " | None" if field.default is None else ""
    default = str(field.default) if isinstance(field.default, Path) else field.default
    return f"{field.name}: {_type_text(field.type)}{optional} = {default!r}"


def _type_text(hint: Any) -> str:
    if hasattr(hint, "__metadata__"):
        # A field may have further annotations, after those of its type.
        known = (text for kind, text in _STUB_TYPES if kind.__metadata__[0] == hint.__metadata__[0])
        return next(known, None) or _type_text(typing.get_args(hint)[0])
    if typing.get_origin(hint) is Literal:
        return f"Literal[{', '.join(map(repr, typing.get_args(hint)))}]"
    if typing.get_origin(hint) is tuple:
        return f"Sequence[{_type_text(typing.get_args(hint)[0])}]"
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _function_stub(function: Any) -> str:
    code = inspect.getsource(function)
    return re.sub(r'-> "(\w+)":', r"-> \1:", code[: code.index("    from ")].rstrip())


if __name__ == "__main__":
    DOCUMENT.write_text(document())
    STUB.write_text(stub())
