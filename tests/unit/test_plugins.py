"""Plug-ins that installed packages declare."""

import sys
from importlib import metadata
from pathlib import Path

import pytest

from rayrec.cli import main as cli
from rayrec.common.errors import UserError
from rayrec.common.plugins import Plugins


@pytest.mark.parametrize(
    ("files", "cause"),
    [
        ({}, "ModuleNotFoundError: No module named 'broken_plugin'"),
        ({"__init__.py": ""}, "ModuleNotFoundError: No module named 'broken_plugin.config'"),
        ({"__init__.py": "", "config.py": "import torhc"}, "ModuleNotFoundError: No module named 'torhc'"),
        ({"__init__.py": "", "config.py": "1 / 0"}, "ZeroDivisionError: division by zero"),
    ],
    ids=["package", "module", "import", "error"],
)
def test_a_plug_in_that_cannot_be_imported_is_named(
    files: dict[str, str], cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / "broken_plugin").mkdir(exist_ok=True)
        (tmp_path / "broken_plugin" / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("broken_plugin", "broken_plugin.config"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    point = metadata.EntryPoint("broken", "broken_plugin", "rayrec.sources")
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point])
    with pytest.raises(UserError) as raised:
        Plugins("rayrec.sources").load("broken", "config")
    assert str(raised.value) == (
        f"plug-in 'broken' of rayrec.sources: cannot import broken_plugin.config ({cause}); repair or uninstall the "
        "package that declares it"
    )


def test_a_command_whose_module_meets_one_ends_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def load(name: str) -> None:
        raise UserError("plug-in 'broken' of rayrec.sources: cannot import it")

    monkeypatch.setattr("jobs.command.runner.load_command", load)
    assert cli.run(["doctor"]) == 1
    assert capfd.readouterr().err == "error: plug-in 'broken' of rayrec.sources: cannot import it\n"
