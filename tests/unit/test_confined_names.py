"""Names from outside, of files in manifests or of columns, lead to no file outside of their folder."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rayrec.common.errors import UserError
from rayrec.ingest.dataset import Dataset
from rayrec.store.artifact import StoredFile
from rayrec.store.files import write_json
from rayrec.store.paths import confined, file_name
from rayrec.training.run.folder import RUN_FILE, RunFolder
from tests.builders import make_dataset
from tune.sweep_folder import TRIAL_FILE, TrialRecord

OUTSIDE = ["../x", "a/../../x", "/x", "a//x", "a/", "", ".", "a/./x", "a\0x"]


@pytest.mark.parametrize("name", OUTSIDE, ids=ascii)
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"^list\.json: '.*' lies outside the folder, or names no file"):
        confined(name, "list.json")


@pytest.mark.parametrize("name", ["a", "a/b", "..a/b..", ".hidden/x", "a\\..\\b", "é %2e%2e#?;+ ", "C:"], ids=ascii)
def test_any_other_name_is_taken(name: str) -> None:
    assert confined(name, "") == name


def test_every_name_has_a_file_of_its_own_in_the_folder(tmp_path: Path) -> None:
    names = [*OUTSIDE, "..", "...", ".x", "x", "a%2Fx", "a/x", "%", "é" * 150, "é" * 151, "a/" * 200, "a/" * 201, "ü+;"]
    for number, name in enumerate(names):
        path = tmp_path / f"{file_name(name)}-00007.parquet"
        path.write_text(str(number))
        assert path.parent == tmp_path and not path.name.startswith(".")
    assert [(tmp_path / f"{file_name(name)}-00007.parquet").read_text() for name in names] == list(
        map(str, range(len(names)))
    )


def _manifest(folder: Path) -> None:
    dataset = make_dataset(folder / "data")
    elsewhere = StoredFile(path="train/../../elsewhere.parquet", bytes=0, sha256="")
    dataset.manifest.model_copy(update={"files": (elsewhere,)}).save(dataset.folder)
    Dataset.open(dataset.folder)


def _index(folder: Path) -> None:
    write_json(folder / RUN_FILE, {})
    names = ["../../other/step-00000001"]
    write_json(folder / "checkpoints" / "index.json", {"latest": names[0], "best": None, "checkpoints": names})
    RunFolder.open(folder).checkpoint("latest")


def _trial(folder: Path) -> None:
    write_json(folder / TRIAL_FILE, {"trial": "t", "assignment": {}, "run": "../../run"})
    TrialRecord.load(folder)


@pytest.mark.parametrize("read", [_manifest, _index, _trial])
def test_what_a_file_names_is_below_its_folder(read: Callable[[Path], None], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'.*\.\./.*' lies outside the folder"):
        read(tmp_path)
