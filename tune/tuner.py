"""Runs a sweep on Ray Tune: a new one, or one that was interrupted.

What came of the trials is in their folders (`sweep_folder`), to which each trial (`trial`) writes by itself. A sweep
continues from these folders alone. Tune overwrites its own notes of a sweep in place every other second, so that a kill
may cut them short; they are pickles, too, which could run code.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from rayrec.common.errors import ConfigError, UserError
from rayrec.common.machine import available_cpus
from rayrec.common.process import in_background
from rayrec.common.progress import Progress
from rayrec.ingest.dataset import Dataset
from rayrec.store.files import remove
from rayrec.store.paths import place_on_this_node
from rayrec.training.run.folder import CHECKPOINTS_FOLDER
from rayrec.training.run.preflight import require_parts, require_trainable, resolve_device
from tune.space import check_space, searchable_space
from tune.sweep_folder import (
    ENDED_STATES,
    EXCHANGE_FOLDER,
    Sweep,
    SweepSettings,
    TrialOutcome,
    TrialRecord,
    read_outcomes,
)

_SHORTEST_PAUSE = 1.0
"""Seconds between two readings of the trial folders, at least."""
_PAUSE_FACTOR = 20
"""The pause after a reading is this many times as long as the reading took."""
_RETRIES = 2
"""How often a trial that died is started again; it continues from its latest checkpoint."""
_ENVIRONMENT = {
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
"""The folder of Tune's notes of a sweep, and of the pointers by which population based training exchanges checkpoints.
"""


def run_sweep(
    settings: SweepSettings, *, at_once: int, resume: bool, progress: Progress, what: str = "trials"
) -> list[TrialOutcome]:
    """Run the trials, or with `resume` those that have not ended; return all outcomes, the best first.

    Needs a Ray session, and that this process owns the sweep's folder (`owned_folder`). `at_once`: see
    `concurrent_trials`. `what`: the name of the stage that is shown. Raises ConfigError before the first trial if
    the sweep cannot work, and UserError if no trial came to an evaluation.
    """
    os.environ.update(_ENVIRONMENT)
    import ray
    import ray.tune

    # Tune logs a traceback for every process that dies; each trial's end is shown in one line instead.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    from rayrec.models.registry import build_model
    from tune.search import strategy
    from tune.trial import Trial, trial_name, trial_resources

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

    # What an earlier attempt has left. Tune's notes are of no use: it starts the trials that have not ended anew, and
    # each continues from its own latest checkpoint.
    state = place_on_this_node(settings.folder) / STATE_FOLDER
    remove(state)
    known = read_outcomes(settings) if resume else []
    left = settings.size - sum(outcome.state in ENDED_STATES for outcome in known)
    if left:
        # Tune starts a `Trial` for each assignment that the searcher gives it, and asks the scheduler after each
        # evaluation whether it goes on.
        chosen = strategy(settings, base.train.most_evaluations, known)
        tuner = ray.tune.Tuner(
            ray.tune.with_resources(ray.tune.with_parameters(Trial, settings=settings), trial_resources(settings)),
            param_space=chosen.param_space,
            tune_config=ray.tune.TuneConfig(
                search_alg=chosen.searcher,
                scheduler=chosen.scheduler,
                num_samples=left,
                max_concurrent_trials=at_once,
                trial_name_creator=trial_name,
                trial_dirname_creator=trial_name,
            ),
            run_config=ray.tune.RunConfig(
                name=state.name,
                storage_path=str(state.parent),
                # Run folders hold checkpoints of their own; only population based training asks Tune for more.
                checkpoint_config=ray.tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
                failure_config=ray.tune.FailureConfig(max_failures=_RETRIES),
                verbose=0,
            ),
        )
        # Trials write what they do into their folders, and a thread reads it there.
        progress.stage(f"{what}, {at_once} at once", settings.size)
        with in_background(partial(_watch, settings, progress), "rayrec-sweep"):
            tuner.fit()
        remove(state)

    # Nothing runs any more: a trial that has not said how it ended has died.
    for folder in settings.trials_folder.iterdir():
        record = TrialRecord.load(folder)
        if record is not None and record.state == "running":
            replace(record, state="failed", message="its process died").save(folder)
    outcomes = read_outcomes(settings)
    if not outcomes or outcomes[0].value is None:
        reason = next((outcome.message for outcome in outcomes if outcome.message), "none was evaluated")
        raise UserError(f"{settings.folder}: none of {len(outcomes)} trials was evaluated: {reason}")
    _drop_checkpoints(outcomes[1:])
    return outcomes


def concurrent_trials(settings: Sweep, wanted: int | None) -> int:
    """Return how many trials of a sweep run at once on the cluster of the Ray session: `wanted`, if given.

    A trial holds a CPU (and a GPU, if it trains on GPUs) for each worker from its start to its end, all or none, and
    waits for nothing else: the process that drives it and its reading tasks ask for no CPU.
    Raises ConfigError if one trial does not fit, or fewer than wanted do.
    """
    import ray

    recipe = settings.recipe.resolve()
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
    return min(settings.size, wanted or fitting)


def _drop_checkpoints(outcomes: Sequence[TrialOutcome]) -> None:
    for outcome in outcomes:
        for checkpoints in (outcome.folder / EXCHANGE_FOLDER, *outcome.folder.glob(f"*/{CHECKPOINTS_FOLDER}")):
            remove(checkpoints)


def _watch(settings: SweepSettings, progress: Progress, ended: threading.Event) -> None:
    """Show trials as they end, and keep checkpoints of the best ended trial only."""
    shown: set[str] = set()
    pause, is_over = _SHORTEST_PAUSE, False
    while not is_over:
        is_over = ended.wait(pause)  # once more after the end
        began = time.monotonic()
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
