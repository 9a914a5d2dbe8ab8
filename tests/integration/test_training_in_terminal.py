"""What a person sees of a training, and of Ray, in a terminal."""

import os
import re
from pathlib import Path

from rayrec.recipes import dump_recipe
from tests.builders import make_dataset
from tests.terminals import run_in_terminal
from tests.training_runs import recipe

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
LINES = re.compile(
    r"(ok|[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]) +(start Ray|start 2 workers|place the tables|training) "  # bars
    r"|[╭│╰]"  # the panel
    r"|train: Ray Train, workers: 2$"
    r"|epoch [12]: |no batch|step \d+: test auc"
    r"|train: done in|  test: auc"
)
FAILING = """
import os, sys, time
from pathlib import Path
from cluster.ray_session import ray_session
from rayrec.common.console import console_progress, log_to_stderr

log_to_stderr()
with console_progress() as progress, ray_session(progress=progress):
    import ray

    try:
        ray.get(ray.remote(max_retries=1)(lambda: os._exit(1)).remote())
    except ray.exceptions.WorkerCrashedError:
        log = Path(ray._private.worker._global_node.get_logs_dir_path()) / f"rayrec-{os.getpid()}.log"
        while not (log.exists() and "A worker died" in log.read_text()):
            time.sleep(0.1)
    raise RuntimeError("that worker")
"""


def test_a_panel_and_no_line_of_ray(ray_cluster: str, tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "data", {"train": 2_000, "test": 200})
    config = tmp_path / "recipe.yaml"
    trained = recipe(workers=2, epochs=2, evaluation_split="test", evaluations_per_epoch=1, log_every_steps=5)
    config.write_text(dump_recipe(trained))
    arguments = ["train", str(config), "--data", str(dataset.folder), "--output", str(tmp_path / "run")]
    environment = {**os.environ, "RAY_ADDRESS": ray_cluster}
    code, sent = run_in_terminal("-m", "rayrec.cli", *arguments, columns=160, environment=environment)
    assert code == 0, sent
    text = ESCAPES.sub("", sent)
    assert [line for line in re.split(r"[\r\n]+", text) if line.strip() and not LINES.match(line)] == []
    for shown in ("step  ", "loss  ", "samples/s", "of the time for data", "on test", "62 of 62", "2 of 2"):
        assert re.search(rf"│.*{shown}.*│", text), shown
    end = text[text.rindex("ok start Ray") :]
    assert "ok training" in end and "╭" not in end


def test_what_ray_says_is_in_a_file(ray_cluster: str) -> None:
    environment = {**os.environ, "RAY_ADDRESS": ray_cluster}
    code, sent = run_in_terminal("-c", FAILING, columns=160, environment=environment)
    text = ESCAPES.sub("", sent)
    assert code == 1 and "RuntimeError: that worker" in text
    assert "raylet" not in text and "A worker died" not in text
    assert re.search(r"ERROR +Ray's logs are in \S+/logs", text), text
