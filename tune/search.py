"""Turns a kind of search into Ray Tune's searcher, scheduler and parameter space.

A sweep that was interrupted begins anew for Tune. Trials that have not ended come first, each in its own folder
(`FOLDER`), and searcher and scheduler are told what the ended ones came to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import optuna
from optuna.trial import TrialState
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining
from ray.tune.search import Searcher

from tune.space import Parameter, Scalar, Space
from tune.sweep_folder import ENDED_STATES, Sweep, SweepSettings, TrialOutcome, TrialRecord
from tune.trial import EVALUATION, FOLDER, GIVEN, OBJECTIVE

if TYPE_CHECKING:
    from ray.tune.execution.tune_controller import TuneController
    from ray.tune.schedulers import TrialScheduler
    from ray.tune.search import SearchAlgorithm

_REDUCTION = 3
"""Of so many trials that came to an evaluation ASHA lets the best one continue."""
_INSIDE = "inside"
"""Attribute of a trial of Optuna: whether the space contains its values."""


@dataclass(frozen=True)
class Strategy:
    """The arguments of Ray Tune that a kind of search decides."""

    searcher: "Searcher | SearchAlgorithm"
    scheduler: "TrialScheduler | None"
    param_space: dict[str, Any]


def strategy(settings: SweepSettings, evaluations: int, known: Sequence[TrialOutcome] = ()) -> Strategy:
    """Return the searcher and the scheduler of the trials that have not ended.

    The first trial is the recipe as it stands, to which the others are compared: it is trained to its end with its own
    values, whatever the scheduler thinks of them. A grid has it beside its points, unless it is one of them.

    `evaluations`: how many a whole trial has. `known`: the trials that an interrupted sweep has begun.
    """
    ended = [outcome for outcome in known if outcome.state in ENDED_STATES]
    begun = [outcome for outcome in known if outcome.state not in ENDED_STATES]
    # Another seed than before, or the same values would be drawn again.
    seed = settings.recipe.resolve().train.seed + len(known)
    points = [(one.assignment, {GIVEN: one.is_given, FOLDER: one.folder.name}) for one in begun]
    tried = [one.assignment for one in known if not one.is_given]
    own, *others = settings.first_points
    if not any(one.is_given for one in known):
        points.insert(0, (own, {GIVEN: True}))
    points += [(point, {}) for point in others if point not in tried]
    if settings.search == "pbt":
        # The population begins from the recipe, too, if it can.
        points += [(own, {})] if settings.space.contains(own) and not tried else []
        return _population_based(settings, points, seed)
    scheduler = RememberingASHA(settings, evaluations, ended) if settings.scheduler == "asha" else None
    return Strategy(Draws(settings, points, ended, seed), scheduler, {})


class Draws(Searcher):
    """Gives Tune the points that are tried first, and then what Optuna draws from what trials have come to.

    Tune's own `OptunaSearch` takes no results of trials that it did not draw.
    """

    def __init__(
        self,
        settings: SweepSettings,
        points: Sequence[tuple[dict[str, Scalar], dict[str, Any]]],
        ended: Sequence[TrialOutcome],
        seed: int,
    ) -> None:
        """Queue `points`: assignments, each with what its trial's configuration has besides."""
        super().__init__(metric=OBJECTIVE, mode=settings.mode)
        self._space, self._study = settings.space, study_of(settings, ended)
        if settings.search == "optuna":
            # Optuna's own ten random trials would leave hardly any of a small search to the model.
            random_trials = min(10, max(4, settings.trials // 4))
            self._study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=random_trials)
        else:
            assert settings.search in ("random", "grid"), settings.search
            self._study.sampler = optuna.samplers.RandomSampler(seed=seed)
        for assignment, besides in points:
            # A recipe outside of the space would mislead Optuna, which sees nothing of it.
            inside = settings.space.contains(assignment)
            self._study.enqueue_trial(assignment if inside else {}, user_attrs={**besides, _INSIDE: inside})
        self._asked: dict[str, optuna.Trial] = {}

    def suggest(self, trial_id: str) -> dict[str, Any]:
        """Return the configuration of the next trial, drawn parameter by parameter, as their conditions hold."""
        trial = self._asked[trial_id] = self._study.ask()
        besides = dict(trial.user_attrs)
        drawn = self._space.draw(partial(suggest, trial)) if besides.pop(_INSIDE, True) else {}
        return {**drawn, **besides}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Tell Optuna what a trial came to; without a value it learns to avoid such assignments."""
        trial, value = self._asked.pop(trial_id), (result or {}).get(OBJECTIVE)
        if value is not None:
            self._study.tell(trial, value)
        else:
            self._study.tell(trial, state=TrialState.FAIL if error else TrialState.PRUNED)


def study_of(sweep: Sweep, outcomes: Sequence[TrialOutcome]) -> optuna.Study:
    """Return the trials as Optuna's own, whichever search drew them; one without a value counts as pruned.

    The given recipe's is left out if the space does not contain it.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize" if sweep.is_maximized else "minimize")
    for outcome in sorted(outcomes, key=lambda outcome: outcome.number):
        if outcome.is_given and not sweep.space.contains(outcome.assignment):
            continue
        drawn = optuna.trial.FixedTrial(outcome.assignment)
        for name in outcome.assignment:
            suggest(drawn, name, sweep.space.parameters[name])
        study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.PRUNED if outcome.value is None else TrialState.COMPLETE,
                value=outcome.value,
                params=drawn.params,
                distributions=drawn.distributions,
            )
        )
    return study


def suggest(trial: optuna.trial.BaseTrial, name: str, parameter: Parameter) -> Scalar:
    """Return the value that a trial of Optuna draws, or already has, for a parameter."""
    if parameter.integer is not None:
        return trial.suggest_int(name, *parameter.integer)
    if parameter.loguniform is not None:
        return trial.suggest_float(name, *parameter.loguniform, log=True)
    if parameter.uniform is not None:
        return trial.suggest_float(name, *parameter.uniform)
    return trial.suggest_categorical(name, parameter.labels)


class RememberingASHA(ASHAScheduler):
    """ASHA (Li et al. 2018, arXiv:1810.05934) over evaluations, which knows the trials that ended before it was made.

    Without them, the first trials after an interruption would be compared with nothing. Trials that have not ended
    report their evaluations again by themselves.
    """

    def __init__(self, settings: SweepSettings, evaluations: int, ended: Sequence[TrialOutcome]) -> None:
        super().__init__(
            time_attr=EVALUATION,
            metric=OBJECTIVE,
            mode=settings.mode,
            # One more than there are: whole trials end by themselves.
            max_t=evaluations + 1,
            grace_period=1,
            reduction_factor=_REDUCTION,
        )
        # Tune pickles the scheduler with its notes, so it does not hold the settings.
        self._trials_folder = settings.trials_folder
        for outcome in ended:
            trial = Trial("rayrec", stub=True, trial_id=outcome.trial)
            self.on_trial_add(None, trial)
            best_so_far = accumulate(outcome.curve, max if settings.is_maximized else min)
            for number, objective in enumerate(best_so_far, start=1):
                super().on_trial_result(None, trial, {EVALUATION: number, OBJECTIVE: objective})

    def on_trial_result(self, tune_controller: "TuneController", trial: Trial, result: dict[str, Any]) -> str:
        decision: str = super().on_trial_result(tune_controller, trial, result)
        # Its value is that of a whole training, or others would look better than it by having trained longer.
        if trial.config.get(GIVEN):
            return self.CONTINUE
        if decision == self.STOP:
            # The trial's process is ended without a word, as by a kill, so that it cannot record it.
            TrialRecord.stop(self._trials_folder / str(trial))
        return decision


class Population(PopulationBasedTraining):
    """Population based training beside the given recipe's trial, which keeps its own values to its end."""

    def on_trial_result(self, tune_controller: "TuneController", trial: Trial, result: dict[str, Any]) -> str:
        if trial.config.get(GIVEN):
            return self.CONTINUE
        return super().on_trial_result(tune_controller, trial, result)


def _population_based(
    settings: SweepSettings, points: Sequence[tuple[dict[str, Scalar], dict[str, Any]]], seed: int
) -> Strategy:
    from ray.tune.search.basic_variant import BasicVariantGenerator

    parameters = settings.space.parameters
    domains = {name: _domain(parameter) for name, parameter in parameters.items()}
    # Tune moves to a neighbour in a list; it would multiply the values of a domain.
    choices = {name: list(parameter.labels) for name, parameter in parameters.items() if parameter.labels}
    scheduler = Population(
        time_attr=EVALUATION,
        metric=OBJECTIVE,
        mode=settings.mode,
        perturbation_interval=1,
        hyperparam_mutations={**domains, **choices},
        custom_explore_fn=partial(_within_bounds, settings.space),
    )
    # The given recipe's trial has its own values, whatever its configuration has.
    configurations = [besides if besides.get(GIVEN) else {**assignment, **besides} for assignment, besides in points]
    searcher = BasicVariantGenerator(random_state=seed, points_to_evaluate=configurations)
    return Strategy(searcher, scheduler, {**domains, GIVEN: False, FOLDER: ""})


def _domain(parameter: Parameter) -> Any:
    from ray import tune

    if parameter.integer is not None:
        return tune.randint(parameter.integer[0], parameter.integer[1] + 1)
    if parameter.loguniform is not None:
        return tune.loguniform(*parameter.loguniform)
    if parameter.uniform is not None:
        return tune.uniform(*parameter.uniform)
    return tune.choice(list(parameter.labels))


def _within_bounds(space: Space, config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with values moved back into their ranges: perturbation multiplies by 0.8 or 1.2."""
    bounded = dict(config)
    for name, parameter in space.parameters.items():
        if parameter.bounds is not None:
            low, high = parameter.bounds
            bounded[name] = min(max(config[name], low), high)
    return bounded
