"""What is sent to a cluster: which request, which files, and what a job's end means here."""

import itertools
import tomllib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.job_submission import JobStatus

from cluster.job_client import LOST_SECONDS, PACKAGES, RESTART_SECONDS, JobClient, job_folder
from jobs.command.interface import as_arguments
from jobs.command.request import Request
from jobs.command.result import Result
from jobs.evaluate import EvaluateRequest
from jobs.predict import PredictRequest
from jobs.preprocess import PreprocessRequest
from jobs.serve import ServeRequest
from jobs.submit import SubmitRequest, _require_success, _result_in, run
from jobs.train import TrainRequest
from rayrec.common.errors import ConfigError, UserError
from rayrec.store.paths import RemotePath, to_path
from tests.messages import Messages

REPOSITORY = Path(__file__).resolve().parents[2]
DEBUG = "dlrm-criteo-debug"
FILES = "preprocess.split={kind: files}"
URI = "s3://bucket/exp/run?scheme=http"
REMOTE = to_path(URI)

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
    """Any machine reads and writes them."""
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
    if isinstance(value, str | Path) and not isinstance(value, RemotePath):
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
    assert size < 3_500_000


def test_the_packages_are_those_of_the_wheel_and_of_rayignore() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert set(PACKAGES) == set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    ignored = (REPOSITORY / ".rayignore").read_text().splitlines()
    assert {line.removeprefix("!/") for line in ignored if line.startswith("!")} == set(PACKAGES)


LOG = "Running entrypoint for job j\nepoch 1\n"
DIED = "Job supervisor actor died: its node\nis gone"
ENDS: list[tuple[str, int | None, str, type[BaseException] | None, str]] = [
    ("SUCCEEDED", 0, "", None, ""),
    ("FAILED", 2, f"{LOG}error: dlrm: train.epochs: wrong\n", ConfigError, "job j: dlrm: train.epochs: wrong"),
    ("FAILED", 1, f"{LOG}error: data: no such folder\n", UserError, "job j: data: no such folder"),
    ("FAILED", 7, LOG, UserError, "job j: failed with exit code 7; `ray job logs j --address http://h` shows"),
    ("FAILED", -9, LOG, UserError, "job j: was killed by signal 9; `ray job logs j --address http://h` shows"),
    ("FAILED", 137, LOG, UserError, "job j: was killed by signal 9; `ray job logs j --address http://h` shows"),
    ("FAILED", None, DIED, UserError, "job j: was lost: Job supervisor actor died: its node is gone"),
    ("FAILED", None, "Failed to set up\nruntime environment", UserError, "job j: did not start: Failed to set up runt"),
    ("FAILED", 130, f"{LOG}error: interrupted\n", KeyboardInterrupt, ""),
    ("STOPPED", None, "", KeyboardInterrupt, ""),
]


@pytest.mark.parametrize(("status", "code", "message", "error", "line"), ENDS)
def test_the_end_of_a_job_is_the_end_of_the_command(
    status: str, code: int | None, message: str, error: type[BaseException] | None, line: str
) -> None:
    end: Any = _end(status, code, message)
    if error is None:
        _require_success(end, "j", "http://h")
        return
    with pytest.raises(error) as raised:
        _require_success(end, "j", "http://h")
    assert type(raised.value) is error
    assert str(raised.value).startswith(line)


def _end(status: str, code: int | None = None, message: str = "") -> SimpleNamespace:
    kind = "JOB_SUPERVISOR_ACTOR_DIED" if message == DIED else "RUNTIME_ENV_SETUP_FAILURE"
    return SimpleNamespace(
        status=status, driver_exit_code=code, message=message, error_type=None if code is not None else kind
    )


class Jobs:
    """A cluster whose jobs end one after the other as `ends` says, None being a job that it has forgotten."""

    address = "http://h"

    def __init__(self, *ends: SimpleNamespace | None) -> None:
        self._ends = list(ends)
        self.sent: list[tuple[str, list[str], Path]] = []
        self.waits: list[float] = []

    def __call__(self, address: str | None) -> "Jobs":
        return self

    def submit(self, job: str, words: list[str], folder: Path) -> None:
        assert (folder / "jobs" / "train.py").exists()
        self.sent.append((job, words, folder))

    def follow(self, job: str, show: Callable[[str], None], lost_seconds: float) -> SimpleNamespace | None:
        self.waits.append(lost_seconds)
        return self._ends.pop(0)


def _submit(jobs: Jobs, monkeypatch: pytest.MonkeyPatch, *command: str, retry: int = 0) -> tuple[Result, list[str]]:
    monkeypatch.setattr("cluster.job_client.JobClient", jobs)
    messages = Messages()
    return run(SubmitRequest(command=command, retry=retry), messages), messages.lines


DONE = _end("SUCCEEDED", 0)
TRAINING = ("train", DEBUG, "--data", "/d", "--output", "/o")


def test_a_lost_job_is_started_again_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is killed, then its node dies, then the head is started anew."""
    jobs = Jobs(_end("FAILED", -9, LOG), _end("FAILED", None, DIED), None, DONE)
    result, lines = _submit(jobs, monkeypatch, *TRAINING, retry=3)
    names, words, folders = zip(*jobs.sent, strict=True)
    assert len(set(names)) == 4 and len(set(folders)) == 1
    assert ["--resume" in attempt for attempt in words] == [False, True, True, True]
    assert [[word for word in attempt if word != "--resume"] for attempt in words] == [words[0]] * 4
    assert jobs.waits == [RESTART_SECONDS] * 3 + [LOST_SECONDS]
    assert result.details == {"job": names[3], "address": "http://h", "lost": list(names[:3]), "exit_code": 0}
    assert [line.partition(" ")[2].partition(" ")[2] for line in lines if "started again" in line] == [
        "was killed by signal 9; it is started again (1 of 3)",
        "was lost: Job supervisor actor died: its node is gone; it is started again (2 of 3)",
        "is unknown to the cluster, whose head was restarted; it is started again (3 of 3)",
    ]


def test_a_command_that_goes_on_by_itself_is_sent_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(_end("FAILED", 137, LOG), DONE)
    _submit(jobs, monkeypatch, "run", DEBUG, "--input", "/i", "--output", "/o", retry=1)
    first, second = (words for _, words, _ in jobs.sent)
    assert first == second


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (_end("FAILED", 1, f"{LOG}error: data: no such folder\n"), UserError),
        (_end("FAILED", 2, f"{LOG}error: dlrm: train.epochs: wrong\n"), ConfigError),
        (_end("FAILED", 130, f"{LOG}error: interrupted\n"), KeyboardInterrupt),
        (_end("FAILED", None, "Failed to set up"), UserError),
        (_end("STOPPED"), KeyboardInterrupt),
    ],
)
def test_a_job_that_ended_by_itself_or_was_stopped_is_not_started_again(
    end: SimpleNamespace, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(end, DONE)
    with pytest.raises(error):
        _submit(jobs, monkeypatch, *TRAINING, retry=5)
    assert len(jobs.sent) == 1


@pytest.mark.parametrize(("retry", "sent"), [(0, 1), (2, 3)])
def test_a_job_that_is_lost_each_time_is_given_up(retry: int, sent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(*[None] * 5)
    with pytest.raises(UserError, match="is unknown to the cluster, whose head was restarted"):
        _submit(jobs, monkeypatch, *TRAINING, retry=retry)
    assert len(jobs.sent) == sent


def test_a_job_that_is_not_followed_is_not_started_again() -> None:
    with pytest.raises(ConfigError, match="--retry: needs to follow the job"):
        SubmitRequest(command=TRAINING, retry=1, no_wait=True).check()


class _Client:
    """Ray's client, of which the log cannot be read and the answers on a job come from a list."""

    def __init__(self, *answers: SimpleNamespace | Exception) -> None:
        self._answers = list(answers)

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        raise RuntimeError("WebSocket connection closed unexpectedly with close code 1006")
        yield

    def get_job_info(self, job: str) -> SimpleNamespace:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def _follow(monkeypatch: pytest.MonkeyPatch, *answers: SimpleNamespace | Exception) -> Any:
    client: Any = object.__new__(JobClient)
    client.address, client._client = "http://h", _Client(*answers)
    clock = itertools.count(step=10.0)
    monkeypatch.setattr("cluster.job_client.time", SimpleNamespace(monotonic=clock.__next__, sleep=lambda _: None))
    return client.follow("j", print)


def test_the_end_of_a_job_whose_log_died_with_its_node_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    running, failed = (SimpleNamespace(status=JobStatus(name)) for name in ("RUNNING", "FAILED"))
    assert _follow(monkeypatch, running, ConnectionError(), RuntimeError("busy"), running, failed) is failed


def test_a_job_that_does_not_begin_is_said_to_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pending, done = (SimpleNamespace(status=JobStatus(name)) for name in ("PENDING", "SUCCEEDED"))
    assert _follow(monkeypatch, *[pending] * 8, done, done) is done
    lines = capsys.readouterr().out.splitlines()
    # Each look at the clock takes ten seconds.
    assert len(lines) == 2 and all(line.startswith("job j has not started yet: ") for line in lines)


def test_a_head_that_was_started_anew_has_forgotten_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = RuntimeError("Request failed with status code 404: Job j does not exist.")
    assert _follow(monkeypatch, ConnectionError(), gone) is None


def test_a_cluster_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="http://h: no Ray dashboard answers"):
        _follow(monkeypatch, *[ConnectionError()] * 15)


def test_the_result_of_a_job_is_the_json_that_ends_its_log() -> None:
    result = Result(command="train", rows=3, metrics={"test": {"auc": 0.5}}, details={"a": {"b": "}\n{"}})
    assert _result_in(f"some {{\nlog\n{result.to_json()}\nlate warning\n") == result
    assert _result_in("log\n{\nno json\n") is None
    assert _result_in("") is None
