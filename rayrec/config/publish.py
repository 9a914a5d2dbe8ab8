"""The section `publish` of a recipe: when the model of a new day takes the place of the one that serves."""

from pydantic import NonNegativeFloat, PositiveInt

from rayrec.config.base import Config


class PublishConfig(Config):
    """Conditions for publishing the model of a new day, measured on held-out rows, and how it is written."""

    max_loss_increase: NonNegativeFloat = 0.01
    """Largest relative increase of log loss over the serving model's, beyond two standard errors."""
    max_miscalibration: NonNegativeFloat = 0.25
    """Largest relative difference between predicted and actual positives, beyond two standard errors. Not for models
    of interactions.
    """
    max_drift: NonNegativeFloat | None = 5.0
    """Largest stability index of a feature against the day before, beyond chance. Weekdays, days and months are
    compared in their missing values only. `null`: no check.
    """
    full_every: PositiveInt = 20
    """Interval, in versions, at which one is written in full instead of as a delta."""
    keep_days: PositiveInt = 30
    """Number of latest days whose datasets, runs and versions are kept."""
