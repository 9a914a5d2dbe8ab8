"""The memory that processes of this machine, or of this container, can still use."""

import re
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Bytes that new processes can use: the machine's, or what the container's limit (of cgroups v2) leaves.

    Pages of files that were read and lie idle are available: the system takes them back when memory is asked for.
    """
    free: int = psutil.virtual_memory().available
    try:
        limit, used, statistics = ((_CGROUP / f"memory.{name}").read_text() for name in ("max", "current", "stat"))
    except OSError:
        return free
    if limit.strip() == "max":
        return free
    idle = re.search(r"^inactive_file (\d+)$", statistics, re.MULTILINE)
    return min(free, max(0, int(limit) - int(used) + (int(idle[1]) if idle else 0)))
