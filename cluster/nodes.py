"""Asks the nodes of the running Ray session."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

AnswerT = TypeVar("AnswerT")


def ask_nodes(question: Callable[[], AnswerT]) -> dict[str, AnswerT]:
    """Return what `question` answers on each node, by the node's id; nodes that are lost meanwhile are left out."""
    import ray
    from ray.exceptions import NodeDiedError, TaskUnschedulableError, WorkerCrashedError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    @ray.remote(num_cpus=0)
    def ask() -> AnswerT:
        return question()

    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    asked = {
        node: ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
        for node in nodes
    }
    answers: dict[str, AnswerT] = {}
    for node, answer in asked.items():
        try:
            answers[node] = ray.get(answer)
        except (NodeDiedError, TaskUnschedulableError, WorkerCrashedError):
            continue
    return answers


def all_nodes_see(folder: Path) -> bool:
    """Return whether what this process writes into a folder is there on every node, at the same path."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".seen-") as file:
        path = Path(file.name)

        def sees() -> bool:
            return path.exists()

        return all(ask_nodes(sees).values())
