"""What is sent to a cluster: which request, which files, and what a job's end means here."""

import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.job_client import PACKAGES, job_folder
from jobs.command.command_line import as_arguments
from jobs.command.request import Request
from jobs.command.result import Result
from jobs.evaluate import EvaluateRequest
from jobs.predict import PredictRequest
from jobs.preprocess import PreprocessRequest
from jobs.serve import ServeRequest
from jobs.submit import _require_success, _result_in
from jobs.train import TrainRequest
from rayrec.common.errors import ConfigError, UserError
from rayrec.storage.location import local_path

REPOSITORY = Path(__file__).resolve().parents[2]
DEBUG = "dlrm-criteo-debug"
FILES = "preprocess.split={kind: files}"
URI = "s3://bucket/exp/run?scheme=http"
REMOTE = local_path(URI)

# A request as a person gives it in the folder /here, and the fields that change when it is sent away.
SENT: list[tuple[Request, dict[str, Any]]] = [
    (
        TrainRequest(recipe="own.yaml", data=Path("data"), output=Path("/there/run")),
        {"recipe": "own.yaml", "data": Path("/here/data"), "output": Path("/there/run"), "set": ()},
    ),
    (
        PreprocessRequest(recipe=DEBUG, input=("raw/*.tsv", "s3://bucket/day_0", "year=2014/c"), output=Path("d")),
        {"input": ("/here/raw/*.tsv", "s3://bucket/day_0", "/here/year=2014/c"), "output": Path("/here/d")},
    ),
    (
        PreprocessRequest(recipe=DEBUG, set=(FILES,), input=("train=a", "test=s3://bucket/b"), output=Path("d")),
        {"input": ("train=/here/a", "test=s3://bucket/b"), "set": (FILES,)},
    ),
    (
        TrainRequest(
            recipe="neumf-ml-1m-debug",
            set=("train.initial_weights.sources={gmf: gmf, mlp: /there/mlp}",),
            data=Path("d"),
            output=Path("o"),
        ),
        {
            "set": (
                "train.initial_weights.sources={gmf: gmf, mlp: /there/mlp}",
                "train.initial_weights.sources.gmf=/here/gmf",
            )
        },
    ),
    (PredictRequest(model=Path("m"), input="rows.tsv", output=Path("o")), {"input": "/here/rows.tsv"}),
    (ServeRequest(model=(Path("m"), Path("b=../n"))), {"model": ("m=/here/m", "b=/here/../n")}),
    (EvaluateRequest(source=Path("run"), data=Path("d")), {"source": Path("/here/run"), "data": Path("/here/d")}),
    (EvaluateRequest(source=REMOTE, data=Path("d")), {"source": REMOTE, "data": Path("/here/d")}),
    (ServeRequest(model=(f"m={URI}",)), {"model": (f"m={URI}",)}),
    (PredictRequest(model=REMOTE, input=URI, output=REMOTE), {"model": REMOTE, "input": URI, "output": REMOTE}),
]

OWN = "name: own\nsource: {kind: criteo}\nmodel: {kind: dlrm}\n"


@pytest.mark.parametrize(("given", "expected"), SENT, ids=lambda value: type(value).__name__)
def test_paths_are_absolute_when_a_request_is_sent(
    given: Request, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.yaml").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    sent = given.with_absolute_paths()
    shown = {name: _below(getattr(sent, name), tmp_path) for name in expected}
    assert shown == expected
    assert type(given).model_validate(sent.model_dump()) == sent


def test_uris_are_sent_as_they_are() -> None:
    """The machine that runs the command stages them itself."""
    request = TrainRequest(
        recipe="neumf-ml-1m-debug",
        set=(f"train.initial_weights.sources={{gmf: '{URI}', mlp: /m}}",),
        data=URI,
        output=URI,
    ).with_absolute_paths()
    arguments = as_arguments(request)
    assert arguments[arguments.index("--data") + 1] == arguments[arguments.index("--output") + 1] == URI
    assert not any("=3A__" in argument for argument in arguments)


def _below(value: Any, here: Path) -> Any:
    if isinstance(value, tuple):
        return tuple(_below(item, here) for item in value)
    if isinstance(value, str | Path):
        return type(value)(str(value).replace(str(here), "/here"))
    return value


def test_a_job_is_sent_the_code_and_its_recipe_and_no_data(tmp_path: Path) -> None:
    recipe = tmp_path / "own.yaml"
    recipe.write_text(OWN)
    with job_folder({"recipe/own.yaml": str(recipe)}) as folder:
        sent = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
        size = sum((folder / path).stat().st_size for path in sent)
        assert (folder / "files" / "recipe" / "own.yaml").read_text() == OWN
    assert not folder.exists()
    code = {
        path.relative_to(REPOSITORY)
        for package in PACKAGES
        for path in (REPOSITORY / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sent == {*code, Path("files/recipe/own.yaml")}
    assert size < 2_000_000


def test_the_packages_are_those_of_the_wheel_and_of_rayignore() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert set(PACKAGES) == set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    ignored = (REPOSITORY / ".rayignore").read_text().splitlines()
    assert {line.removeprefix("!/") for line in ignored if line.startswith("!")} == set(PACKAGES)


LOG = "Running entrypoint for job j\nepoch 1\n"
ENDS: list[tuple[str, int | None, str, type[BaseException] | None, str]] = [
    ("SUCCEEDED", 0, "", None, ""),
    ("FAILED", 2, f"{LOG}error: dlrm: train.epochs: wrong\n", ConfigError, "job j: dlrm: train.epochs: wrong"),
    ("FAILED", 1, f"{LOG}error: data: no such folder\n", UserError, "job j: data: no such folder"),
    ("FAILED", 7, LOG, UserError, "job j: failed with exit code 7; `ray job logs j --address http://h` shows"),
    ("FAILED", -9, LOG, UserError, "job j: was killed by signal 9"),
    ("FAILED", None, "Failed to set up\nruntime environment", UserError, "job j: did not start: Failed to set up runt"),
    ("FAILED", 130, f"{LOG}error: interrupted\n", KeyboardInterrupt, ""),
    ("STOPPED", None, "", KeyboardInterrupt, ""),
]


@pytest.mark.parametrize(("status", "code", "message", "error", "line"), ENDS)
def test_the_end_of_a_job_is_the_end_of_the_command(
    status: str, code: int | None, message: str, error: type[BaseException] | None, line: str
) -> None:
    end: Any = SimpleNamespace(status=status, driver_exit_code=code, message=message)
    if error is None:
        _require_success(end, "j", "http://h")
        return
    with pytest.raises(error) as raised:
        _require_success(end, "j", "http://h")
    assert type(raised.value) is error
    assert str(raised.value).startswith(line)


def test_the_result_of_a_job_is_the_json_that_ends_its_log() -> None:
    result = Result(command="train", rows=3, metrics={"test": {"auc": 0.5}}, details={"a": {"b": "}\n{"}})
    assert _result_in(f"some {{\nlog\n{result.to_json()}\nlate warning\n") == result
    assert _result_in("log\n{\nno json\n") is None
    assert _result_in("") is None
