"""A Ray session with other work gets the CPUs of a run back whose driver has died, whenever that was."""

import subprocess
import sys
from pathlib import Path

import pytest

from cluster.local_cluster import ray_head
from tests.builders import make_dataset
from tests.environments import environment_of_open_cluster

# The driver is an actor with a placement group, as Ray Tune's trials are. Where a whole job ends, Ray itself takes back
# what the job had.
SESSION = """
import os, signal, sys, time
from pathlib import Path
import ray
from ray._private.state import actors
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from rayrec.ingest.dataset import Dataset
from tests.training_runs import recipe, train_on_ray

data, output, moment = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
ray.init(log_to_driver=False)

@ray.remote(num_cpus=0, max_concurrency=2)
class Driver:
    def process(self):
        return os.getpid()

    def train(self):
        train_on_ray(recipe(epochs=1000, log_every_steps=1), Dataset.open(data), output)

def states():
    return {group["state"] for group in placement_group_table().values()}

def of_the_run():
    known = {actor["ActorClassName"] for actor in actors().values() if actor["State"] != "DEAD"}
    return known - {"_AutoscalingCoordinatorActor"}  # it serves all runs

taken = placement_group([{"CPU": 1}])
ray.get(taken.ready())
if moment == "training":
    remove_placement_group(taken)
own = placement_group([{"memory": 2**27}])
ray.get(own.ready())
place = PlacementGroupSchedulingStrategy(own, placement_group_capture_child_tasks=True)
driver = Driver.options(scheduling_strategy=place).remote()
process = ray.get(driver.process.remote())
training = driver.train.remote()
while True:
    done, _ = ray.wait([training], timeout=0.1)
    ray.get(done)  # raises what training raised
    if moment == "waiting for a CPU" and "PENDING" in states():
        break
    if moment == "training" and (output / "history.jsonl").exists():
        break
os.kill(process, signal.SIGKILL)
while of_the_run():
    time.sleep(0.1)
for group in (taken, own):
    remove_placement_group(group)
assert states() == {"REMOVED"}, states()
again = placement_group([{"CPU": 1}])
assert again.wait(30)
"""


@pytest.mark.parametrize("moment", [pytest.param("waiting for a CPU", marks=pytest.mark.minutes), "training"])
def test_its_cpus_are_free_again(moment: str, tmp_path: Path) -> None:
    """An upgrade may have changed a private part of Ray if this fails: adapt rayrec/internals/ray_train.py."""
    make_dataset(tmp_path / "data", {"train": 200, "test": 20})
    own = environment_of_open_cluster()
    with ray_head(own) as head:
        command = [sys.executable, "-c", SESSION, str(tmp_path / "data"), str(tmp_path / "run"), moment]
        environment = {**own, "RAY_ADDRESS": head.address}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=600, check=False, cwd=Path.cwd()
        )
    assert done.returncode == 0, done.stderr
