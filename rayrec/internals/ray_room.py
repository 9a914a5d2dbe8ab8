"""Private parts of Ray: what its scheduler has no room for yet, and the nodes of the cluster."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Resources = tuple[tuple[str, float], ...]
"""Amounts by name, in the order of the names."""


@dataclass(frozen=True)
class Room:
    """The state of a cluster."""

    nodes: Mapping[str, str]
    """Address by id, of the nodes that live."""
    free: Mapping[str, float]
    """What nobody has taken, over all nodes, by resource."""
    total: Mapping[str, float]
    waiting: tuple[tuple[int, Resources], ...] = ()
    """Workers (actors, and bundles of placement groups) of this process's job that have no place: how many, and the
    resources of each."""


def look_for_room(timeout: float) -> Room:
    """Ask the head of the Ray session, which may take `timeout` seconds. Raises errors of Ray."""
    import ray
    from ray.core.generated.autoscaler_pb2 import GetClusterResourceStateReply, NodeStatus

    reply = GetClusterResourceStateReply()
    reply.ParseFromString(ray._private.worker.global_worker.gcs_client.get_cluster_resource_state(timeout_s=timeout))
    state = reply.cluster_resource_state
    alive = [node for node in state.node_states if node.status != NodeStatus.DEAD]
    job = ray.get_runtime_context().get_job_id()
    waiting: Counter[Resources] = Counter()
    for gang in state.pending_gang_resource_requests:
        # The id of the placement group, which ends with that of its job, its strategy and its state.
        if gang.details.partition(":")[0].endswith(job):
            waiting.update(_resources(request.resources_bundle) for request in gang.requests)
    # Ray does not say whose other requests are. Some fit a node: their processes are just being started.
    others: Counter[Resources] = Counter()
    for pending in state.pending_resource_requests:
        wanted = _resources(pending.request.resources_bundle)
        if not any(_fits(wanted, node.available_resources) for node in alive):
            others[wanted] += pending.count
    if others and _has_actors_without_a_place(job):
        waiting += others
    return Room(
        nodes={node.node_id.hex(): node.node_ip_address for node in alive},
        free=_sum(node.available_resources for node in alive),
        total=_sum(node.total_resources for node in alive),
        waiting=tuple((count, wanted) for wanted, count in waiting.items()),
    )


def _resources(bundle: Mapping[str, float]) -> Resources:
    return tuple(sorted((name, amount) for name, amount in bundle.items() if amount))


def _fits(wanted: Resources, available: Mapping[str, float]) -> bool:
    return all(available.get(name, 0.0) >= amount for name, amount in wanted)


def _sum(resources: Iterable[Mapping[str, float]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for of_node in resources:
        for name, amount in of_node.items():
            totals[name] = totals.get(name, 0.0) + amount
    return totals


def _has_actors_without_a_place(job: str) -> bool:
    from ray import JobID
    from ray._private.state import state

    return any(state.actor_table(None, JobID.from_hex(job), name) for name in ("PENDING_CREATION", "RESTARTING"))
