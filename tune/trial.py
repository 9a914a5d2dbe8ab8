"""One trial on Ray Tune: a step of it is the time up to the next evaluation."""

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray.tune import PlacementGroupFactory, Trainable

from rayrec.common.errors import SmallClusterError, UserError
from rayrec.ingest.dataset import Dataset
from rayrec.training.checkpoint import checkpoint_steps
from rayrec.training.run_folder import CHECKPOINTS_FOLDER, RUN_FILE
from tune.check import trial_recipe
from tune.exchange import begin_from, hand_over, read_pointer, write_pointer
from tune.settings import SweepSettings
from tune.trial_folder import TrialRecord, evaluations

OBJECTIVE = "objective"
"""What Tune compares: the metric's best value so far; under population based training its last one, as weights move."""
EVALUATION = "evaluation"
"""How many evaluations there were; Tune's time."""
_ACTOR_BYTES = 2**29
"""Memory that the process of a trial reserves."""
_POLL_SECONDS = 0.3
# Whoever stopped a trial may want it to go on.
_OVER = ("finished", "refused")


class Trial(Trainable):
    """Trains one assignment in a thread and gives Tune an evaluation at a time.

    Training does not wait for Tune's decision: a trial that is stopped may have trained on a little. Its workers end
    with this process, which owns them, and what they wrote stays whole. A trial that is started again continues from
    its latest checkpoint.
    """

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """No CPU: the workers take theirs from the cluster."""
        return PlacementGroupFactory([{"memory": _ACTOR_BYTES}])

    def setup(self, config: dict[str, Any], settings: SweepSettings) -> None:
        self._settings = settings
        self._assignment = {name: config[name] for name in settings.space.names if name in config}
        self._folder = settings.trials_folder / self.trial_id
        before = TrialRecord.load(self._folder)
        if before is not None and before.state in _OVER and settings.search != "pbt":
            # Tune was killed before it noted the end: it is told again, and nothing is trained again.
            self._record = before
        else:
            self._record = TrialRecord(self.trial_id, self._assignment, started=time.time())
            if before is not None:
                self._record = replace(self._record, started=before.started, run=before.run)
            self._record.save(self._folder)
        self._reported: list[float] = []
        self._training: _Training | None = None

    @property
    def _run(self) -> Path:
        return self._folder / self._record.run

    def step(self) -> dict[str, Any]:
        """Wait for the next evaluation, or for the end."""
        if self._training is None and self._record.state == "running":
            self._training = _Training(self._settings, self._assignment, self._run)
        while True:
            is_over = self._training is None or self._training.is_over
            found = evaluations(self._run, self._settings.metric)
            # A worker that died takes evaluations back with it that no checkpoint has.
            del self._reported[len(found) :]
            if len(found) > len(self._reported):
                record = found[len(self._reported)]
                # The record is written before the checkpoint that a scheduler may want.
                if is_over or self._checkpoint_step() >= record["step"]:
                    return self._result(record)
            elif is_over:
                return self._end()
            time.sleep(_POLL_SECONDS)

    def _result(self, record: dict[str, Any]) -> dict[str, Any]:
        self._reported.append(record[self._settings.metric])
        return {EVALUATION: len(self._reported), OBJECTIVE: self._objective, "step": record["step"]}

    def _end(self) -> dict[str, Any]:
        if self._training is not None:
            self._note_end(self._training.error)
        # Without a value the searcher learns that values like these come to nothing.
        has_value = self._reported and self._record.state != "refused"
        last = {OBJECTIVE: self._objective} if has_value else {}
        return {"done": True, EVALUATION: len(self._reported), **last}

    def _note_end(self, error: BaseException | None) -> None:
        if error is None:
            self._record = replace(self._record, state="finished")
        elif isinstance(error, UserError) and not isinstance(error, SmallClusterError):
            # Values that cannot be trained are a result of the search; trying them again would end the same.
            self._record = replace(self._record, state="refused", message=str(error))
        else:
            self._record = replace(self._record, state="failed", message=f"{type(error).__name__}: {error}")
        self._record.save(self._folder)
        if self._record.state == "failed":
            assert error is not None
            raise error

    @property
    def _objective(self) -> float:
        return self._reported[-1] if self._settings.search == "pbt" else self._settings.best(self._reported)

    def cleanup(self) -> None:
        """Tune ends the trial: after its last step, or because it stops or pauses it."""
        if self._record.state == "running":
            replace(self._record, state="stopped").save(self._folder)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Only population based training asks for one; the checkpoint itself stays with the trial, under links."""
        step = self._checkpoint_step()
        done = sum(1 for record in evaluations(self._run, self._settings.metric) if record["step"] <= step)
        write_pointer(Path(checkpoint_dir), hand_over(self._run, self._folder, step, self._reported[:done]))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Go on from where a trial was: this one, or after an exchange another one."""
        pointer = read_pointer(Path(checkpoint_dir))
        self._reported = list(pointer.objectives)
        if pointer.trial != self.trial_id:
            name = f"run-{pointer.trial}-{pointer.step}"
            if not (self._folder / name).exists():
                recipe = trial_recipe(self._settings.space, self._settings.recipe, self._assignment)
                begin_from(pointer, self._folder / name, recipe, Dataset.open(self._settings.dataset))
        else:
            name = pointer.run
        self._record = replace(self._record, run=name)
        self._record.save(self._folder)

    def _checkpoint_step(self) -> int:
        return max(checkpoint_steps(self._run / CHECKPOINTS_FOLDER), default=0)


class _Training:
    """The training of a trial, in a thread."""

    def __init__(self, settings: SweepSettings, assignment: dict[str, Any], run: Path) -> None:
        self._settings, self._assignment, self._run_folder = settings, assignment, run
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._train, name="rayrec-trial", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def _train(self) -> None:
        try:
            recipe = trial_recipe(self._settings.space, self._settings.recipe, self._assignment)
            dataset = Dataset.open(self._settings.dataset)
            self._settings.train(recipe, dataset, self._run_folder, (self._run_folder / RUN_FILE).exists())
        except BaseException as error:  # the thread must not end as if all were well
            self.error = error
