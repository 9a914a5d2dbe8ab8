"""The commands of each page run in the page's order, in a folder with small files of the names that the page uses."""

import gzip
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from rayrec.common.machine import free_port
from tests.end_to_end.conftest import Pipeline
from tests.environments import environment_of_a_user
from tests.pages import PAGES, REPOSITORY, commands

pytestmark = pytest.mark.minutes
PAGES_ELSEWHERE = {
    "CONTRIBUTING.md": "developers run the targets; unit tests hold what the programs write equal to the files",
    "docs/adding.md": "tests/end_to_end/test_adding.py makes the page's package first",
    "docs/cluster.md": "needs machines and Kubernetes; test_submit.py, test_s3.py, test_cluster_files.py have parts",
}
ELSEWHERE = {
    r"^make demo": "tests/end_to_end/test_wheel.py",
    r"^python -m benchmarks\.": "measures for minutes to hours",
    r"^serve ": "tests/integration/test_serve_config.py",
    r"mlflow|models:/|--register-as": "tests/integration/test_mlflow.py",
    r"^\d+ \d+ \*": "a line of cron, whose command is that of each further day",
}
"""Commands that do not run here, and what runs them or why nothing does."""
SMALLER = {
    r"dlrm-criteo(?!-)": "dlrm-criteo-debug",
    r"workers([ =])8": r"workers\g<1>2",
    r"--trials 16": "--trials 2",
    r"--rows 60000": "--rows 8000",
    r"benchmark serve model": "benchmark serve model --seconds 0.5",
    r"auc >= 0\.76": "auc >= 0.6",
    r"clicks/models/8": "clicks/models/2",
    r"RUN\|MODEL": "RUN",
}
"""What is made smaller in a command, and names that stand for several."""
READY = {"serve": "in a shell: ", "follow": "published"}
"""What commands that run until Ctrl-C say when they work."""
RUN_OF_OWN_TABLE = """
rayrec inspect day_1.csv --label click --output mine.yaml
rayrec preprocess mine.yaml --input day_1.csv --output dataset
rayrec train mine.yaml --data dataset --output run
"""
BEFORE = {
    "README.md": "ln -s $ENVIRONMENT .venv",
    "docs/cli.md": """
        mkdir raw
        cp $MADE/raw/criteo.tsv raw
        cp $MADE/raw/criteo.tsv train.txt
    """,
    "docs/daily.md": f"""
        rm -r clicks
        {RUN_OF_OWN_TABLE}
        rayrec export run --output models/1
    """,
    "docs/explain.md": "cp -r $MADE/run RUN; cp -r $MADE/dataset DATASET",
    "docs/preprocessing.md": """
        cp -r $MADE/raw RAW
        rayrec generate outbrain --rows 20000 --output FOLDER
    """,
    "docs/reports.md": """
        rayrec run dlrm-criteo-debug --input $MADE/raw/criteo.tsv --output out
        for name in yesterday other; do mkdir $name; cp -r $MADE/dataset $name; done
        for seed in 1 2 3; do
            for lr in a:0.05 b:0.01; do
                rayrec train dlrm-criteo-debug --data $MADE/dataset --output ${lr%:*}-$seed --workers 1 \\
                    --set train.seed=$seed --set train.dense_optimizer.lr=${lr#*:}
            done
        done
    """,
    "docs/serving.md": """
        cp -r $MADE/run RUN
        mkdir raw
        cp $MADE/raw/criteo.tsv raw/day_3.tsv
        rayrec export RUN --output model-2
        mkdir -p out days/2024-06-01
        cp -r model-2 out/model
        cp $MADE/raw/criteo.tsv days/2024-06-01/noon.csv
        rayrec export RUN --output models/model
        rayrec export RUN --output models/ctr/7
        mkdir ctr
        cp -r models/ctr ctr/models
        rayrec train dlrm-criteo-debug --data $MADE/dataset --warm-start RUN --output RUN_8
        rayrec generate interactions --rows 20000 --output drawn
        rayrec run neumf-ml-1m-debug --input drawn/ratings.csv --output recommender
        ln -s recommender/model MODEL
    """,
    "docs/training.md": f"""
        {RUN_OF_OWN_TABLE}
        mv run run-7
        rayrec preprocess mine.yaml --extend dataset --input day_2.csv --output dataset-8
    """,
    "docs/tuning.md": "cp -r $MADE/dataset dataset",
    "rayrec/sources/criteo/README.md": "cp -r $MADE/raw FOLDER",
    "rayrec/sources/interactions/README.md": """
        rayrec generate interactions --rows 20000 --output ml-20m
        cp ml-20m/ratings.csv .
        mv lists FOLDER
    """,
}
"""What the reader of a page has before the first command."""
READ_AFTER = {"docs/reports.md": "docs/tuning.md"}
"""Pages that are read after another one, in its folder."""


def write_tables(folder: Path) -> None:
    """The reader's own clicks: days of 3,000 rows that are alike, under the names of all pages."""
    (folder / "clicks").mkdir()
    (folder / "landing").mkdir()
    names = ["clicks/part_1.csv", "clicks/part_2.csv", "clicks.csv", "day_1.csv", "day_2.csv", "landing/part_1.csv"]
    words = ["new", "sale", *(f"tag-{number}" for number in range(40))]
    for seed, name in enumerate([*names, "train.csv.gz", "tomorrow.csv"]):
        rng, rows = np.random.default_rng(seed), 3_000
        site, device, hour = rng.integers(0, 3, rows), rng.integers(0, 2, rows), rng.integers(0, 24, rows)
        columns = {
            "click": (rng.random(rows) < 0.1 + 0.2 * site + 0.1 * device).astype(int),
            "site": np.array(["news", "shop", "mail"])[site],
            "device": np.array(["phone", "laptop"])[device],
            "hour": hour,
            "site_id": np.array(["1fbe01fe", "85f751fd", "e151e245"])[site],
            "C14": 15_700 + rng.integers(0, 50, rows),
            "device_type": device,
            "user_id": rng.integers(0, 300, rows),
            "tags": ["|".join(rng.choice(words, rng.integers(1, 5), replace=False)) for _ in range(rows)],
            "price": rng.uniform(1, 20, rows).round(2),
        }
        lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
        text = "\n".join(lines) + "\n"
        (folder / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())


def write_lists(folder: Path) -> None:
    """The NCF paper's files of 60 users: what each has chosen of 200 items, and a test item with 99 others."""
    rng = np.random.default_rng(0)
    train, test = [], []
    for user in range(60):
        items = rng.permutation(200)
        train += [f"{user}\t{item}\t5\t{time}" for time, item in enumerate(items[:40])]
        test.append("\t".join([f"({user},{items[40]})", *map(str, items[41:140])]))
    for name in ("ml-1m.train.rating", "ml-1m.test.negative"):
        text = "\n".join(train if "train" in name else test) + "\n"
        (folder / name).write_text(text)
        (folder / "lists").mkdir(exist_ok=True)
        (folder / "lists" / name).write_text(text)


class Reader:
    """Types commands into a shell in a folder; what runs until Ctrl-C is stopped when the next such command starts."""

    def __init__(self, folder: Path, made: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._running: subprocess.Popen[bytes] | None = None
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._variables = {**environment_of_a_user(), "PATH": path, "MADE": str(made), "ENVIRONMENT": sys.prefix}

    def type(self, command: str) -> None:
        """Run a command, which must succeed, or start one that runs until Ctrl-C and wait until it works."""
        command = re.sub(r"(localhost|127\.0\.0\.1):\d+", rf"127.0.0.1:{self._port}", command)
        command = command.replace("curl ", "curl --fail-with-body ")
        for output in re.findall(r"--output ([A-Z]+)\b", command):  # a name for any new folder
            shutil.rmtree(self._folder / output, ignore_errors=True)
        program, kind, *_ = f"{command} -".split()
        if program == "rayrec" and kind in READY:
            self._start(command, kind)
            return
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self._folder,
            env=self._variables,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"

    def _start(self, command: str, kind: str) -> None:
        self.close()
        command = re.sub(r"\s+#.*| --port \d+", "", command)
        command = re.sub(r"--grpc-port \d+", f"--grpc-port {free_port()}", command)
        command = f"exec {command}" + (f" --port {self._port}" if kind == "serve" else "")
        log = self._folder / "log"
        with log.open("wb") as file:
            self._running = subprocess.Popen(
                ["bash", "-c", command], cwd=self._folder, env=self._variables, stdout=file, stderr=file
            )
        deadline = time.monotonic() + 120
        while READY[kind] not in log.read_text():
            assert self._running.poll() is None and time.monotonic() < deadline, f"{command}\n{log.read_text()}"
            time.sleep(0.2)

    def close(self) -> None:
        """Press Ctrl-C."""
        running, self._running = self._running, None
        if running is not None:
            running.send_signal(signal.SIGINT)
            assert running.wait(60) in {0, 130}, (self._folder / "log").read_text()


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def reason_of(command: str) -> str | None:
    """Return the pattern of ELSEWHERE that names a command."""
    return next((pattern for pattern in ELSEWHERE if re.search(pattern, command)), None)


def smaller(command: str) -> str:
    for pattern, replacement in SMALLER.items():
        command = re.sub(pattern, replacement, command)
    return command


WITH_COMMANDS = [page for page in PAGES if name_of(page) not in PAGES_ELSEWHERE and commands(page)]


@pytest.mark.parametrize("page", [page for page in WITH_COMMANDS if name_of(page) not in READ_AFTER], ids=name_of)
def test_commands_run(page: Path, pipeline: Pipeline, tmp_path: Path) -> None:
    write_tables(tmp_path)
    write_lists(tmp_path)
    with closing(Reader(tmp_path, pipeline.folder)) as reader:
        for part in [page, *(REPOSITORY / name for name, first in READ_AFTER.items() if first == name_of(page))]:
            reader.type(BEFORE.get(name_of(part), "true"))
            for command in commands(part):
                if reason_of(command) is None:
                    reader.type(smaller(command))


def test_all_exceptions_are_needed() -> None:
    found = [command for page in WITH_COMMANDS for command in commands(page)]
    assert {reason_of(command) for command in found} - {None} == set(ELSEWHERE)
    assert [pattern for pattern in SMALLER if not any(re.search(pattern, command) for command in found)] == []
    assert set(BEFORE) <= set(map(name_of, WITH_COMMANDS))
    assert set(PAGES_ELSEWHERE) <= set(map(name_of, PAGES))
