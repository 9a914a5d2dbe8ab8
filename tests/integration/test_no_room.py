"""A command whose workers Ray has no room for says so, and goes on when there is."""

import os
import subprocess
import sys
import time
from pathlib import Path

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from rayrec.recipes import dump_recipe
from tests.builders import make_dataset
from tests.training_runs import recipe


def test_training_waits_for_the_cpus_of_others(ray_cluster: str, no_spark: None, tmp_path: Path) -> None:
    data = make_dataset(tmp_path / "data", {"train": 200, "test": 20})
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe(workers=2, max_steps=2)))
    cpus = int(ray.cluster_resources()["CPU"])
    taken = placement_group([{"CPU": 1}] * (cpus - 1))
    assert taken.wait(60)
    words = ["train", str(tmp_path / "recipe.yaml"), "--data", str(data.folder), "--output", str(tmp_path / "run")]
    log = tmp_path / "log"
    with log.open("w") as out:
        command = [sys.executable, "-m", "rayrec.cli", *words]
        process = subprocess.Popen(command, stderr=out, env={**os.environ, "RAY_ADDRESS": ray_cluster})
    try:
        line = "waiting for resources for 2 workers of 1 CPU; free: 1 CPU on 1 node"
        while line not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.2)
    finally:
        remove_placement_group(taken)
    assert process.wait(300) == 0, log.read_text()
    assert log.read_text().count("resources are free again") == 1
