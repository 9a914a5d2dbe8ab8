"""Brings new versions into a running replica.

Every replica looks at the model folders itself, so nobody has to notify it, and a replica that starts later sees the
same. A version is loaded beside the ones that answer, checked against the scores stored in its folder, and only then
put in their place; one that fails never answers, and is tried again when its files change. Those of a delta are also
the files of the versions before it that it needs.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rayrec.common.errors import UserError, did_you_mean
from rayrec.common.text import ascii_name
from rayrec.inference.folder.table_files import is_delta
from serve.folders import TRAFFIC_FILE, LocalModels, ModelSource, TrafficSplit, scan, stamp_of_files
from serve.json_log import JsonLog
from serve.metrics import ServingMetrics
from serve.models import ServedModel, ServedModels, ServedVersion, Shadow, news, why_not_ranked
from serve.requests import RequestError

logger = logging.getLogger("ray.serve.rayrec")

_UNLOADED = "unloaded; POST /v2/repository/models/{name}/load loads it"

Load = Callable[[str, str, Path], ServedVersion]
"""(model, version, folder) -> the loaded version. Raises UserError."""


@dataclass
class _State:
    """One version of a model: the stamps of its files at the last look and at the last attempt to load them, what
    loaded last, and why the last attempt failed."""

    seen: int | None = None
    tried: int | None = None
    version: ServedVersion | None = None
    failure: str = ""


class Updates:
    """Keeps `models` as the folders say."""

    def __init__(
        self,
        folders: Mapping[str, Path],
        load: Load,
        models: ServedModels,
        shadow_log: JsonLog,
        metrics: ServingMetrics,
    ) -> None:
        self.states: Mapping[str, ServedModel] = {}
        """The models as of the last look, those of which no version answers too."""
        self._local = LocalModels(folders)
        self._load = load
        self._models = models
        self._shadow_log = shadow_log
        self._metrics = metrics
        self._states: dict[tuple[str, str], _State] = {}
        self._told: dict[str, str] = {}
        """What went wrong -> how, as the log has it."""
        # The thread that polls, and those of requests that load and unload.
        self._lock = threading.Lock()

    def load_all(self) -> None:
        """Load what is to be served at the start. Raises UserError if a model has no version that loads."""
        self._local.refresh()
        models = {name: self._model(name, source, settle=False) for name, source in scan(self._local.folders).items()}
        for name, model in models.items():
            if model.failed and not model.weights:
                what, why = next(iter(model.failed.items()))
                raise UserError(f"model '{name}', {what}: {why}")
        for model in models.values():
            for version in model.versions.values():
                if (problem := why_not_ranked(version, models)) is not None:
                    raise UserError(f"model '{model.name}' {problem}")
        self._take(models)

    def poll(self) -> None:
        """Look for changes once; folders that cannot be read leave everything as it is."""
        with self._lock:
            with self._noted("the models stay as they are"):
                self._look()
            for name, model in self._models.current.items():
                with self._noted(f"metrics of model '{name}' are not reported"):
                    self._report(model)

    def load(self, name: str, version: str | None = None) -> None:
        """Let a version of a model answer, or what did before it was unloaded; raises RequestError if it does not load.

        Other replicas follow at their next look.
        """
        with self._lock, self._changed(name) as (source, before):
            if version is not None and version not in source.versions:
                there = ", ".join(source.versions)
                raise RequestError(404, f"no version '{version[:100]}' of model '{name}'; there are: {there}")
            weights = {} if before is None else before.weights
            shadow = None if before is None else before.shadow
            if version is not None:
                weights, shadow = {version: 1.0}, None
            TrafficSplit.save(TrafficSplit(weights=weights, shadow=shadow) if weights else None, source.folder)
            self._look(at_once=name)
            model = self.states[name]
            if not model.weights or (weights and model.failed):
                # A replica that starts now would have nothing that answers.
                TrafficSplit.save(before, source.folder)
                what, why = next(iter(model.failed.items()))
                raise RequestError(409, f"model '{name}', {what}: {why}; nothing was changed")

    def unload(self, name: str) -> None:
        """Let no version of a model answer, in any replica, until it is loaded again. Raises RequestError."""
        with self._lock, self._changed(name) as (source, before):
            weights, shadow = ({}, None) if before is None else (before.weights, before.shadow)
            TrafficSplit.save(TrafficSplit(weights=weights, shadow=shadow, unloaded=True), source.folder)
            self._look(at_once=name)

    def index(self, *, only_ready: bool = False) -> list[dict[str, str]]:
        """Return every version that lies in the folders, or those that are loaded: its model's name, its number, its
        state and why it is so."""
        with self._lock:
            entries = []
            for name, source in scan(self._local.folders).items():
                model = self.states.get(name, ServedModel(name, {}, {}))
                for version in source.versions:
                    state = "READY" if version in model.versions else "UNAVAILABLE"
                    if only_ready and state != "READY":
                        continue
                    reason = model.failed.get(version) or ("" if model.weights else self._models.absent.get(name, ""))
                    entries.append({"name": name, "version": version, "state": state, "reason": reason})
            return entries

    @contextmanager
    def _changed(self, name: str) -> Iterator[tuple[ModelSource, TrafficSplit | None]]:
        """Yield where a model lies and what `serving.json` says, to be changed. Raises RequestError."""
        try:
            self._local.refresh(now=True)
            sources = scan(self._local.folders)
            if name not in sources:
                raise RequestError(404, f"no model '{name[:100]}'; {did_you_mean(name, sorted(sources), 'models:')}")
            yield sources[name], TrafficSplit.load(sources[name].folder)
        except (UserError, OSError) as error:
            folder = sources[name].folder if name in sources else Path()
            raise RequestError(409, f"model '{name[:100]}': {_without_folder(str(error), folder)}") from None

    @contextmanager
    def _noted(self, what: str) -> Iterator[None]:
        """Keep an error within the block, which is about one thing; the log has it once, until it is another one."""
        try:
            yield
        except Exception as error:
            how = f"{type(error).__name__}: {error}"
            if self._told.get(what) != how:
                self._told[what] = how
                logger.warning("%s: %s", what, error, exc_info=not isinstance(error, UserError | OSError))

    def _report(self, model: ServedModel) -> None:
        """Report what does not change: Ray forgets a gauge that was not set for some 20 seconds."""
        total = sum(model.weights.values())
        for version, loaded in model.versions.items():
            tags = {"model": ascii_name(model.name), "version": version}
            self._metrics.traffic.set(model.weights.get(version, 0.0) / total, tags)
            loaded.statistics.report_facts()

    def _look(self, at_once: str | None = None) -> None:
        """Take in what the folders say; the model `at_once` is whole by what its user says, whenever it was changed."""
        self._local.refresh(now=at_once is not None)
        models: dict[str, ServedModel] = {}
        for name, source in scan(self._local.folders).items():
            if name in self.states:
                models[name] = self.states[name]
            with self._noted(f"model '{name}' stays as it is"):
                models[name] = self._model(name, source, settle=name != at_once)
        self._take(models)

    def _take(self, models: Mapping[str, ServedModel]) -> None:
        """Let these models answer from now on, and tell what has changed."""
        before, self.states = self.states, models
        # A request sees the old models or the new ones: they are put in place by one assignment.
        absent: dict[str, str] = {}
        for name, model in models.items():
            if not model.weights:
                absent[name] = "no version loads" if model.failed else _UNLOADED.format(name=name)
        self._models.absent = absent
        self._models.current = {name: model for name, model in models.items() if model.weights}
        for line in news(before, models):
            logger.warning(line)
        for name in before.keys() & models.keys():
            if models[name].weights != before[name].weights:
                self._metrics.switches.inc(1, {"model": ascii_name(name)})
        # Versions that answer no more are let go; they are loaded again if they are asked for.
        for (name, version), state in self._states.items():
            if state.version is not None and (name not in models or version not in models[name].versions):
                state.version = state.tried = None

    def _model(self, name: str, source: ModelSource, settle: bool) -> ServedModel:
        """Return the state of one model that its folder asks for, or the present one if that fails."""
        before = self.states.get(name) or ServedModel(name, {}, {})
        failed: dict[str, str] = {}
        # `serving.json` says which versions answer; without it, the newest does.
        try:
            traffic = TrafficSplit.load(source.folder)
        except (UserError, OSError) as error:
            return replace(before, failed={TRAFFIC_FILE: _without_folder(str(error), source.folder)})
        if traffic is not None and traffic.unloaded:
            return ServedModel(name, {}, {})
        # Load what is new; a version that does not load leaves the model as it was.
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
        stale = {version: loaded.stale for version, loaded in versions.items() if loaded.stale is not None}
        if traffic is None:
            return ServedModel(name, versions, dict.fromkeys(versions, 1.0), None, failed, stale)
        weights = {version: weight for version, weight in traffic.weights.items() if weight}
        return ServedModel(name, versions, weights, self._shadow(before, versions, traffic.shadow), failed, stale)

    def _version(
        self, name: str, version: str, folder: Path, settle: bool, failed: dict[str, str]
    ) -> ServedVersion | None:
        """Return the version as its files are now, else as it was loaded before; None if neither exists."""
        state = self._states.setdefault((name, version), _State())
        try:
            found = stamp_of_files(folder)
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
                self._metrics.failed_loads.inc(1, {"model": ascii_name(name), "version": version})
        if state.failure:
            failed[version] = state.failure
        return state.version

    def _shadow(self, before: ServedModel, versions: Mapping[str, ServedVersion], shadow: str | None) -> Shadow | None:
        """Return the same object as before for the same version, so that its counts go on."""
        if shadow is None:
            return None
        if before.shadow and before.shadow.version is versions[shadow]:
            return before.shadow
        return Shadow(versions[shadow], self._shadow_log)


def _without_folder(message: str, folder: Path) -> str:
    """Remove the folder from an error: clients learn what is wrong, not where the server keeps its files."""
    # A delta may be refused because of a folder beside it.
    for place in (folder, folder.parent):
        message = message.replace(f"{place}/", "")
    return message


def poll_forever(updates: Updates, seconds: float) -> None:
    """Start a thread that polls as long as the process lives."""

    def run() -> None:
        while True:
            time.sleep(seconds)
            updates.poll()

    threading.Thread(target=run, name="model-updates", daemon=True).start()
