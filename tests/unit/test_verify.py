"""`rayrec verify`, and the look at sizes when a dataset is opened."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.verify import VerifyRequest, run
from rayrec.common.errors import UserError
from rayrec.common.progress import SilentProgress
from rayrec.ingest.dataset import Dataset, Manifest, StoredFile
from rayrec.store.files import sha256_of
from tests.builders import make_dataset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset with other files than parts in its manifest."""
    dataset = make_dataset(tmp_path / "dataset")
    schema = dataset.folder / "schema.json"
    stored = StoredFile(path="schema.json", bytes=schema.stat().st_size, sha256=sha256_of(schema))
    dataset.manifest.model_copy(update={"files": (stored,)}).save(dataset.folder)
    return dataset.folder


def flip(path: Path) -> None:
    """Change one bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_whole_dataset(folder: Path) -> None:
    files = Manifest.load(folder).every_file
    assert len(files) > 2
    result = run(VerifyRequest(folder=folder), SilentProgress())
    assert result.details == {"files": len(files), "bytes": sum((folder / f.path).stat().st_size for f in files)}
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
    path = folder / (Manifest.load(folder).every_file[0].path if file == "part" else "schema.json")
    break_file(path)
    number = len(Manifest.load(folder).every_file)
    with pytest.raises(UserError, match=rf"^{path}: {message}.*; 1 of {number} files are damaged; preprocess again$"):
        run(VerifyRequest(folder=folder), SilentProgress())
    if damage == "one bit":
        return  # only a look at the content shows it
    with pytest.raises(UserError, match=rf"^{path}: {message}.*; `rayrec verify {folder}` looks at every file$"):
        Dataset.open(folder)


def test_a_folder_without_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"manifest\.json: missing, so this is not a finished dataset"):
        run(VerifyRequest(folder=tmp_path), SilentProgress())
