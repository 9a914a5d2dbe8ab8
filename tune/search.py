"""From a kind of search to Ray Tune's searcher, scheduler and space."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tune.check import default_assignment
from tune.settings import SweepSettings
from tune.space import Parameter, Scalar, Space
from tune.trial import EVALUATION, OBJECTIVE

if TYPE_CHECKING:
    import optuna
    from ray.tune.schedulers import TrialScheduler
    from ray.tune.search import SearchAlgorithm, Searcher


@dataclass(frozen=True)
class Strategy:
    """What Tune is given."""

    searcher: "Searcher | SearchAlgorithm"
    scheduler: "TrialScheduler | None"
    param_space: dict[str, Any]
    trials: int


def strategy(settings: SweepSettings, evaluations: int) -> Strategy:
    """The searcher and the scheduler; `evaluations` is how many a whole trial has.

    The first trial is the recipe as it stands, where the space contains it.
    """
    if settings.search == "pbt":
        return _population_based(settings)
    trials = sum(1 for _ in settings.space.grid()) if settings.search == "grid" else settings.trials
    return Strategy(_sampler(settings), _scheduler(settings, evaluations), {}, trials)


def _sampler(settings: SweepSettings) -> "Searcher":
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = settings.recipe.resolve().train.seed
    if settings.search == "grid":
        points = list(settings.space.grid())
        sampler: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(seed=seed)
    else:
        default = default_assignment(settings.space, settings.recipe)
        points = [default] if default is not None else []
        if settings.search == "random":
            sampler = optuna.samplers.RandomSampler(seed=seed)
        else:
            # Of few trials Optuna's own ten would leave hardly any to the model.
            sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=min(10, max(4, settings.trials // 4)))
    return OptunaSearch(
        space=_Draw(settings.space),
        metric=OBJECTIVE,
        mode=settings.mode,
        points_to_evaluate=points or None,
        sampler=sampler,
    )


@dataclass(frozen=True)
class _Draw:
    """Optuna's way to ask for an assignment: parameters are drawn one after the other, as their conditions hold."""

    space: Space

    def __call__(self, trial: "optuna.Trial") -> None:
        self.space.draw(partial(_suggest, trial))


def _suggest(trial: "optuna.Trial", name: str, parameter: Parameter) -> Scalar:
    if parameter.integer is not None:
        return trial.suggest_int(name, *parameter.integer)
    if parameter.loguniform is not None:
        return trial.suggest_float(name, *parameter.loguniform, log=True)
    if parameter.uniform is not None:
        return trial.suggest_float(name, *parameter.uniform)
    return trial.suggest_categorical(name, parameter.labels)


def _scheduler(settings: SweepSettings, evaluations: int) -> "TrialScheduler | None":
    from tune.asha import RememberingASHA

    if settings.scheduler == "none":
        return None
    return RememberingASHA(settings, evaluations)


def _population_based(settings: SweepSettings) -> Strategy:
    from ray.tune.schedulers import PopulationBasedTraining
    from ray.tune.search.basic_variant import BasicVariantGenerator

    seed = settings.recipe.resolve().train.seed
    parameters = settings.space.parameters
    domains = {name: _domain(parameter) for name, parameter in parameters.items()}
    # Of a list Tune takes neighbours; a domain's values it would multiply.
    choices = {name: list(parameter.labels) for name, parameter in parameters.items() if parameter.labels}
    default = default_assignment(settings.space, settings.recipe)
    scheduler = PopulationBasedTraining(
        time_attr=EVALUATION,
        metric=OBJECTIVE,
        mode=settings.mode,
        perturbation_interval=1,
        hyperparam_mutations={**domains, **choices},
        custom_explore_fn=partial(_within_bounds, settings.space),
    )
    searcher = BasicVariantGenerator(random_state=seed, points_to_evaluate=[default] if default is not None else None)
    return Strategy(searcher, scheduler, domains, settings.trials)


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
    """Perturbation multiplies by 0.8 or 1.2, which may lead out of a range."""
    bounded = dict(config)
    for name, parameter in space.parameters.items():
        if parameter.bounds is not None:
            low, high = parameter.bounds
            bounded[name] = min(max(config[name], low), high)
    return bounded
