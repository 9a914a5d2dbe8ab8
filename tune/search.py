"""Turns a kind of search into Ray Tune's searcher, scheduler and parameter space."""

from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining

from tune.space import Parameter, Scalar, Space, own_assignment
from tune.sweep_folder import SweepSettings, TrialRecord, evaluations
from tune.trial import EVALUATION, GIVEN, OBJECTIVE

if TYPE_CHECKING:
    import optuna
    from ray.tune.execution.tune_controller import TuneController
    from ray.tune.experiment import Trial
    from ray.tune.schedulers import TrialScheduler
    from ray.tune.search import SearchAlgorithm, Searcher

_REDUCTION = 3


@dataclass(frozen=True)
class Strategy:
    """The arguments of Ray Tune that a kind of search decides."""

    searcher: "Searcher | SearchAlgorithm"
    scheduler: "TrialScheduler | None"
    param_space: dict[str, Any]
    trials: int


def strategy(settings: SweepSettings, evaluations: int) -> Strategy:
    """Return the searcher and the scheduler; `evaluations` is how many a whole trial has.

    The first trial is the recipe as it stands, to which the others are compared: it is trained to its end with its own
    values, whatever the scheduler thinks of them. A grid has it beside its points, unless it is one of them.
    """
    if settings.search == "pbt":
        return _population_based(settings)
    own = own_assignment(settings.space, settings.recipe)
    points = [own]
    if settings.search == "grid":
        points += [point for point in settings.space.grid() if point != own]
    scheduler = RememberingASHA(settings, evaluations) if settings.scheduler == "asha" else None
    trials = len(points) if settings.search == "grid" else settings.trials
    return Strategy(_searcher(settings, points), scheduler, {}, trials)


def _searcher(settings: SweepSettings, points: list[dict[str, Scalar]]) -> "Searcher":
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = settings.recipe.resolve().train.seed
    sampler: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(seed=seed)
    if settings.search == "optuna":
        # Optuna's own ten random trials would leave hardly any of a small search to the model.
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=min(10, max(4, settings.trials // 4)))
    return OptunaSearch(
        space=partial(draw, settings.space, settings.space.contains(points[0])),
        metric=OBJECTIVE,
        mode=settings.mode,
        points_to_evaluate=points,
        sampler=sampler,
    )


def draw(space: Space, contains_recipe: bool, trial: "optuna.Trial") -> dict[str, bool] | None:
    """Draw an assignment from a trial of Optuna, parameter by parameter, as their conditions hold.

    The first trial is marked as the given recipe; a recipe outside of the space would mislead Optuna, which sees
    nothing of it.
    """
    is_given = trial.number == 0
    if contains_recipe or not is_given:
        space.draw(partial(suggest, trial))
    return {GIVEN: True} if is_given else None


def suggest(trial: "optuna.trial.BaseTrial", name: str, parameter: Parameter) -> Scalar:
    """Return the value that a trial of Optuna draws, or already has, for a parameter."""
    if parameter.integer is not None:
        return trial.suggest_int(name, *parameter.integer)
    if parameter.loguniform is not None:
        return trial.suggest_float(name, *parameter.loguniform, log=True)
    if parameter.uniform is not None:
        return trial.suggest_float(name, *parameter.uniform)
    return trial.suggest_categorical(name, parameter.labels)


class RememberingASHA(ASHAScheduler):
    """ASHA (Li et al. 2018, arXiv:1810.05934) over evaluations, which remembers trials of an interrupted sweep.

    Tune restores the trials, but not what its scheduler knew of them: the first trials after an interruption would be
    compared with nothing. Trials that have not ended report their evaluations again by themselves.
    """

    def __init__(self, settings: SweepSettings, evaluations: int) -> None:
        super().__init__(
            time_attr=EVALUATION,
            metric=OBJECTIVE,
            mode=settings.mode,
            # One more than there are: whole trials end by themselves.
            max_t=evaluations + 1,
            grace_period=1,
            reduction_factor=_REDUCTION,
        )
        # Tune pickles the scheduler with the sweep's state, so it does not hold the settings.
        self._trials_folder = settings.trials_folder
        self._target, self._is_maximized = settings.metric, settings.is_maximized

    def on_trial_add(self, tune_controller: "TuneController", trial: "Trial") -> None:
        super().on_trial_add(tune_controller, trial)
        if trial.is_finished():
            for number, objective in enumerate(self._reported_objectives(trial), start=1):
                self.on_trial_result(tune_controller, trial, {EVALUATION: number, OBJECTIVE: objective})

    def on_trial_result(self, tune_controller: "TuneController", trial: "Trial", result: dict[str, Any]) -> str:
        decision = super().on_trial_result(tune_controller, trial, result)
        # Its value is that of a whole training, or others would look better than it by having trained longer.
        return self.CONTINUE if trial.config.get(GIVEN) else decision

    def _reported_objectives(self, trial: "Trial") -> list[float]:
        """Return the best value so far at each evaluation that an ended trial reported to Tune."""
        reported, folder = int(trial.last_result.get(EVALUATION, 0)), self._trials_folder / trial.trial_id
        record = TrialRecord.load(folder)
        found = evaluations(folder / record.run, self._target)[:reported] if record is not None else []
        return list(accumulate((record[self._target] for record in found), max if self._is_maximized else min))


class Population(PopulationBasedTraining):
    """Population based training beside the given recipe's trial, which keeps its own values to its end."""

    def on_trial_result(self, tune_controller: "TuneController", trial: "Trial", result: dict[str, Any]) -> str:
        if trial.config.get(GIVEN):
            return self.CONTINUE
        return super().on_trial_result(tune_controller, trial, result)


def _population_based(settings: SweepSettings) -> Strategy:
    from ray.tune.search.basic_variant import BasicVariantGenerator

    seed = settings.recipe.resolve().train.seed
    parameters = settings.space.parameters
    domains = {name: _domain(parameter) for name, parameter in parameters.items()}
    # Tune moves to a neighbour in a list; it would multiply the values of a domain.
    choices = {name: list(parameter.labels) for name, parameter in parameters.items() if parameter.labels}
    own = own_assignment(settings.space, settings.recipe)
    scheduler = Population(
        time_attr=EVALUATION,
        metric=OBJECTIVE,
        mode=settings.mode,
        perturbation_interval=1,
        hyperparam_mutations={**domains, **choices},
        custom_explore_fn=partial(_within_bounds, settings.space),
    )
    # The population begins from the recipe, too, if it can.
    points = [{GIVEN: True}, *([own] if settings.space.contains(own) else [])]
    searcher = BasicVariantGenerator(random_state=seed, points_to_evaluate=points)
    return Strategy(searcher, scheduler, {**domains, GIVEN: False}, settings.trials)


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
