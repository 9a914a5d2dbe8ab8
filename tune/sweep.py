"""A sweep on Ray Tune: started, or continued after whatever ended it."""

import logging
import os
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rayrec.common.background import in_background
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import Progress
from rayrec.ingest.dataset import Dataset
from rayrec.training.device import resolve_device
from rayrec.training.preflight import evaluation_split, require_trainable
from rayrec.training.run_folder import CHECKPOINTS_FOLDER
from tune.check import check_space, searchable_space
from tune.exchange import EXCHANGE_FOLDER
from tune.outcome import TrialOutcome, read_outcomes
from tune.resources import concurrent_trials
from tune.settings import SweepSettings
from tune.trial_folder import ENDED_STATES, TrialRecord
from tune.tune_state import STATE_FOLDER, can_be_restored, forget, keep

_LEAST_PAUSE = 1.0
"""Seconds between looks at the trials."""
_PAUSE_SHARE = 20
_RETRIES = 2
"""Times a trial is started again after it died; it continues from its latest checkpoint."""
_ENVIRONMENT = {
    # State is on disk at most so many seconds after it changed.
    "TUNE_GLOBAL_CHECKPOINT_S": "2",
    "TUNE_RESULT_BUFFER_LENGTH": "1",
    # A trial that cannot be trained ends without a metric.
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    # What trials write is in their run folders.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    # Ctrl-C ends the command, as everywhere; its state is as good as after a kill.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
}


def run_sweep(
    settings: SweepSettings, *, concurrent: int | None, resume: bool, progress: Progress, what: str = "trials"
) -> list[TrialOutcome]:
    """Run the trials, or with `resume` those that are not over; returns all, the best first.

    Needs a Ray session, and that the sweep's folder is this process's (`owned_folder`).
    `concurrent`: trials at once, by default as many as fit; `what`: the name of the stage that is shown. Raises
    ConfigError before the first trial where the sweep cannot work, and UserError where no trial came to an evaluation.
    """
    os.environ.update(_ENVIRONMENT)
    import ray.tune

    # It shows a traceback for every process that dies; what became of a trial is said in a line at its end.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    from tune.search import strategy
    from tune.trial import Trial

    dataset = Dataset.open(settings.dataset)
    varied = searchable_space(settings.space, settings.search, settings.trials)
    if left_out := set(settings.space.names) - set(varied.names):
        progress.message(f"kept as the recipe has them, as pbt cannot vary them: {', '.join(sorted(left_out))}")
    # Were reading tasks to wait for CPUs, trials whose workers hold them all would wait for each other.
    recipe = settings.recipe.with_values({"train.ingest.task_cpus": 0})
    settings = replace(settings, space=varied, recipe=recipe)
    _check(settings, dataset)
    base = settings.recipe.resolve()
    chosen = strategy(settings, base.train.epochs * base.train.evaluations_per_epoch)
    at_once = concurrent_trials(base, chosen.trials, concurrent)
    trainable = ray.tune.with_parameters(Trial, settings=settings)
    if resume and can_be_restored(settings.folder):
        state = str(settings.folder / STATE_FOLDER)
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
                trial_dirname_creator=_trial_id,
            ),
            run_config=ray.tune.RunConfig(
                name=STATE_FOLDER,
                storage_path=str(settings.folder),
                # Runs keep their own; only population based training asks for more.
                checkpoint_config=ray.tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
                failure_config=ray.tune.FailureConfig(max_failures=_RETRIES),
                verbose=0,
            ),
        )
    progress.stage(f"{what}, {at_once} at once", chosen.trials)
    with in_background(_Watcher(settings, progress).watch, "rayrec-sweep"):
        results = tuner.fit()
    known = {Path(result.path).name for result in results}
    return _finished(settings, known)


def _check(settings: SweepSettings, dataset: Dataset) -> None:
    """Raise ConfigError where no trial could be compared, or some combination of values cannot be trained."""
    import ray

    base = settings.recipe.resolve()
    split = evaluation_split(base, dataset)
    if split != base.train.evaluation_split:
        raise ConfigError(
            f"train.evaluation_split: {dataset.folder} has no rows in split '{base.train.evaluation_split}' to choose "
            "by; preprocess it with one, or choose by another with --set train.evaluation_split=test"
        )
    device = resolve_device(base.train.device, gpus=ray.cluster_resources().get("GPU", 0))
    check_space(settings.space, settings.recipe, lambda recipe: require_trainable(recipe, dataset, device))


def _trial_id(trial: Any) -> str:
    return str(trial.trial_id)


def _finished(settings: SweepSettings, known: set[str]) -> list[TrialOutcome]:
    """The outcomes, once nothing runs any more; only the best trial keeps its checkpoints."""
    for folder in settings.trials_folder.iterdir():
        record = TrialRecord.load(folder)
        if folder.name not in known or record is None:
            # Drawn by an attempt that was killed before it noted so: it has been drawn anew.
            shutil.rmtree(folder, ignore_errors=True)
        elif record.state == "running":
            replace(record, state="failed", message="its process died").save(folder)
    outcomes = read_outcomes(settings)
    if not outcomes or outcomes[0].value is None:
        reason = next((outcome.message for outcome in outcomes if outcome.message), "none was evaluated")
        raise UserError(f"{settings.folder}: none of {len(outcomes)} trials came to an evaluation: {reason}")
    _drop_checkpoints(outcomes[1:])
    return outcomes


def _drop_checkpoints(outcomes: Sequence[TrialOutcome]) -> None:
    for outcome in outcomes:
        for checkpoints in (outcome.folder / EXCHANGE_FOLDER, *outcome.folder.glob(f"*/{CHECKPOINTS_FOLDER}")):
            shutil.rmtree(checkpoints, ignore_errors=True)


class _Watcher:
    """Shows trials as they end; keeps a copy of Tune's notes, and of the ended trials the best one's checkpoints."""

    def __init__(self, settings: SweepSettings, progress: Progress) -> None:
        self._settings, self._progress = settings, progress
        self._shown: set[str] = set()

    def watch(self, ended: threading.Event) -> None:
        pause = _LEAST_PAUSE
        while not ended.wait(pause):
            began = time.monotonic()
            self._look()
            # Many trials on slow storage take a while to look at.
            pause = max(_LEAST_PAUSE, _PAUSE_SHARE * (time.monotonic() - began))
        self._look()

    def _look(self) -> None:
        keep(self._settings.folder)
        outcomes = read_outcomes(self._settings)
        new = [outcome for outcome in outcomes if outcome.state != "running" and outcome.trial not in self._shown]
        for outcome in new:
            self._shown.add(outcome.trial)
            self._progress.advance(1)
            self._progress.message(outcome.line(self._settings.metric))
        # Under population based training others may go on from them, and a failed trial may be tried again.
        if new and self._settings.search != "pbt":
            _drop_checkpoints([o for o in outcomes if o.state in ENDED_STATES][1:])
        if outcomes and outcomes[0].value is not None:
            self._progress.note(f"best {self._settings.metric} {outcomes[0].value:.4f}")
