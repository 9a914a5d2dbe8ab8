"""The command line: every command parses, wrong usage exits with 2 in one line, nothing heavy is imported early."""

import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import rayrec
from jobs import COMMANDS as SUMMARIES
from jobs import GROUPS
from jobs.command.interface import fields_of, parse_command
from jobs.command.request import TrainingRecipeRequest
from jobs.command.runner import Command, build_request, load_command
from rayrec.cli import main as cli
from rayrec.store.paths import to_path
from tests import command_reference

# Command, arguments, and the fields of the request that they make.
COMMANDS: list[tuple[str, list[str], dict[str, Any]]] = [
    ("demo", ["dcnv2", "--output", "d"], {"model": "dcnv2", "output": Path("d")}),
    ("doctor", [], {}),
    ("recipes", ["dlrm-criteo"], {"name": "dlrm-criteo"}),
    (
        "inspect",
        ["a", "b", "--label", "rating>=4", "--rows", "9", "--output", "r.yaml"],
        {"path": ("a", "b"), "label": "rating>=4", "rows": 9, "output": Path("r.yaml"), "model": None},
    ),
    ("inspect", ["a", "--against", "s3://b/d"], {"path": ("a",), "against": to_path("s3://b/d"), "output": None}),
    ("generate", ["criteo", "--rows", "5", "--output", "o"], {"source": "criteo", "rows": 5, "output": Path("o")}),
    (
        "preprocess",
        ["r", "--input", "train=a", "--input", "test=b", "--output", "o", "--set", "preprocess.seed=1"],
        {"recipe": "r", "input": ("train=a", "test=b"), "output": Path("o"), "set": ("preprocess.seed=1",)},
    ),
    ("verify", ["s3://b/d"], {"folder": to_path("s3://b/d")}),
    ("forget", ["d", "--key", "user=3"], {"folder": Path("d"), "key": "user=3"}),
    (
        "train",
        ["r", "--data", "d", "--output", "o", "--workers", "2", "--device", "cpu", "--precision", "bf16", "--resume"],
        {"recipe": "r", "data": Path("d"), "output": Path("o"), "workers": 2, "device": "cpu", "precision": "bf16",
         "resume": True},
    ),
    (
        "run",
        ["r", "--input", "a", "--output", "o", "--workers", "2", "--set", "preprocess.seed=1"],
        {"recipe": "r", "input": ("a",), "output": Path("o"), "workers": 2, "set": ("preprocess.seed=1",)},
    ),
    (
        "follow",
        ["r", "--input", "a", "--serve", "v/m", "--workers", "1"],
        {"recipe": "r", "input": ("a",), "serve": Path("v/m"), "output": Path("v/m.days"), "workers": 1},
    ),
    (
        "tune",
        ["r", "--data", "d", "--output", "o", "--trials", "8", "--search", "random", "--scheduler", "asha", "--resume"],
        {"trials": 8, "search": "random", "scheduler": "asha", "resume": True, "space": None, "concurrent": None},
    ),
    (
        "plan",
        ["r", "--data", "d", "--workers", "8", "--memory-per-worker", "80GB"],
        {"recipe": "r", "data": Path("d"), "workers": 8, "memory_per_worker": "80GB"},
    ),
    ("evaluate", ["m", "--data", "d", "--split", "train"], {"source": Path("m"), "data": Path("d"), "split": "train"}),
    ("explain", ["m", "--data", "d", "--output", "o", "--group", "g=a,b", "--feature", "a", "--feature", "b"],
     {"source": Path("m"), "group": ("g=a,b",), "feature": ("a", "b"), "split": None}),
    ("predict", ["m", "--input", "i", "--output", "o", "--raw"], {"model": Path("m"), "input": "i", "raw": True}),
    ("export", ["r", "--output", "o"], {"run": Path("r"), "output": Path("o")}),
    ("serve", ["a", "b=s3://c/d", "--port", "81"], {"model": ("a", "b=s3://c/d"), "port": 81}),
    ("evaluate", ["s3://b/run", "--data", "s3://b/d"],
     {"source": to_path("s3://b/run"), "data": to_path("s3://b/d")}),
    ("report", ["s3://b/run", "--output", "o", "--expect", "auc > 0.7", "--expect", "log_loss<1"],
     {"source": to_path("s3://b/run"), "output": Path("o"), "expect": ("auc > 0.7", "log_loss<1"), "data": None}),
    ("runs", ["s3://b/runs"], {"folder": to_path("s3://b/runs")}),
    ("compare", ["a", "s3://b/run", "--output", "o"], {"run": ("a", "s3://b/run"), "output": Path("o")}),
    ("benchmark", ["train", "r", "--data", "d"], {"what": "train", "recipe": "r", "data": Path("d")}),
    ("benchmark serve", ["m", "--rows", "1", "--rows", "64", "--protocol", "arrow"],
     {"model": Path("m"), "rows": (1, 64), "protocol": ("arrow",), "clients": (1, 4)}),
    (
        "submit",
        ["train", "r", "--data", "d", "--address", "http://h:1", "--output", "o", "--set", "a=1", "--set", "b=2",
         "--retry", "2", "--resume", "--json"],
        {"address": "http://h:1", "no_wait": False, "retry": 2,
         "command": ("train", "r", "--data", "d", "--output", "o", "--set", "a=1", "--set", "b=2", "--resume",
                     "--json")},
    ),
]  # fmt: skip


def test_the_table_has_every_command() -> None:
    listed = [command.name for command in cli.app.registered_commands]
    assert listed == list(SUMMARIES) and set(listed) == {name for name, _, _ in COMMANDS}


@pytest.mark.parametrize(("command", "arguments", "expected"), COMMANDS, ids=[c for c, _, _ in COMMANDS])
def test_commands_make_the_request(
    command: str, arguments: list[str], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = []

    def run(command: Command[Any], values: dict[str, Any], **options: bool) -> int:
        requests.append((command.name, build_request(command.request, values)))
        return 0

    monkeypatch.setattr("jobs.command.interface.run_command", run)
    assert cli.run([command, *arguments]) == 0
    ((name, request),) = requests
    assert name == command
    assert {name: getattr(request, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "error: missing argument 'RECIPE'; see `rayrec train --help`"),
        (["generate", "criteo", "--rows", "0", "--output", "o"], "error: rows: must be above 0"),
        (["generate", "criteo", "--rows", "1", "--output", "o", "--seed", "-1"], "error: seed: must be 0 or more"),
        (
            ["generate", "outbrain", "--rows", "1", "--output", "o", "--days", "2"],
            "error: days: source 'outbrain' has no files of days; leave it out",
        ),
        (
            ["generate", "criteo", "--rows", "1", "--output", "o", "--drift", "2"],
            "error: drift: without days nothing changes; add --days N",
        ),
        (
            ["generate", "criteo", "--rows", "9", "--output", "o", "--days", "3", "--drift", "11"],
            "error: drift: must be at most 10",
        ),
        (
            ["submit", "train", "r", "--dta", "d"],
            "error: no option '--dta'; did you mean --data, --set? See `rayrec train --help`",
        ),
        (["submit", "submit", "doctor"], "error: 'submit' cannot be submitted; give the command to run"),
        (["recipes", "dlrm-crito"], "error: recipe 'dlrm-crito': not shipped; did you mean 'dlrm-criteo'?"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(
    arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_version(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capfd.readouterr().out.startswith("rayrec 0.")


def test_the_help_lists_groups_that_fit_80_columns(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == 0
    out = capfd.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    for title, commands in GROUPS.items():
        assert f"\n{title}:\n" in out
        for name, listed in commands.items():
            assert re.search(rf"\n  {name} +{re.escape(listed.summary)}\n", out), f"{name}: one line"


def test_every_command_has_help(capfd: pytest.CaptureFixture[str]) -> None:
    for command, summary in SUMMARIES.items():
        assert cli.run([command, "--help"]) == 0
        out = capfd.readouterr().out
        assert f"Usage: rayrec {command}" in out
        assert " ".join(out.split("\n\n")[1].split()) == summary.summary
        assert out.rstrip().endswith(summary.example)
        assert parse_command(shlex.split(summary.example)[1:])[0].name == command
        for field in fields_of(load_command(command).request):
            assert field.help, f"{command}: {field.name} has no docstring"
            assert field.option in out or field.is_positional
        assert "--json" in out and "--debug" in out


def test_heavy_imports_wait() -> None:
    """One process for all, from the statement that may import the least to the one that may import the most."""
    statements: list[tuple[str, set[str]]] = [
        ("import rayrec.cli.main", {"pydantic", "yaml", "rich", "numpy", "torch", "ray", "pyspark"}),
        ("import rayrec; rayrec.load_recipe('dlrm-criteo')", {"numpy", "torch", "torchrec", "ray", "pyspark"}),
        # Ray Serve's proxies import these.
        ("import serve.http, serve.grpc_server", {"numpy", "pyarrow", "torch", "torchrec", "ray", "pyspark"}),
        (
            "import jobs.train, jobs.preprocess, jobs.predict, jobs.serve, jobs.demo, jobs.doctor, jobs.run, jobs.tune",
            {"torch", "torchrec", "ray", "pyspark", "raydp"},
        ),
        (
            "import rayrec.sources.registry, cluster.ray_session, cluster.spark_python_daemon",
            {"torch", "torchrec", "ray"},
        ),
        ("import rayrec.inference.predictor, rayrec.models.dlrm.model", {"torchrec", "ray"}),
        ("import serve.app", {"torchrec"}),
    ]
    script = "import sys\n" + "".join(
        f"{statement}\nprint({statement!r}, sorted({forbidden!r} & set(sys.modules)))\n"
        for statement, forbidden in statements
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{statement} []" for statement, _ in statements]


def test_a_process_that_leaves_waits_for_its_threads_and_runs_its_exit_handlers() -> None:
    script = (
        "import atexit, threading, time\nfrom rayrec.common.program import leave\n"
        "atexit.register(print, 'handler')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\nleave(3)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "thread\nhandler\n", "")


def test_short_options_win_over_set() -> None:
    request = TrainingRecipeRequest(recipe="dlrm-criteo", set=("train.workers=4", "train.seed=7"), workers=2)
    train = request.load_recipe().train
    assert (train.workers, train.seed) == (2, 7)


def test_the_reference_and_the_types_are_written_from_the_requests() -> None:
    assert command_reference.DOCUMENT.read_text() == command_reference.document()
    assert command_reference.STUB.read_text() == command_reference.stub()


@pytest.mark.parametrize("values", [("a", "s3://b/c"), (Path("a"), "s3://b/c")])
def test_python_functions_take_the_fields(values: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []
    monkeypatch.setattr("jobs.command.interface.execute", lambda command, request, progress: requests.append(request))
    rayrec.train("r", *values, workers="1:4", set={"train.epochs": 2}, progress=False)
    rayrec.preprocess(recipe="r", input=values[0], output="o", progress=False)
    train, preprocess = requests
    assert (train.data, train.output, train.workers) == (Path("a"), to_path("s3://b/c"), "1:4")
    assert train.set == ("train.epochs=2",)
    assert preprocess.input == ("a",)
    with pytest.raises(TypeError, match="output"):
        rayrec.export("run")  # type: ignore[call-arg]
    rayrec.preprocess("r", pd.DataFrame({"click": [0, 1]}), "o", progress=False)  # type: ignore[arg-type]
    assert requests[-1].input[0].endswith("input.parquet")
    assert str(inspect.signature(rayrec.export)).startswith("(run, ")
    assert "Run folder" in (rayrec.export.__doc__ or "")
