"""How much each parameter of a search mattered."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tune.outcome import TrialOutcome
from tune.space import Parameter, Space

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_FEWEST_TRIALS = 4


def importances(space: Space, outcomes: Sequence[TrialOutcome], *, is_maximized: bool) -> dict[str, float]:
    """Shares that add up to 1, the largest first, by Optuna's PED-ANOVA (Watanabe et al. 2023, arXiv:2304.10255).

    A share says how far the values of the better trials differ from those of all. Only of parameters that every
    evaluated trial has, in different values; empty where trials are few.
    """
    import optuna

    evaluated = [outcome for outcome in outcomes if outcome.value is not None]
    names = [
        name
        for name in space.names
        if all(name in o.assignment for o in evaluated) and len({o.assignment[name] for o in evaluated}) > 1
    ]
    if len(evaluated) < _FEWEST_TRIALS or not names or len({o.value for o in evaluated}) == 1:
        return {}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize" if is_maximized else "minimize")
    distributions = {name: _distribution(space.parameters[name]) for name in names}
    for outcome in evaluated:
        parameters = {name: outcome.assignment[name] for name in names}
        study.add_trial(optuna.trial.create_trial(params=parameters, distributions=distributions, value=outcome.value))
    shares = optuna.importance.get_param_importances(study, params=names)
    return dict(sorted(shares.items(), key=lambda item: item[1], reverse=True))


def _distribution(parameter: Parameter) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if parameter.integer is not None:
        return IntDistribution(*parameter.integer)
    if parameter.loguniform is not None:
        return FloatDistribution(*parameter.loguniform, log=True)
    if parameter.uniform is not None:
        return FloatDistribution(*parameter.uniform)
    return CategoricalDistribution(parameter.labels)
