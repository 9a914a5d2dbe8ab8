"""Files and folders are whole or absent."""

import errno
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rayrec.common.errors import DiskError, UserError
from rayrec.store.files import files_below, write_atomically, write_json
from rayrec.store.folders import new_folder, owned, require_output


@pytest.mark.parametrize("content", ["text\n", b"\x00bytes"])
def test_write_replaces_the_whole_file(content: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    write_atomically(path, "something much longer than what comes after it")
    write_atomically(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert os.stat(path).st_mode & 0o777 == 0o644
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(DiskError, match="file: no space left on its disk: "):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_json_has_no_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"auc": float("nan")})


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    kept = ["checkpoints/step-1/.metadata", "train/part.parquet", f"x.{'a' * 32}"]
    with new_folder(tmp_path / "out") as folder:
        for name in (*kept, ".hidden/a.parquet", f"train/.part.parquet.{'a' * 32}"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("1")
    assert list(files_below(tmp_path / "out")) == kept
    assert not (tmp_path / "out" / ".hidden").exists()


def test_new_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "out"
    with new_folder(target) as folder:
        (folder / "a").write_text("1")
        assert not target.exists()
    assert (target / "a").read_text() == "1"
    assert [p.name for p in target.parent.iterdir()] == ["out"]


def test_a_failed_folder_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), new_folder(tmp_path / "out") as folder:
        (folder / "a").write_text("1")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_all_is_on_the_disk_before_a_folder_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    fsync, rename = os.fsync, os.rename

    def note(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def named(source: Path, target: Path) -> None:
        assert {str(path) for path in (source, source / "a", source / "a" / "b")} <= synced
        synced.clear()
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "rename", named)
    with new_folder(tmp_path / "out") as folder:
        (folder / "a").mkdir()
        (folder / "a" / "b").write_text("1")
    assert synced == {str(tmp_path)}


def test_what_a_killed_writer_of_a_folder_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".out.unfinished-new").mkdir()
    (tmp_path / ".out.unfinished-new" / "half").touch()
    with new_folder(tmp_path / "out") as folder:
        assert not any(folder.iterdir())
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def _no_flock(*_: object) -> None:
    raise OSError(errno.ENOSYS, "Function not implemented")


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.parametrize("has_locks", [True, False], ids=["flock", "a file system without flock"])
def test_an_output_has_one_owner(has_locks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has it may ask again; another thread, as another process, is refused at once, and what it tries leaves it."""
    if not has_locks:
        monkeypatch.setattr(fcntl, "flock", _no_flock)
    output = tmp_path / "deep" / "out"

    def refused() -> str:
        with pytest.raises(UserError, match="out: another command is writing to it") as error, owned(output):
            pass
        return str(error.value)

    with ThreadPoolExecutor(1) as other:
        with owned(output):
            with owned(output), new_folder(output) as folder:
                (folder / "a").touch()
                assert other.submit(refused).result()
            assert other.submit(refused).result()
        assert [p.name for p in output.parent.iterdir()] == ["out"]
        with owned(output):
            assert other.submit(refused).result()


@pytest.mark.parametrize(("make", "allowed"), [("nothing", True), ("empty", True), ("full", False), ("file", False)])
def test_only_an_empty_place_is_taken(make: str, allowed: bool, tmp_path: Path) -> None:
    target = tmp_path / "out"
    if make in {"empty", "full"}:
        target.mkdir()
    if make == "full":
        (target / "precious").write_text("1")
    if make == "file":
        target.write_text("precious")
    if allowed:
        require_output(target)
        with new_folder(target) as folder:
            (folder / "a").write_text("1")
        assert (target / "a").exists()
    else:
        with pytest.raises(UserError, match="already exists"), new_folder(target):
            pass
        assert target.is_file() or (target / "precious").exists()
