"""Private parts of Python: what it does at its end before it takes objects apart."""

import atexit
import threading


def run_exit_handlers() -> None:
    """Wait for the threads that are no daemons, then run what was registered with `atexit`."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
