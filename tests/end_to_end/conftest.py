"""The command line as a user runs it, and one small pipeline that tests share."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from safetensors.numpy import load_file

from rayrec.common.machine import free_port
from tests.end_to_end.forks import Forks
from tests.environments import environment_of_a_user

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = Path(sys.executable).with_name("rayrec")
RECIPE = "dlrm-criteo-debug"
# A shell that starts the tests in the background has them, and all that they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Give each process of pytest, and so the Ray cluster that it starts, a folder for staging and an S3 of its own.

    The tests of S3 have a server there, which takes any credentials.
    """
    staging = tempfile.TemporaryDirectory(prefix="staging-")
    config.add_cleanup(staging.cleanup)
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}",
        "RAYREC_CACHE": staging.name,
    }


@dataclass(frozen=True)
class Finished:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]:
        """What `--json` printed."""
        return json.loads(self.out)


def environment(ray: str | None) -> dict[str, str]:
    """Return the environment of a command that finds its Ray cluster at an address, or that knows of none."""
    if ray is None:
        return environment_of_a_user()
    return {**os.environ, "PYTHONPATH": "", "RAY_ADDRESS": ray}


def run_rayrec(ray: str | None, *arguments: str | Path, folder: Path | None = None, timeout: float = 600) -> Finished:
    """Run `rayrec ARGUMENTS` in `folder`, on the Ray cluster at an address or on this machine, and wait."""
    done = subprocess.run(
        [PROGRAM, *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=environment(ray),
    )
    return Finished(done.returncode, done.stdout, done.stderr)


@contextmanager
def forked_rayrec(ray: str | None, folder: Path) -> Iterator[Callable[..., Finished]]:
    """`rayrec(*arguments, folder=None)` on the Ray cluster at an address or on this machine: a process each.

    They are spared their imports. `folder` is for what the commands print.
    """
    forks, output = Forks(environment(ray)), (folder / "out", folder / "err")

    def run(*arguments: str | Path, folder: Path | None = None) -> Finished:
        for path in output:
            path.write_bytes(b"")
        code = forks.run([*map(str, arguments)], environment(ray), folder or Path.cwd(), output)
        out, err = (path.read_text() for path in output)
        return Finished(code, out, err)

    yield run
    forks.close()


@pytest.fixture(scope="session")
def rayrec(ray_cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Finished]]:
    """Yield the command line on the Ray session of the tests."""
    with forked_rayrec(ray_cluster, tmp_path_factory.mktemp("output")) as run:
        yield run


@pytest.fixture(scope="session")
def rayrec_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Finished]]:
    """Yield the command line on one machine, without a cluster; commands that need Ray start it for themselves."""
    with forked_rayrec(None, tmp_path_factory.mktemp("output")) as run:
        yield run


@dataclass(frozen=True)
class Pipeline:
    """Folders that the commands made, and the result that each printed."""

    folder: Path
    results: dict[str, dict[str, Any]]

    def __getattr__(self, name: str) -> Path:
        return self.folder / name


def run_pipeline(rayrec: Callable[..., Finished], folder: Path, commands: Sequence[Sequence[str]]) -> Pipeline:
    """Run the commands one after the other in `folder`; each must succeed."""
    results = {}
    for command in commands:
        done = rayrec(*command, "--json", folder=folder)
        assert done.code == 0, f"rayrec {' '.join(command)}:\n{done.err}"
        results[command[0]] = done.result
    return Pipeline(folder, results)


@pytest.fixture(scope="session")
def pipeline(rayrec: Callable[..., Finished], tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Pipeline:
    """Generated data brought to a model folder: raw/, dataset/, run/, model/. Made once for all processes of tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "pipeline"
    results = folder / "results.json"
    with FileLock(f"{folder}.lock"):
        if not results.exists():
            folder.mkdir()
            commands: list[list[str]] = [
                ["generate", "criteo", "--rows", "20000", "--output", "raw"],
                ["preprocess", RECIPE, "--input", "raw/criteo.tsv", "--output", "dataset"],
                ["train", RECIPE, "--data", "dataset", "--output", "run", "--workers", "2"],
                ["export", "run", "--output", "model"],
            ]
            results.write_text(json.dumps(run_pipeline(rayrec, folder, commands).results))
    return Pipeline(folder, json.loads(results.read_text()))


def weights(model: Path) -> dict[str, bytes]:
    """Return the bits of every tensor. Not those of the files, whose headers have their keys in any order."""
    files = (model / "weights").rglob("*.safetensors")
    return {f"{file.stem}/{name}": value.tobytes() for file in files for name, value in load_file(file).items()}


@contextmanager
def served(ray: str, model: str | Path) -> Iterator[str]:
    """Yield the address of the models of `rayrec serve MODEL`, which is interrupted at the end."""
    port = free_port()
    process = subprocess.Popen(
        [PROGRAM, "serve", str(model), "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(ray),
    )
    address = f"http://127.0.0.1:{port}/v1/models"
    deadline = time.monotonic() + 300
    while True:
        try:
            post(f"{address}/model:predict", {"instances": [{}]})
            break
        except OSError:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(1)
    yield address
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode in {0, 130}, err


def post(address: str, body: Any) -> Any:
    """Post `body` as JSON (a string as it stands); raises urllib's HTTPError on any status but 200."""
    text = body if isinstance(body, str) else json.dumps(body)
    request = urllib.request.Request(address, text.encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


def raw_features(path: Path, rows: int) -> list[dict[str, Any]]:
    """Return the first rows of a Criteo file as a client would send them: missing features left out."""
    names = [f"I{i}" for i in range(1, 14)] + [f"C{i}" for i in range(1, 27)]
    lines = path.read_text().splitlines()[:rows]
    fields = [line.split("\t")[1:] for line in lines]
    return [
        {name: int(value) if name.startswith("I") else value for name, value in zip(names, row, strict=True) if value}
        for row in fields
    ]
