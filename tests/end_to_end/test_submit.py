"""Commands as jobs of a cluster: sent, followed, stopped, and with the exit codes of the commands themselves."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
from ray.job_submission import JobSubmissionClient

from cluster.java import provide_java
from cluster.local_cluster import ray_head
from rayrec.training.run.folder import RunFolder, checkpoint_steps
from rayrec.training.run.history import read_history
from tests.end_to_end.conftest import PROGRAM, RECIPE, REPOSITORY, Finished, Pipeline, environment, forked_rayrec

Submit = Callable[..., Finished]
# Longer than any test, and on a disk that it cannot fill should the tests be killed.
LONG = ("submit", "generate", "criteo", "--rows", "20000000", "--output")
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}


@pytest.fixture(scope="module")
def cluster(ray_cluster: str) -> Iterator[str]:
    """Yield the address of a cluster to which jobs are sent.

    Not the tests' own session: of all such sessions on a machine, only one has the port at which Ray takes jobs.
    """
    # A job that is stopped has three seconds to tidy up before Ray kills it, which a busy machine exceeds.
    with ray_head({**os.environ, "RAY_JOB_STOP_WAIT_TIME_S": "60"}, num_cpus=8, dashboard=True) as head:
        yield head.address


@pytest.fixture(scope="module")
def submit(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Submit]:
    """`rayrec submit ARGUMENTS` to that cluster."""
    with forked_rayrec(cluster, tmp_path_factory.mktemp("output")) as rayrec:
        yield partial(rayrec, "submit")


def test_a_job_trains_as_the_command_does(
    pipeline: Pipeline, rayrec: Callable[..., Finished], submit: Submit, tmp_path: Path
) -> None:
    """With a recipe of the user's own, which lies here only, and paths relative to this folder."""
    recipe = rayrec("recipes", RECIPE).out
    (tmp_path / "own.yaml").write_text(recipe)
    (tmp_path / "dataset").symlink_to(pipeline.dataset)
    done = submit(
        "train", "own.yaml", "--data", "dataset", "--output", "run", "--workers", "2", "--json", folder=tmp_path
    )
    assert done.code == 0, done.err
    assert done.result["metrics"] == pipeline.results["train"]["metrics"]
    details = done.result["details"]
    saved = json.loads((tmp_path / "run" / "result.json").read_text())
    assert details["result"] == saved
    assert saved["command"] == "train"
    shown = JobSubmissionClient(details["address"]).get_job_info(details["job"])
    assert (shown.status, shown.driver_exit_code) == ("SUCCEEDED", 0)


# What goes wrong, the exit code, whether a job was sent, and the line that says it.
FAILURES = [
    (["train", "own.yaml", "--data", "d", "--output", "o"], 2, False, "own.yaml: unknown key 'train.ephocs'"),
    (["train", RECIPE, "--data", "nowhere", "--output", "o"], 1, True, "nowhere: no such folder; give the output of"),
    (
        ["train", RECIPE, "--data", "dataset", "--output", "o", "--workers", "512"],
        2,
        True,
        "train.workers: each of 512 workers needs a CPU",
    ),
]


@pytest.mark.minutes
@pytest.mark.parametrize(("arguments", "code", "is_sent", "line"), FAILURES, ids=["config", "data", "cluster"])
def test_exit_codes_are_those_of_the_command(
    arguments: list[str], code: int, is_sent: bool, line: str, pipeline: Pipeline, submit: Submit, tmp_path: Path
) -> None:
    (tmp_path / "own.yaml").write_text("train: {ephocs: 3}")
    (tmp_path / "dataset").symlink_to(pipeline.dataset)
    done = submit(*arguments, folder=tmp_path)
    last = done.err.replace(f"{tmp_path}/", "").splitlines()[-1]
    assert (done.code, done.out) == (code, "")
    assert line in last
    assert last.startswith("error: job rayrec-train-") == is_sent
    assert not (tmp_path / "o").exists()


def _start(ray: str, *arguments: str | Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [PROGRAM, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(ray),
    )


def _read_until(process: "subprocess.Popen[str]", pattern: str) -> re.Match[str]:
    """Lines of stderr up to one that matches."""
    assert process.stderr is not None
    read = []
    for line in process.stderr:
        read.append(line)
        if found := re.search(pattern, line):
            return found
    pytest.fail(f"no line matches {pattern}:\n{''.join(read)}")


@pytest.mark.minutes
def test_ctrl_c_leaves_the_job_running(cluster: str, tmp_path: Path) -> None:
    process = _start(cluster, *LONG, tmp_path / "raw")
    job, address = _read_until(process, r"^job (\S+) at (http[^;]+)").groups()
    _read_until(process, r"generate: [\d,]+ of")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"`ray job stop {job} --address {address}` stops it" in err
    assert JobSubmissionClient(address).get_job_status(job) == "RUNNING"
    stopped = subprocess.run(
        [PROGRAM.with_name("ray"), "job", "stop", job, "--address", address], env=environment(cluster), check=False
    )
    assert stopped.returncode == 0
    assert JobSubmissionClient(address).get_job_status(job) == "STOPPED"
    assert "generate" in JobSubmissionClient(address).get_job_logs(job)
    assert list(tmp_path.iterdir()) == [], "it tidied up"


def test_a_job_whose_process_is_killed_is_started_again_and_goes_on(
    cluster: str, pipeline: Pipeline, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path / "run")
    settings = [
        "train.epochs=1000", "train.max_steps=1000", "train.ingest.in_memory=true", "train.evaluations_per_epoch=0",
        "train.checkpoint.every_steps=100",
    ]  # fmt: skip
    options = [word for setting in settings for word in ("--set", setting)]
    process = _start(
        cluster, "submit", "--retry", "1", "train", RECIPE, "--data", pipeline.dataset, "--output", run.path, *options
    )
    job, _ = _read_until(process, r"^job (\S+) at (http[^;]+)").groups()
    while not checkpoint_steps(run.checkpoints):
        assert process.poll() is None
        time.sleep(0.1)
    # Not the shell around it.
    (driver,) = [p for p in psutil.process_iter(["cmdline"]) if _is_job(p.info["cmdline"], run.path)]
    driver.kill()
    _read_until(process, rf"^job {job} was killed by signal 9; it is started again \(1 of 1\)")
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    starts = [r["step"] for r in read_history(run.history) if r["event"] == "epoch"]
    assert starts.count(0) == 1, "it went on from a checkpoint"
    assert max(checkpoint_steps(run.checkpoints)) == 1000


def _is_job(command_line: list[str] | None, output: Path) -> bool:
    words = command_line or []
    return words[1:3] == ["-m", "jobs.train"] and str(output) in words


@pytest.mark.minutes
def test_rays_own_submission_works_from_the_checkout(cluster: str, submit: Submit, tmp_path: Path) -> None:
    """As docs/cluster.md shows it."""
    # Ray refuses jobs while its agent starts; rayrec's client waits for it.
    assert submit("generate", "criteo", "--rows", "10", "--output", tmp_path / "first").code == 0
    command = ["job", "submit", "--working-dir", ".", "--", "python", "-m", "jobs.generate"]
    options = ["criteo", "--rows", "1000", "--output", tmp_path / "raw", "--json"]
    done = subprocess.run(
        [PROGRAM.with_name("ray"), *command, *options],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        env=environment(cluster),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "raw" / "criteo.tsv").read_text().count("\n") == 1000


@pytest.mark.minutes
def test_every_part_is_a_job_of_a_cluster_in_another_shell(tmp_path: Path) -> None:
    """As docs/cluster.md says it: `ray start --head` with Java and a token, and HTTP access to it from elsewhere."""
    provide_java()
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_A")}
    own |= {**TOKEN, "PYTHONPATH": ""}
    commands = {
        "generate": ["criteo", "--rows", "10000", "--output", "raw"],
        "preprocess": [RECIPE, "--input", "raw/criteo.tsv", "--output", "dataset"],
        "train": [RECIPE, "--data", "dataset", "--output", "run"],
        "tune": [RECIPE, "--data", "dataset", "--output", "sweep", "--trials", "2", "--workers", "1"],
        "evaluate": ["run", "--data", "dataset"],
    }
    with ray_head(own, num_cpus=4, dashboard=True) as head:
        for command, arguments in commands.items():
            options = ["--address", head.dashboard, "--json"]
            done = subprocess.run(
                [PROGRAM, "submit", *options, command, *arguments],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
                env=own,
            )
            assert done.returncode == 0, done.stderr
            result = json.loads(done.stdout)["details"]["result"]
            assert (result["command"], result["status"]) == (command, "done"), result
    assert result["metrics"]["test"]["auc"] > 0.5, result
    assert (tmp_path / "sweep" / "best.yaml").exists()


@pytest.mark.minutes
def test_a_cluster_with_tokens_refuses_who_has_none(tmp_path: Path) -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    plain |= {"HOME": str(tmp_path), "PYTHONPATH": ""}  # where a token of this machine's user is not found

    def run(*command: str | Path, **variables: str) -> tuple[int, str]:
        done = subprocess.run(
            [PROGRAM, *command], capture_output=True, text=True, check=False, timeout=120, env={**plain, **variables}
        )
        return done.returncode, done.stderr.splitlines()[-1]

    refused = "the Ray cluster asks for a token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
    wrong = [{"RAY_AUTH_MODE": "disabled"}, {**TOKEN, "RAY_AUTH_TOKEN": "f" * 64}, {"RAY_AUTH_MODE": "token"}]
    raw = tmp_path / "raw"
    with ray_head({**plain, **TOKEN}, dashboard=True) as head:
        submit = ["submit", "generate", "criteo", "--rows", "100", "--output", raw, "--address", head.dashboard]
        for variables in wrong:
            code, line = run(*submit, **variables)
            assert code == 1 and refused in line and not raw.exists(), line
        code, line = run(*submit, **TOKEN)
        assert code == 0 and "generate: done" in line and raw.exists(), line
        # The same of a command that attaches to the cluster itself.
        attach = ["preprocess", RECIPE, "--input", raw / "criteo.tsv", "--output", tmp_path / "dataset"]
        for variables in wrong:
            code, line = run(*attach, RAY_ADDRESS=head.address, **variables)
            assert code == 1 and f"RAY_ADDRESS={head.address}: {refused}" in line, line
