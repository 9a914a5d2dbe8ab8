"""What tests do to the nodes of `cluster.local_cluster`, and see of them."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from cluster.local_cluster import RAY, RayHead, processes_of


def hiding(folder: Path) -> list[str]:
    """The words before a command for which a folder is empty, as on other machines; Linux lets root do that, and most
    others."""
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    mounted = 'mount -t tmpfs none "$0" && exec "$@"'
    return ["unshare", *as_root, "--mount", "sh", "-c", mounted, str(folder)]


def runs_on(node: int, title: str) -> bool:
    """Whether a process on the node has `title` in its command line."""
    for process in processes_of(node):
        with suppress(psutil.NoSuchProcess):
            if title in " ".join(process.cmdline()):
                return True
    return False


def node_of(process: int, nodes: Sequence[int]) -> int:
    """Return the node on which a process runs."""
    return next(node for node in nodes if process in {member.pid for member in processes_of(node)})


def drain(head: RayHead, node: int, environment: Mapping[str, str], seconds: int = 3600) -> None:
    """Tell the cluster that a node will be taken away after `seconds`; the node itself goes on."""
    # A raylet's command line has its node's id.
    raylet = next(p for p in processes_of(node) if p.name() == "raylet")
    (id_,) = [word.partition("=")[2] for word in raylet.cmdline() if word.startswith("--node_id=")]
    command = [
        str(RAY), "drain-node", f"--address={head.address}", f"--node-id={id_}",
        "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=a test", f"--deadline-remaining-seconds={seconds}",
    ]  # fmt: skip
    subprocess.run(command, env=dict(environment), check=True)
