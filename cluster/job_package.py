"""What a submitted job is sent: rayrec's own code and small files that it names, never data."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("rayrec", "jobs", "tune", "serve", "cluster", "cuda_ops")
_SUFFIXES = {".py", ".yaml", ".typed"}
FILES_FOLDER = "files"


@contextmanager
def job_package(files: Mapping[str, Path]) -> Iterator[Path]:
    """A folder for the time of the block that a job can run in: the code of this process, and `files`.

    `files`: by the name under which each appears in the folder `files/`.
    """
    with tempfile.TemporaryDirectory(prefix="rayrec-job-") as temporary:
        folder = Path(temporary)
        for package in PACKAGES:
            _copy_code(_package_folder(package), folder / package)
        for name, source in files.items():
            target = folder / FILES_FOLDER / name
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(source, target)
        yield folder


def _package_folder(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None and spec.submodule_search_locations, f"{name} is installed with rayrec"
    return Path(spec.submodule_search_locations[0])


def _copy_code(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.suffix in _SUFFIXES and path.is_file():
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
