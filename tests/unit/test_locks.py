"""The lock files: what is installed is what was locked, to the byte."""

import re
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
ENTRY = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>\S+)(?P<hashes>.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)


def locked(extra: str) -> dict[str, tuple[str, list[str]]]:
    """Package -> version and SHA-256 sums."""
    text = (REPOSITORY / "requirements" / f"{extra}.lock").read_text()
    return {
        entry["name"]: (entry["version"], re.findall(r"--hash=sha256:([0-9a-f]{64})\b", entry["hashes"]))
        for entry in ENTRY.finditer(text)
    }


@pytest.mark.parametrize("extra", ["cpu", "gpu"])
def test_every_package_has_its_sums(extra: str) -> None:
    packages = locked(extra)
    assert len(packages) > 150
    assert [name for name, (_, sums) in packages.items() if not sums] == []


@pytest.mark.parametrize("extra", ["cpu", "gpu"])
def test_pins_are_those_of_the_project(extra: str) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    packages = locked(extra)
    for line in [*project["dependencies"], *project["optional-dependencies"][extra]]:
        pin = re.match(r"([\w.-]+)(?:\[[^]]*\])?==([^;\s]+)", line)
        if pin is not None:
            # The CPU build of torch has a local suffix.
            assert packages[pin[1].lower()][0].split("+")[0] == pin[2], line


def test_setup_takes_nothing_without_its_sum() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    (sync,) = re.findall(r"pip sync .*", makefile)
    assert "--require-hashes" in sync
    assert "--generate-hashes" in re.findall(r"pip compile .*", makefile)[0]
