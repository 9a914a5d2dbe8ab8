"""On a disk that is too small at first each command says so, loses nothing, and goes on when there is room."""

import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import rayrec
from jobs.command import Result
from rayrec.common.errors import DiskError

RECIPE = "dcnv2-criteo-debug"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of no room, which `resized` changes."""
    path = tmp_path / "disk"
    path.mkdir()
    mount: list[str | Path] = ["mount", "-t", "tmpfs", "-o", "size=64k", "rayrec-test", path]
    mounted = subprocess.run(mount, check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip("may not mount a disk; tests/unit/test_disk_errors.py limits the size of files instead")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


def remounted(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True)


def used(folder: Path) -> int:
    """Kilobytes on the disk of all that is in a folder."""
    return sum(path.stat().st_blocks for path in folder.rglob("*")) // 2


def files(folder: Path, pattern: str) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob(pattern)}


def test_every_command_goes_on_when_there_is_room(disk: Path, tmp_path: Path) -> None:
    def refused(kilobytes: int, kept: str, command: Callable[..., Result]) -> Result:
        """Run a command with so little room that it fails, then with enough; the result."""
        remounted(disk, f"size={used(disk) + kilobytes}k")
        with pytest.raises(DiskError, match=rf"^{disk}/\S+: no space left on its disk: .*; {kept}") as error:
            command(progress=False)
        assert ".unfinished" not in str(error.value)
        remounted(disk, "size=200m")
        return command(progress=False, **({"resume": True} if "resume" in kept else {}))

    nothing = f"nothing was written to {disk}"
    refused(300, nothing, partial(rayrec.generate, "criteo", 20_000, disk / "raw"))
    raw = tmp_path / "raw"
    rayrec.generate("criteo", 20_000, raw, progress=False)
    assert files(disk / "raw", "*.tsv") == files(raw, "*.tsv")

    kept = "finished parts are kept; run the same command again to continue"
    refused(500, kept, partial(rayrec.preprocess, RECIPE, raw, disk / "data"))
    rayrec.preprocess(RECIPE, raw, tmp_path / "data", progress=False)
    assert files(disk / "data", "*.parquet") == files(tmp_path / "data", "*.parquet")

    training: dict[str, Any] = {"workers": 1, "set": {"train.epochs": 2, "train.tracking.tensorboard": False}}
    whole = rayrec.train(RECIPE, tmp_path / "data", tmp_path / "run", **training, progress=False)
    first, _ = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))
    kept = f"step {int(first.name[5:])} is kept; --resume continues from it"
    train = partial(rayrec.train, RECIPE, disk / "data", disk / "run", **training)
    assert refused(used(first) * 3 // 2, kept, train).metrics == whole.metrics

    refused(200, nothing, partial(rayrec.export, disk / "run", disk / "model"))
    rayrec.export(tmp_path / "run", tmp_path / "model", progress=False)
    assert files(disk / "model", "*.safetensors") == files(tmp_path / "model", "*.safetensors")

    predict = partial(rayrec.predict, disk / "model", disk / "scores", input=disk / "raw" / "criteo.tsv", raw=True)
    assert refused(60, nothing, predict).rows == 20_000

    remounted(disk, "ro")
    with pytest.raises(DiskError, match=rf"^{disk}/run: read-only file system; remount it, .*; step \d+ is kept"):
        train(resume=True, progress=False)
    evaluated = rayrec.evaluate(disk / "run", disk / "data", progress=False).metrics["test"]
    assert evaluated == pytest.approx(whole.metrics["test"], rel=1e-9)
