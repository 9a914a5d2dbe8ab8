"""An environment for each peer whose packages do not go together with rayrec's."""

import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"
"""A file NAME.txt with all packages of an environment; pip's own settings say where they come from."""


def python_of(name: str, folder: Path) -> Path:
    """Return the interpreter of the environment `folder`/`name`, which is installed if it is not there."""
    home, requirements = folder / name, REQUIREMENTS / f"{name}.txt"
    python, installed = home / "bin" / "python", home / requirements.name
    if not installed.exists() or installed.read_text() != requirements.read_text():
        print(f"installing {name} into {home} ...", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "-r", requirements], check=True)
        installed.write_text(requirements.read_text())
    return python
