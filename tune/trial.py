"""A trial as Ray Tune runs it: each of its steps lasts until the next evaluation.

In population based training a trial may continue from another trial's checkpoint: Tune stores a `Pointer` to it, and
the files, which never change, get a second name.
"""

import json
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ray.tune import PlacementGroupFactory, Trainable

from rayrec.common.errors import PassingError, SmallClusterError, UserError
from rayrec.ingest.dataset import Dataset
from rayrec.models.registry import build_model
from rayrec.store.files import copy, remove, write_json
from rayrec.store.folders import new_folder
from rayrec.store.growing_files import pause_between_looks
from rayrec.training.run.folder import (
    CHECKPOINTS_FOLDER,
    HISTORY_FILE,
    RUN_FILE,
    RunFolder,
    checkpoint_name,
    checkpoint_steps,
)
from rayrec.training.run.history import cut_history
from tune.space import own_assignment, trial_recipe
from tune.sweep_folder import ENDED_STATES, EXCHANGE_FOLDER, SweepSettings, TrialRecord, evaluations

OBJECTIVE = "objective"
"""What Tune compares: the metric's best value so far, or its last one in population based training."""
GIVEN = "given recipe"
"""The key in Tune's configuration that marks the trial of the recipe as it stands."""
FOLDER = "folder"
"""The key in Tune's configuration of a trial's folder, which an earlier attempt has made, within that of all trials."""
EVALUATION = "evaluation"
"""The number of evaluations so far, which Tune uses as its time."""
_ACTOR_BYTES = 2**29
"""Memory that the process of a trial reserves."""
_POINTER_FILE = "pointer.json"
_KEPT = 4
"""Checkpoints of a trial that are kept for others: some have been chosen and not yet been fetched."""


def trial_name(trial: Any) -> str:
    """Return the name of the folder of Tune's trial: that of an earlier attempt, or a new one."""
    return str(trial.config.get(FOLDER) or trial.trial_id)


def trial_resources(settings: SweepSettings) -> PlacementGroupFactory:
    """Return what a trial's own process takes: a CPU if it trains; else its workers take theirs from the cluster."""
    return PlacementGroupFactory([{"memory": _ACTOR_BYTES, **({"CPU": 1} if settings.in_actors else {})}])


class Trial(Trainable):
    """Trains one assignment in a thread and reports one evaluation at a time to Tune.

    Training does not wait for Tune's decision, so a stopped trial may have trained a little longer. It ends with this
    process, and so do workers, which the process owns; no file that they wrote is cut short. A trial that is started
    again continues from its latest checkpoint.
    """

    def setup(self, config: dict[str, Any], settings: SweepSettings) -> None:
        """Begin the trial of the values in `config`, or take up what an earlier process of it left in its folder."""
        self._settings = settings
        is_given = bool(config.get(GIVEN))
        own = own_assignment(settings.space, settings.recipe) if is_given else config
        self._assignment = {name: own[name] for name in settings.space.names if name in own}
        # Tune's name of a trial is that of its folder (`trial_name`). Its configuration may be another trial's by now.
        self._folder = settings.trials_folder / self.trial_name
        before = TrialRecord.load(self._folder)
        self._reported: list[float] = []
        if before is not None and before.state in ENDED_STATES and settings.search != "pbt":
            # Its process died before it told Tune the end: the results are reported again, and nothing is trained.
            self._record = before
        else:
            name, started = self._folder.name, time.time()
            self._record = TrialRecord(name, self._assignment, started=started, is_given=is_given)
            if before is not None:
                self._record = replace(self._record, started=before.started, run=before.run)
            self._record.save(self._folder)
        if settings.search == "pbt":
            # A population that was interrupted is compared by where its trials are now.
            found = evaluations(self._run, settings.metric)
            self._reported = [record[settings.metric] for record in found[:-1]]
        self._training: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def _run(self) -> Path:
        return self._folder / self._record.run

    def step(self) -> dict[str, Any]:
        """Wait for the next evaluation and report it to Tune, or for the end of training."""
        # Training is begun by the first step and goes on by itself; the steps read what it writes into its run folder.
        if self._training is None and self._record.state == "running":
            self._training = threading.Thread(
                target=self._run_training, args=(self._run,), name="rayrec-trial", daemon=True
            )
            self._training.start()
        while True:
            is_over = self._training is None or not self._training.is_alive()
            found = evaluations(self._run, self._settings.metric)
            # After a worker's death, training goes back to a checkpoint, and later evaluations are undone.
            del self._reported[len(found) :]
            if len(found) > len(self._reported):
                record = found[len(self._reported)]
                # The evaluation is recorded before its checkpoint is saved, which a scheduler may ask for.
                if is_over or self._checkpoint_step() >= record["step"]:
                    self._reported.append(record[self._settings.metric])
                    return {EVALUATION: len(self._reported), OBJECTIVE: self._objective, "step": record["step"]}
            elif is_over:
                break
            time.sleep(pause_between_looks(self._run))
        # All evaluations are reported, and the training has ended: by itself, or by an error.
        if self._training is not None:
            self._record_end(self._error)
        # Without a value, the searcher learns to avoid such assignments.
        has_value = self._reported and self._record.state != "refused"
        last = {OBJECTIVE: self._objective} if has_value else {}
        return {"done": True, EVALUATION: len(self._reported), **last}

    def _run_training(self, run: Path) -> None:
        try:
            own = {} if self._record.is_given else self._assignment
            recipe = trial_recipe(self._settings.space, self._settings.recipe, own)
            self._settings.train(recipe, Dataset.open(self._settings.dataset), run, (run / RUN_FILE).exists())
        except BaseException as error:  # reported by `step`, which waits for the thread
            self._error = error

    def _record_end(self, error: BaseException | None) -> None:
        """Record how training ended. Raises an error that the values did not cause: Tune starts the trial again."""
        if error is None:
            self._record = replace(self._record, state="finished")
        elif isinstance(error, UserError) and not isinstance(error, SmallClusterError | PassingError):
            # Values that cannot be trained are a result of the search; they would fail again in the same way.
            self._record = replace(self._record, state="refused", message=str(error))
        else:
            self._record = replace(self._record, state="failed", message=f"{type(error).__name__}: {error}")
        self._record.save(self._folder)
        if error is not None and self._record.state == "failed":
            raise error

    @property
    def _objective(self) -> float:
        return self._reported[-1] if self._settings.search == "pbt" else self._settings.best(self._reported)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Give Tune a pointer to the latest checkpoint; only population based training asks for one.

        The checkpoint gets a second name, because the run may delete it before another trial has begun from it.
        """
        run, step = self._run, self._checkpoint_step()
        kept = _kept_checkpoint(self._folder, run.name, step)
        if not kept.exists():
            with new_folder(kept) as unfinished:
                copy(run / CHECKPOINTS_FOLDER / kept.name, unfinished, link=True)
        for old in sorted(kept.parent.parent.glob("*/*"), key=lambda path: path.stat().st_mtime_ns)[:-_KEPT]:
            remove(old)
        done = sum(1 for record in evaluations(run, self._settings.metric) if record["step"] <= step)
        pointer = Pointer(self._folder.name, run.name, step, self._reported[:done])
        write_json(Path(checkpoint_dir) / _POINTER_FILE, asdict(pointer))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Continue from a checkpoint of this trial, or after an exchange from that of another one."""
        pointer = Pointer(**json.loads((Path(checkpoint_dir) / _POINTER_FILE).read_text()))
        self._reported = list(pointer.objectives)
        name = pointer.run
        if pointer.trial != self._folder.name:
            name = f"run-{pointer.trial}-{pointer.step}"
            if not (self._folder / name).exists():
                self._begin_run(self._folder / name, pointer)
        self._record = replace(self._record, run=name)
        self._record.save(self._folder)

    def _begin_run(self, run: Path, pointer: "Pointer") -> None:
        """Make a run folder for this trial's values whose checkpoint and history are those of another trial."""
        recipe = trial_recipe(self._settings.space, self._settings.recipe, self._assignment)
        dataset = Dataset.open(self._settings.dataset)
        schema = build_model(recipe.model, dataset.schema, device="meta").schema
        other = self._settings.trials_folder / pointer.trial
        kept = _kept_checkpoint(other, pointer.run, pointer.step)
        with new_folder(run) as unfinished:
            RunFolder.create(unfinished, recipe, dataset, schema)
            copy(kept, unfinished / CHECKPOINTS_FOLDER / kept.name, link=True)
            copy(other / pointer.run / HISTORY_FILE, unfinished / HISTORY_FILE)
            cut_history(unfinished / HISTORY_FILE, pointer.step)

    def _checkpoint_step(self) -> int:
        return max(checkpoint_steps(self._run / CHECKPOINTS_FOLDER), default=0)


@dataclass(frozen=True)
class Pointer:
    """A trial's checkpoint, as Tune stores it: tables are not copied through Tune."""

    trial: str
    run: str
    step: int
    objectives: list[float]
    """The objectives that were reported up to the checkpoint."""


def _kept_checkpoint(trial: Path, run: str, step: int) -> Path:
    """Return where a trial keeps a checkpoint for other trials."""
    return trial / EXCHANGE_FOLDER / run / checkpoint_name(step)
