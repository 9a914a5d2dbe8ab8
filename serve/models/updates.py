"""Brings new versions into a running replica.

Every replica looks at the model folders itself, so nobody has to notify it, and a replica that starts later sees the
same. A version is loaded beside the ones that answer, checked against the scores stored in its folder, and only then
put in their place; one that fails never answers, and is tried again when its files change. Those of a delta are also
the files of the versions before it that it needs.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rayrec.common.errors import UserError
from rayrec.inference.folder.table_files import is_delta
from rayrec.storage.location import in_folder_around
from serve.models.repository import TRAFFIC_FILE, ModelSource, StagedModels, Traffic, fingerprint, scan
from serve.models.served_models import ServedModel, ServedModels
from serve.models.served_version import ServedVersion
from serve.models.shadow import Shadow
from serve.operations.json_log import JsonLog

logger = logging.getLogger("ray.serve.rayrec")

Load = Callable[[str, str, Path], ServedVersion]
"""(model, version, folder) -> the loaded version. Raises UserError."""


@dataclass
class _State:
    """One version of a model: the fingerprints of its files at the last look and at the last attempt to load them, what
    loaded last, and why the last attempt failed."""

    seen: int | None = None
    tried: int | None = None
    version: ServedVersion | None = None
    failure: str = ""


class Updates:
    """Keeps `models` as the folders say; every method is called from one thread at a time."""

    def __init__(self, folders: Mapping[str, Path], load: Load, models: ServedModels, shadow_log: JsonLog) -> None:
        self._folders = folders
        self._staged = StagedModels(folders.values())
        self._load = load
        self._models = models
        self._shadow_log = shadow_log
        self._states: dict[tuple[str, str], _State] = {}

    def load_all(self) -> None:
        """Load what is to be served at the start. Raises UserError if a model has no version that loads."""
        self._staged.refresh()
        models = {name: self._model(name, source, settle=False) for name, source in scan(self._folders).items()}
        for name, model in models.items():
            if not model.weights:
                what, why = next(iter(model.failed.items()))
                raise UserError(f"model '{name}', {what}: {why}")
        self._models.current = models

    def poll(self) -> None:
        """Look for changes once; folders that cannot be read leave everything as it is."""
        self._look()
        for model in self._models.current.values():
            for version in model.versions.values():
                version.statistics.report_facts()

    def _look(self) -> None:
        try:
            self._staged.refresh()
            sources = scan(self._folders)
        except (UserError, OSError) as error:
            logger.warning("the models stay as they are: %s", error)
            return
        updated = {name: self._model(name, source, settle=True) for name, source in sources.items()}
        models = {name: model for name, model in updated.items() if model.weights}
        before = self._models.current
        if models == before:
            return
        for name in sorted(models.keys() | before.keys()):
            if before.get(name) != models.get(name):
                logger.warning("model '%s': %s", name, models[name].describe() if name in models else "removed")
        self._models.current = models
        for (name, version), state in self._states.items():
            if state.version is not None and (name not in models or version not in models[name].versions):
                state.version = state.tried = None

    def _model(self, name: str, source: ModelSource, settle: bool) -> ServedModel:
        """The state of one model that its folder asks for, or the present one if that fails."""
        before = self._models.current.get(name) or ServedModel(name, {}, {})
        failed: dict[str, str] = {}
        try:
            traffic = Traffic.load(source.folder)
        except (UserError, OSError) as error:
            return replace(before, failed={TRAFFIC_FILE: _without_folder(str(error), source.folder)})
        versions: dict[str, ServedVersion] = {}
        for version in sorted(traffic.versions) if traffic else source.versions:
            if version not in source.versions:
                failed[version] = f"{TRAFFIC_FILE} names it, but there is no such model folder"
                continue
            loaded = self._version(name, version, source.versions[version], settle, failed)
            if loaded is not None:
                versions[version] = loaded
                if traffic is None:
                    break  # the newest that loads
        # Every version that `serving.json` names, or none of them.
        if not versions or (traffic and versions.keys() != traffic.versions):
            return replace(before, failed=failed)
        if traffic is None:
            return ServedModel(name, versions, dict.fromkeys(versions, 1.0), None, failed)
        weights = {version: weight for version, weight in traffic.weights.items() if weight}
        return ServedModel(name, versions, weights, self._shadow(before, versions, traffic.shadow), failed)

    def _version(
        self, name: str, version: str, folder: Path, settle: bool, failed: dict[str, str]
    ) -> ServedVersion | None:
        """The version as its files are now, else as it was loaded before; None if neither exists."""
        state = self._states.setdefault((name, version), _State())
        try:
            found = fingerprint(folder)
        except OSError:
            return state.version  # it is being written or removed at this moment
        # Of a delta it shows whether all of it is there.
        is_changing = settle and found != state.seen and not is_delta(folder)
        state.seen = found
        if found != state.tried:
            if is_changing:
                return state.version
            state.tried, state.failure = found, ""
            try:
                state.version = self._load(name, version, folder)
            except UserError as error:
                state.failure = _without_folder(str(error), folder)
            except Exception as error:
                logger.exception("model '%s', version %s does not load", name, version)
                state.failure = f"{type(error).__name__} while loading"
        if state.failure:
            failed[version] = state.failure
        return state.version

    def _shadow(self, before: ServedModel, versions: Mapping[str, ServedVersion], shadow: str | None) -> Shadow | None:
        """The same object as before for the same version, so that its counts go on."""
        if shadow is None:
            return None
        if before.shadow and before.shadow.version is versions[shadow]:
            return before.shadow
        return Shadow(versions[shadow], self._shadow_log)


def _without_folder(message: str, folder: Path) -> str:
    """Clients learn what is wrong, not where the server keeps its files."""
    # A delta may be refused because of a folder beside it, and is not opened alone if it was staged so.
    for place in (folder, folder.parent, in_folder_around(folder).parent):
        message = message.replace(f"{place}/", "")
    return message


def poll_forever(updates: Updates, seconds: float) -> None:
    """Start a thread that polls as long as the process lives, whatever error a poll raises."""

    def run() -> None:
        while True:
            time.sleep(seconds)
            try:
                updates.poll()
            except Exception:
                logger.exception("looking for new model versions failed; trying again")

    threading.Thread(target=run, name="model-updates", daemon=True).start()
