"""Runs commands whose stderr, and input, are a terminal."""

import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import Callable, Mapping
from contextlib import suppress


def run_in_terminal(
    *arguments: str,
    columns: int = 80,
    environment: Mapping[str, str] = os.environ,
    interrupt_at: Callable[[str], bool] = lambda shown: False,
) -> tuple[int, str]:
    """Return the exit code of `python ARGUMENTS`, and all that the terminal was sent.

    Ctrl-C is typed once, as soon as `interrupt_at` is true of what was sent so far.
    """
    process_id, master = pty.fork()
    if process_id == 0:
        given = {k: v for k, v in environment.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
        os.execve(sys.executable, [sys.executable, *arguments], {**given, "TERM": "xterm"})
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    sent, is_interrupted = b"", False
    with suppress(OSError):  # Linux says so when the other side is closed
        while part := os.read(master, 65_536):
            sent += part
            if not is_interrupted and interrupt_at(sent.decode(errors="replace")):
                os.write(master, b"\x03")
                is_interrupted = True
    os.close(master)
    _, status = os.waitpid(process_id, 0)
    return os.waitstatus_to_exitcode(status), sent.decode()
