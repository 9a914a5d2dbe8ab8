"""The section `publish` of a recipe: when the model of a new day takes the place of the one that serves."""

from pydantic import NonNegativeFloat, PositiveInt

from rayrec.config.base import Config


class PublishConfig(Config):
    """What a new model must reach on the held-out rows of its day, and how it is written."""

    max_loss_increase: NonNegativeFloat = 0.01
    """The share by which the new model's log loss may exceed that of the serving model; what two standard errors of the
    difference explain counts as no excess."""
    max_miscalibration: NonNegativeFloat = 0.25
    """The factor, less 1, by which the sum of the new model's probabilities may differ from the number of positives,
    beyond what two standard errors explain. Models of interactions are not asked, as their negatives are drawn."""
    max_drift: NonNegativeFloat | None = 5.0
    """The stability index that a feature of the new day may have against the day before, beyond what chance explains.
    One whose values are suddenly missing, or written otherwise, has 8 and more; one whose values come and go, such as
    users, may have 3. None looks at no feature."""
    full_every: PositiveInt = 20
    """Each version that is a multiple of this is written in full, the others as what differs from the one before."""
    keep_days: PositiveInt = 30
    """The latest days whose dataset and run are kept, and whose versions can be gone back to; of older ones the figures
    stay."""
