"""What Ray has no room for, and lost nodes, are said; once, and again while it lasts."""

from collections.abc import Mapping
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.core.generated.autoscaler_pb2 import GetClusterResourceStateReply, NodeStatus

from rayrec.common.ray import _Watch, waits_shown
from rayrec.internals import ray_core
from rayrec.internals.ray_core import Room, look_for_room
from tests.messages import Messages

CPU, GPU = (("CPU", 1.0),), (("CPU", 2.0), ("GPU", 1.0))
OWN, OTHERS = "0a000000", "0b000000"


def _room(*waiting: Any, nodes: str = "abc", **free: float) -> Room:
    return Room({node: f"10.0.0.{ord(node)}" for node in nodes}, free, waiting)


@pytest.mark.parametrize(
    ("looks", "said"),
    [
        ({0: _room(), 100: _room()}, []),
        # What is had within seconds is not worth a line.
        ({0: _room((2, CPU)), 3: _room()}, []),
        (
            {0: _room((3, CPU), CPU=1), 6: _room((3, CPU), CPU=1), 8: _room((3, CPU), CPU=1), 10: _room()},
            [
                "waiting for resources for 3 workers of 1 CPU; free: 1 CPU on 3 nodes",
                "resources are free again after 10 s",
            ],
        ),
        (
            {0: _room((1, GPU)), 5: _room((1, GPU)), 30: _room((1, GPU)), 36: _room((1, GPU), (2, CPU), nodes="a")},
            [
                "waiting for resources for 1 worker of 2 CPUs and 1 GPU; free: 0 CPUs, 0 GPUs on 3 nodes",
                "2 nodes were lost (10.0.0.98, 10.0.0.99); free: 0 CPUs on 1 node",
                "waiting for resources for 1 worker of 2 CPUs and 1 GPU, 2 workers of 1 CPU; "
                "free: 0 CPUs, 0 GPUs on 1 node",
            ],
        ),
        ({0: _room(CPU=4), 1: _room(nodes="ac", CPU=3)}, ["a node was lost (10.0.0.98); free: 3 CPUs on 2 nodes"]),
        (
            {0: _room((1, (("memory", 2.0**31),))), 9: _room((1, (("memory", 2.0**31),)), memory=2**29)},
            ["waiting for resources for 1 worker of 2.0 GiB of memory; free: 512.0 MiB of memory on 3 nodes"],
        ),
    ],
)
def test_what_is_said(looks: Mapping[float, Room], said: list[str]) -> None:
    progress = Messages()
    watch = _Watch(progress)
    for now, room in looks.items():
        watch.take(room, now)
    assert progress.lines == said


def test_a_head_that_does_not_answer_for_a_while_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayrec.common.ray._LOOK_SECONDS", 0.01)
    looks = iter([_room(), None, _room(nodes="bc")])
    progress, seen = Messages(), Event()

    def look(timeout: float) -> Room:
        found = next(looks, "no more")
        if found == "no more":
            seen.set()
        if not isinstance(found, Room):
            raise TimeoutError
        return found

    with waits_shown(progress, look):
        assert seen.wait(10)
    assert [line.partition(" (")[0] for line in progress.lines] == ["a node was lost"]


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> GetClusterResourceStateReply:
    """What the head answers to a process of the job `OWN`, some actor of which has no place."""
    reply = GetClusterResourceStateReply()
    client = SimpleNamespace(get_cluster_resource_state=lambda timeout_s: reply.SerializeToString())
    monkeypatch.setattr(ray._private.worker, "global_worker", SimpleNamespace(gcs_client=client))
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_job_id=lambda: OWN))
    monkeypatch.setattr(ray_core, "_has_actors_without_a_place", lambda job: job == OWN)
    for status, free in ((NodeStatus.RUNNING, 1), (NodeStatus.IDLE, 2), (NodeStatus.DEAD, 64)):
        node = reply.cluster_resource_state.node_states.add(node_id=bytes([free]), status=status)
        node.available_resources["CPU"] = free
        node.total_resources["CPU"] = 4
    return reply


def test_dead_nodes_have_no_room(state: GetClusterResourceStateReply) -> None:
    room = look_for_room(1.0)
    assert (room.free, len(room.nodes), room.waiting) == ({"CPU": 3}, 2, ())


def test_groups_of_other_jobs_are_not_ours(state: GetClusterResourceStateReply) -> None:
    for job, count in ((OWN, 3), (OTHERS, 5)):
        gang = state.cluster_resource_state.pending_gang_resource_requests.add(details=f"ffff{job}:PACK|PENDING")
        for _ in range(count):
            gang.requests.add().resources_bundle["CPU"] = 1
    assert look_for_room(1.0).waiting == ((3, CPU),)


def test_what_fits_a_node_is_only_being_started(
    state: GetClusterResourceStateReply, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cpus, count in ((2, 7), (3, 4)):
        pending = state.cluster_resource_state.pending_resource_requests.add(count=count)
        pending.request.resources_bundle["CPU"] = cpus
    assert look_for_room(1.0).waiting == ((4, (("CPU", 3.0),)),)
    monkeypatch.setattr(ray_core, "_has_actors_without_a_place", lambda job: False)
    assert look_for_room(1.0).waiting == ()
