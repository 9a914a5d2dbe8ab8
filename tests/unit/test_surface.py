"""Every option of a command and every key of a recipe is in tests/surface.txt, a new one with its reason."""

from pathlib import Path

from jobs import COMMANDS
from jobs.command.interface import fields_of
from jobs.command.runner import load_command
from rayrec.recipes import Recipe

SURFACE = Path(__file__).resolve().parents[1] / "surface.txt"


def surface() -> set[str]:
    """Return `COMMAND --option` (or `shared --option`) for all commands, and `Class.key` for all parts of a recipe."""
    options = {
        f"{'shared' if field.is_shared else command} {field.metavar if field.is_positional else field.option}"
        for command in COMMANDS
        for field in fields_of(load_command(command).request)
    }
    schema = Recipe.model_json_schema()
    parts = {"Recipe": schema, **schema["$defs"]}
    return options | {f"{name}.{key}" for name, part in parts.items() for key in part.get("properties", {})}


def test_a_new_option_or_key_says_what_it_replaces_or_why_it_is_needed() -> None:
    first, _, later = SURFACE.read_text().partition("\n## Added since\n")
    listed = {line for line in first.splitlines() if line and not line.startswith("#")}
    for line in filter(None, later.splitlines()):
        name, _, reason = line.partition(": ")
        assert len(reason.split()) > 3, f"{name}: add `: ` and what it replaces, or why it is needed"
        listed.add(name)
    found = surface()
    assert found - listed == set(), "add these to the end of tests/surface.txt, with a reason"
    assert listed - found == set(), "these are gone: remove their lines from tests/surface.txt"
