"""Runs a sweep on Ray Tune: a new one, or one that was interrupted.

Tune's state says which trials there are, and what the searcher knows; what came of them is in their folders
(`sweep_folder`), to which each trial (`trial`) writes by itself.

Tune overwrites its state in place every other second: a kill may cut a file short, or leave files of two moments, after
which Tune waits forever for a trial that has ended. So a copy of one moment is kept beside them as one file, which is
all that another machine needs.
"""

import io
import json
import logging
import os
import socket
import threading
import time
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rayrec.common.errors import ConfigError, DiskError, UserError
from rayrec.common.machine import available_cpus
from rayrec.common.process import in_background
from rayrec.common.progress import Progress
from rayrec.ingest.dataset import Dataset
from rayrec.recipes import Recipe
from rayrec.store.files import remove, write_atomically
from rayrec.store.paths import confined, place_on_this_node
from rayrec.training.run.folder import CHECKPOINTS_FOLDER
from rayrec.training.run.preflight import require_parts, require_trainable, resolve_device
from tune.space import check_space, searchable_space
from tune.sweep_folder import ENDED_STATES, EXCHANGE_FOLDER, SweepSettings, TrialOutcome, TrialRecord, read_outcomes

_SHORTEST_PAUSE = 1.0
"""Seconds between two readings of the trial folders, at least."""
_PAUSE_FACTOR = 20
"""The pause after a reading is this many times as long as the reading took."""
_RETRIES = 2
"""How often a trial that died is started again; it continues from its latest checkpoint."""
_ENVIRONMENT = {
    # Tune saves its state within so many seconds after a change.
    "TUNE_GLOBAL_CHECKPOINT_S": "2",
    "TUNE_RESULT_BUFFER_LENGTH": "1",
    # A trial that cannot be trained ends without a metric.
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    # What trials write is in their run folders.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    # Ctrl-C ends the command, as in all commands; the sweep can be resumed as after a kill.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
}
STATE_FOLDER = ".tune"
_BACKUP_FILE = "tune-state.zip"
# The last two are pickles, despite their names.
_STATE_FILES = ("experiment_state-*.json", "searcher-state-*.pkl", "search_gen_state-*.json")
_TUNER_FILE = "tuner.pkl"
"""The arguments of the Tuner, written once."""
_END_OF_PICKLE = b"."
_QUIET_SECONDS = 0.2
_SAVE_SECONDS = 1.0
"""Tune writes all files of one save within this time; the previous save is older."""
_Files = dict[str, tuple[bytes, int]]
"""Content and time of change, in nanoseconds, by the file's name."""


def run_sweep(
    settings: SweepSettings, *, concurrent: int | None, resume: bool, progress: Progress, what: str = "trials"
) -> list[TrialOutcome]:
    """Run the trials, or with `resume` those that have not ended; return all outcomes, the best first.

    Needs a Ray session, and that this process owns the sweep's folder (`owned_folder`). `concurrent`: trials at once,
    by default as many as fit. `what`: the name of the stage that is shown. Raises ConfigError before the first trial if
    the sweep cannot work, and UserError if no trial came to an evaluation.
    """
    os.environ.update(_ENVIRONMENT)
    import ray
    import ray.tune

    # Tune logs a traceback for every process that dies; each trial's end is shown in one line instead.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    from rayrec.models.registry import build_model
    from tune.search import strategy
    from tune.trial import Trial, trial_resources

    # What the search can vary: not all of the space, under population based training.
    varied = searchable_space(settings.space, settings.search, settings.trials)
    if left_out := set(settings.space.names) - set(varied.names):
        progress.message(
            f"not searched, because pbt cannot change them during a training: {', '.join(sorted(left_out))}"
        )
    # If reading tasks waited for CPUs, trials whose workers hold all of them would wait for each other.
    recipe = settings.recipe.with_values({"train.ingest.task_cpus": 0})
    settings = replace(settings, space=varied, recipe=recipe)
    base = settings.recipe.resolve()

    # No combination of values may be one that cannot be trained on these machines.
    dataset = Dataset.open(settings.dataset)
    device = resolve_device(base.train.device, gpus=ray.cluster_resources().get("GPU", 0))
    require_parts(base.train, build_model(base.model, dataset.schema, device="meta"))
    check_space(settings.space, settings.recipe, lambda recipe: require_trainable(recipe, dataset, device))

    # Tune starts a `Trial` for each assignment that the searcher draws, and asks the scheduler after each evaluation
    # whether it goes on.
    chosen = strategy(settings, base.train.most_evaluations)
    at_once = concurrent_trials(base, chosen.trials, concurrent)
    trainable = ray.tune.with_resources(
        ray.tune.with_parameters(Trial, settings=settings), trial_resources(settings)
    )  # fmt: skip
    if resume and can_be_restored(settings.folder):
        # Trials that had not ended run again, each from its own latest checkpoint.
        state = str(state_folder(settings.folder))
        tuner = ray.tune.Tuner.restore(state, trainable, resume_unfinished=True, resume_errored=True)
    else:
        forget(settings.folder)
        tuner = ray.tune.Tuner(
            trainable,
            param_space=chosen.param_space,
            tune_config=ray.tune.TuneConfig(
                search_alg=chosen.searcher,
                scheduler=chosen.scheduler,
                num_samples=chosen.trials,
                max_concurrent_trials=at_once,
                trial_dirname_creator=lambda trial: str(trial.trial_id),
            ),
            run_config=ray.tune.RunConfig(
                name=state_folder(settings.folder).name,
                storage_path=str(state_folder(settings.folder).parent),
                # Run folders hold checkpoints of their own; only population based training asks Tune for more.
                checkpoint_config=ray.tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
                failure_config=ray.tune.FailureConfig(max_failures=_RETRIES),
                verbose=0,
            ),
        )

    # Trials write what they do into their folders, and a thread reads it there.
    progress.stage(f"{what}, {at_once} at once", chosen.trials)
    disk_errors: list[DiskError] = []
    with in_background(partial(_watch, settings, progress, disk_errors), "rayrec-sweep"):
        try:
            results = tuner.fit()
        except Exception as error:
            if disk_errors:  # Tune goes on when it cannot write, and fails later on what it reads
                raise disk_errors[-1] from error
            raise
    return _finish(settings, {Path(result.path).name for result in results})


def concurrent_trials(recipe: Recipe, trials: int, wanted: int | None) -> int:
    """Return how many of `trials` trials of `recipe` run at once on the cluster of the Ray session: `wanted`, if given.

    A trial holds a CPU (and a GPU, if it trains on GPUs) for each worker from its start to its end, all or none, and
    waits for nothing else: the process that drives it and its reading tasks ask for no CPU.
    Raises ConfigError if one trial does not fit, or fewer than wanted do.
    """
    import ray

    # As many as Ray has places for; more are refused.
    available = ray.cluster_resources()
    cpus, gpus = int(available.get("CPU", 0)), int(available.get("GPU", 0))
    workers = recipe.train.workers
    on_gpus = resolve_device(recipe.train.device, gpus=gpus) == "cuda"
    fitting = (min(cpus, gpus) if on_gpus else cpus) // workers
    if wanted is not None and wanted > fitting:
        raise ConfigError(
            f"--concurrent {wanted}: {fitting} trials of {workers} workers fit Ray's {cpus} CPUs"
            f"{f' and {gpus} GPUs' if on_gpus else ''}; lower it, or --workers"
        )
    if not on_gpus:
        # By default as many as compute: a Ray session on this machine alone may declare more CPUs than it may use.
        nodes = [node for node in ray.nodes() if node["Alive"]]
        is_here = len(nodes) == 1 and nodes[0]["NodeManagerHostname"] == socket.gethostname()
        fitting = max(1, (min(cpus, available_cpus()) if is_here else cpus) // workers)
    return min(trials, wanted or fitting)


def _finish(settings: SweepSettings, known: set[str]) -> list[TrialOutcome]:
    """Return the outcomes, once nothing runs any more; deletes all checkpoints but those of the best trial.

    `known`: names of the folders of the trials that Tune has.
    """
    for folder in settings.trials_folder.iterdir():
        record = TrialRecord.load(folder)
        if folder.name not in known or record is None:
            # An attempt drew it and was killed before it saved so; Tune has drawn another one instead.
            remove(folder)
        elif record.state == "running":
            replace(record, state="failed", message="its process died").save(folder)
    outcomes = read_outcomes(settings)
    if not outcomes or outcomes[0].value is None:
        reason = next((outcome.message for outcome in outcomes if outcome.message), "none was evaluated")
        raise UserError(f"{settings.folder}: none of {len(outcomes)} trials was evaluated: {reason}")
    _drop_checkpoints(outcomes[1:])
    return outcomes


def _drop_checkpoints(outcomes: Sequence[TrialOutcome]) -> None:
    for outcome in outcomes:
        for checkpoints in (outcome.folder / EXCHANGE_FOLDER, *outcome.folder.glob(f"*/{CHECKPOINTS_FOLDER}")):
            remove(checkpoints)


def _watch(settings: SweepSettings, progress: Progress, disk_errors: list[DiskError], ended: threading.Event) -> None:
    """Show trials as they end, back up Tune's state, and keep checkpoints of the best ended trial only.

    Adds to `disk_errors` each time that the state cannot be written.
    """
    shown: set[str] = set()
    pause, is_over = _SHORTEST_PAUSE, False
    while not is_over:
        is_over = ended.wait(pause)  # once more after the end
        began = time.monotonic()
        try:
            backup(settings.folder)
        except DiskError as error:
            disk_errors.append(error)
        outcomes = read_outcomes(settings)
        new = [outcome for outcome in outcomes if outcome.state != "running" and outcome.trial not in shown]
        for outcome in new:
            shown.add(outcome.trial)
            progress.advance(1)
            progress.message(outcome.line(settings.metric))
        # Under population based training other trials may continue from them, and a failed trial may be tried again.
        if new and settings.search != "pbt":
            _drop_checkpoints([o for o in outcomes if o.state in ENDED_STATES][1:])
        if outcomes and outcomes[0].value is not None:
            progress.note(f"best {settings.metric} {outcomes[0].value:.4f}")
        # Reading many trials from slow storage takes a while.
        pause = max(_SHORTEST_PAUSE, _PAUSE_FACTOR * (time.monotonic() - began))


def state_folder(sweep: Path) -> Path:
    """Return the folder of this node in which Tune keeps its state of a sweep."""
    return place_on_this_node(sweep) / STATE_FOLDER


def can_be_restored(sweep: Path) -> bool:
    """Return whether Tune can continue from its state, after the backup has replaced files that are cut short or
    missing.

    It cannot if it was killed before it had saved a trial.
    """
    state, backup_file = state_folder(sweep), sweep / _BACKUP_FILE
    found = _read(state)
    if _is_complete(found) and (_is_of_one_save(found) or not backup_file.exists()):
        return True
    if not backup_file.exists():
        return False
    for name in found:
        (state / name).unlink()
    with zipfile.ZipFile(io.BytesIO(backup_file.read_bytes())) as archive:
        archive.extractall(state, [confined(name, backup_file) for name in archive.namelist()])
    return True


def backup(sweep: Path) -> None:
    """Copy the state, unless Tune is writing it at this moment."""
    found = _read(state_folder(sweep))
    if not _is_complete(found) or not _is_of_one_save(found):
        return
    time.sleep(_QUIET_SECONDS)
    if _read(state_folder(sweep)) != found:
        return
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (content, _) in found.items():
            archive.writestr(name, content)
    write_atomically(sweep / _BACKUP_FILE, packed.getvalue())


def forget(sweep: Path) -> None:
    """Remove the state and its backup."""
    remove(state_folder(sweep))
    (sweep / _BACKUP_FILE).unlink(missing_ok=True)


def _read(folder: Path) -> _Files:
    paths = [path for pattern in (*_STATE_FILES, _TUNER_FILE) for path in folder.glob(pattern)]
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def _newest(files: _Files) -> dict[str, tuple[bytes, int]]:
    """Return the newest state file of each kind, by its pattern; names contain the time at which Tune began."""
    names = {pattern: [name for name in files if Path(name).match(pattern)] for pattern in _STATE_FILES}
    return {pattern: files[max(found)] for pattern, found in names.items() if found}


def _is_complete(files: _Files) -> bool:
    """Return whether the newest state files are there to their last byte and know a trial."""
    newest = {pattern: content for pattern, (content, _) in _newest(files).items()}
    try:
        has_trials = bool(json.loads(newest.pop(_STATE_FILES[0], b"{}")).get("trial_data"))
    except ValueError:
        return False
    return has_trials and all(content.endswith(_END_OF_PICKLE) for content in newest.values())


def _is_of_one_save(files: _Files) -> bool:
    times = [changed for _, changed in _newest(files).values()]
    return max(times) - min(times) < _SAVE_SECONDS * 1e9
