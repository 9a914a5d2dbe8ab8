"""How a model folder is told from others; needs no torch, so that a wrong folder is refused at once."""

from pathlib import Path

TABLES_FOLDER = "weights/tables"


def is_model_folder(path: Path) -> bool:
    return (path / TABLES_FOLDER).is_dir()
