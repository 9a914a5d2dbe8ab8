"""`rayrec verify`, and the look at sizes when a dataset is opened."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from jobs.command.runner import execute
from jobs.predict import COMMAND as PREDICT
from jobs.predict import PredictRequest
from jobs.verify import VerifyRequest, describe, run
from rayrec.common.errors import UserError
from rayrec.common.progress import SilentProgress
from rayrec.config.execution import Execution
from rayrec.ingest.dataset import Dataset, DatasetManifest
from rayrec.store.artifact import MANIFEST_FILE, Manifest, Parent, id_of, stored_files
from tests.builders import make_dataset
from tests.model_folders import make_model_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset with other files than parts in its manifest."""
    dataset = make_dataset(tmp_path / "dataset")
    files = stored_files(dataset.folder, ["schema.json"])
    dataset.manifest.model_copy(update={"files": files}).save(dataset.folder)
    return dataset.folder


def flip(path: Path) -> None:
    """Change one bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_whole_dataset(folder: Path) -> None:
    files = DatasetManifest.load(folder).every_file
    assert len(files) > 2
    result = run(VerifyRequest(folder=folder), SilentProgress())
    assert result.details == {
        "kind": "dataset",
        "id": id_of(folder),
        "made_of": {},
        "files": len(files),
        "bytes": sum((folder / f.path).stat().st_size for f in files),
    }
    assert result.rows == sum(split.rows for split in Dataset.open(folder).manifest.splits.values())


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "one bit": (flip, "content changed since it was written"),
    "cut short": (lambda path: os.truncate(path, 100), r"has 100 bytes, but had [\d,]+ when it was written"),
    "empty, as after a loss of power": (lambda path: os.truncate(path, 0), "has 0 bytes, but had"),
    "gone": (Path.unlink, "missing"),
}


@pytest.mark.parametrize("file", ["part", "schema"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_named(damage: str, file: str, folder: Path) -> None:
    break_file, message = DAMAGES[damage]
    path = folder / (DatasetManifest.load(folder).every_file[0].path if file == "part" else "schema.json")
    break_file(path)
    number = len(DatasetManifest.load(folder).every_file)
    with pytest.raises(
        UserError, match=rf"^{path}: {message}.*; 1 of {number} files are damaged; make the dataset again$"
    ):
        run(VerifyRequest(folder=folder), SilentProgress())
    if damage == "one bit":
        return  # only a look at the content shows it
    with pytest.raises(UserError, match=rf"^{path}: {message}.*; `rayrec verify {folder}` looks at every file$"):
        Dataset.open(folder)


def test_a_folder_without_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r": no manifest\.json, so it is unfinished"):
        run(VerifyRequest(folder=tmp_path), SilentProgress())


def test_what_a_dataset_is_made_of_is_followed(folder: Path, tmp_path: Path) -> None:
    before = Dataset.open(folder)
    second, third = (shutil.copytree(folder, tmp_path / name) for name in ("second", "third"))
    for of, parent in ((second, before.folder), (third, second)):
        made_of = {"parent": Parent(id=str(id_of(parent)), folder=parent)}
        before.manifest.model_copy(update={"made_of": made_of, "sequence": 1}).save(of)
    result = run(VerifyRequest(folder=third), SilentProgress())
    found = result.details["made_of"]["parent"]
    assert (found["id"], found["folder"], found["found"]) == (id_of(second), str(second), True)
    assert found["made_of"]["parent"] == {"id": before.id, "folder": str(folder), "found": True, "made_of": {}}
    last = f"      parent {before.id[:12]}: {folder}"
    assert describe(result).splitlines()[-1] == last
    # What is there now is another one.
    before.manifest.model_copy(update={"rejected": {"label": 1}}).save(folder)
    told = describe(run(VerifyRequest(folder=third), SilentProgress()))
    assert told.splitlines()[-1] == f"{last}, which is no longer there"


def test_an_id_is_that_of_the_content(folder: Path, tmp_path: Path) -> None:
    """Neither who made it nor where its parent lay belongs to it."""
    manifest = DatasetManifest.load(folder)
    made = Execution(on="ray", engine="Spark on Ray", workers=3, nodes=3, cpus=3)
    parents = [{"parent": Parent(id=id_, folder=Path(place))} for id_, place in (("1", "/a"), ("1", "/b"), ("2", "/a"))]
    ids = [manifest.model_copy(update={"made_of": made_of}).id for made_of in parents]
    assert ids[0] == ids[1] != ids[2]
    assert manifest.model_copy(update={"execution": made}).id == manifest.id


EDITS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a fact": (lambda content: content.update(rejected={"label": 1}), "damaged"),
    "the id": (lambda content: content.update(id="0" * 64), "damaged"),
    "no id": (lambda content: content.pop("id"), "damaged"),
    "an unknown key": (lambda content: content.update(more=1), "damaged"),
    "a wrong type": (lambda content: content.update(splits=3), "damaged"),
    "another version": (lambda content: content.update(version=1), "of another version of rayrec"),
    "no kind": (lambda content: content.pop("kind"), "of another version of rayrec"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_manifest_that_was_edited_is_refused(edit: str, folder: Path) -> None:
    change, message = EDITS[edit]
    path = folder / MANIFEST_FILE
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    for look in (lambda: Dataset.open(folder), lambda: run(VerifyRequest(folder=folder), SilentProgress())):
        with pytest.raises(UserError, match=rf"^{path}: {message}"):
            look()


def test_another_kind_is_named(folder: Path) -> None:
    class Other(Manifest):
        command = "bake"
        kind: Literal["cake"] = "cake"
        version: Literal[1] = 1

    with pytest.raises(UserError, match=rf"^{folder}: is a dataset; give a cake, the output of `rayrec bake`$"):
        Other.load(folder)


def test_the_chain_from_scores_to_the_dataset(tmp_path: Path) -> None:
    """A file of the scores that was changed is found, as one of any artifact is."""
    make_model_folder(tmp_path / "model", numeric=1, categorical=1)
    (tmp_path / "rows.tsv").write_text("I1\tC1\n1\tC1-1\n2\tC1-2\n")
    request = PredictRequest(
        model=tmp_path / "model", input=str(tmp_path / "rows.tsv"), output=tmp_path / "out", raw=True, on="process"
    )
    scored = execute(PREDICT, request, SilentProgress())
    found = run(VerifyRequest(folder=tmp_path / "out"), SilentProgress())
    assert (found.details["kind"], found.details["id"]) == ("prediction", scored.id)
    assert found.details["made_of"]["model"]["id"] == id_of(tmp_path / "model")
    model = run(VerifyRequest(folder=tmp_path / "model"), SilentProgress()).details
    assert (model["kind"], model["id"]) == ("model", id_of(tmp_path / "model"))
    flip(tmp_path / "out/scores/part-00000.parquet")
    with pytest.raises(UserError, match=r"content changed since it was written; 1 of \d files are damaged"):
        run(VerifyRequest(folder=tmp_path / "out"), SilentProgress())
