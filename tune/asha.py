"""Asynchronous successive halving that remembers, in a sweep that is continued, how far ended trials came."""

from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from ray.tune.schedulers import ASHAScheduler

from tune.settings import SweepSettings
from tune.trial import EVALUATION, OBJECTIVE
from tune.trial_folder import values_of

if TYPE_CHECKING:
    from ray.tune.execution.tune_controller import TuneController
    from ray.tune.experiment import Trial

REDUCTION = 3


class RememberingASHA(ASHAScheduler):
    """ASHA (Li et al. 2018, arXiv:1810.05934) over evaluations.

    Tune restores the trials of an interrupted sweep, but not what its scheduler knew of them: without that the first
    trials after an interruption would be compared with nothing. Trials that go on report their evaluations again.
    """

    def __init__(self, settings: SweepSettings, evaluations: int) -> None:
        super().__init__(
            time_attr=EVALUATION,
            metric=OBJECTIVE,
            mode=settings.mode,
            # One more than there are: whole trials end by themselves.
            max_t=evaluations + 1,
            grace_period=1,
            reduction_factor=REDUCTION,
        )
        self._ended = _EndedTrials(settings.trials_folder, settings.metric, settings.is_maximized)

    def on_trial_add(self, tune_controller: "TuneController", trial: "Trial") -> None:
        super().on_trial_add(tune_controller, trial)
        if trial.is_finished():
            for number, objective in enumerate(self._ended.objectives(trial), start=1):
                self.on_trial_result(tune_controller, trial, {EVALUATION: number, OBJECTIVE: objective})


@dataclass(frozen=True)
class _EndedTrials:
    """What ended trials told Tune, as they wrote it. Pickled with the sweep's state, so without the settings."""

    folder: Path
    metric: str
    is_maximized: bool

    def objectives(self, trial: "Trial") -> list[float]:
        """The best value so far at each evaluation that Tune was told of."""
        told = int(trial.last_result.get(EVALUATION, 0))
        values = values_of(self.folder / trial.trial_id, self.metric)[:told]
        return list(accumulate(values, max if self.is_maximized else min))
