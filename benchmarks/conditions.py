"""Under which conditions something is measured: alone, beside busy processes, on one CPU."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

ALONE, OTHER_SESSION, SAME_SESSION, ONE_CPU = "alone", "two loops, other session", "one loop, same session", "one CPU"
NEIGHBOURS = (ALONE, OTHER_SESSION, SAME_SESSION)
"""What `neighbours` starts.

The loops of another session have the niceness 15. Where the kernel's `sched_autogroup_enabled` is 1, that counts only
among processes of one session, and each session gets an equal share of the CPUs.
"""
_LOOP = """
import os, sys
os.nice(int(sys.argv[1]))
parent = int(sys.argv[2])
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@contextmanager
def neighbours(kind: str) -> Iterator[None]:
    """Run busy loops, one of `NEIGHBOURS`, during the block.

    They end with it, whatever ends it; and where this process is killed, they see that it is gone.
    """
    count, niceness, own_session = {ALONE: (0, 0, False), OTHER_SESSION: (2, 15, True), SAME_SESSION: (1, 0, False)}[
        kind
    ]
    with ExitStack() as stack:
        for _ in range(count):
            words = [sys.executable, "-c", _LOOP, str(niceness), str(os.getpid())]
            loop = stack.enter_context(subprocess.Popen(words, start_new_session=own_session))
            stack.callback(loop.kill)
        yield


@contextmanager
def one_cpu() -> Iterator[None]:
    """Keep this process, and those that it starts during the block, on one of its CPUs."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
