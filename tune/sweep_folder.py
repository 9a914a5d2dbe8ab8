"""The folder of a sweep: only one process works in it, and only the same sweep can be resumed in it."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rayrec.common.errors import ConfigError, UserError
from rayrec.common.files import locked, require_absent, write_json
from rayrec.ingest.dataset import MANIFEST_FILE
from tune.settings import SweepSettings

SWEEP_FILE = "sweep.json"


@contextmanager
def owned_folder(settings: SweepSettings, resume: bool) -> Iterator[None]:
    """Begin the sweep's folder, or take over that of an earlier attempt, for this process alone.

    A new folder in which no trial began is removed at the end. Raises UserError if something else is in it, and
    ConfigError if it holds another sweep.
    """
    folder = settings.folder
    file = folder / SWEEP_FILE
    now = _description(settings)
    if not resume:
        require_absent(folder)
    elif not file.is_file():
        raise UserError(f"{folder}: no sweep to resume (no {SWEEP_FILE}); leave --resume out to begin one")
    else:
        before = json.loads(file.read_text())
        changed = [name for name, value in now.items() if before.get(name) != value]
        if changed:
            raise ConfigError(
                f"{folder}: --resume with another {changed[0]} than the sweep was begun with; set it back, or begin a "
                "new sweep"
            )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(folder / ".lock", folder):
            write_json(file, now)
            yield
    finally:
        if not resume and not settings.trials_folder.exists():
            shutil.rmtree(folder, ignore_errors=True)


def _description(settings: SweepSettings) -> dict[str, Any]:
    """The properties that a resumed sweep must share with the one that was begun."""
    manifest = (settings.dataset / MANIFEST_FILE).read_bytes()
    parameters = settings.space.parameters
    return {
        "recipe": settings.recipe.resolve().model_dump(mode="json"),
        "space": {name: p.model_dump(mode="json", exclude_defaults=True) for name, p in parameters.items()},
        "dataset": hashlib.sha256(manifest).hexdigest(),
        "metric": settings.metric,
        "trials": settings.trials,
        "search": settings.search,
        "scheduler": settings.scheduler,
    }
