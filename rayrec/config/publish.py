"""The section `publish` of a recipe: when the model of a new day takes the place of the one that serves."""

from pydantic import NonNegativeFloat, PositiveInt

from rayrec.config.base import Config


class PublishConfig(Config):
    """What a new model must reach on the held-out rows of its day, and how it is written."""

    max_loss_increase: NonNegativeFloat = 0.01
    """Its log loss may exceed that of the serving model by this share; what two standard errors of the difference
    explain counts as no excess."""
    max_miscalibration: NonNegativeFloat = 0.25
    """The sum of its probabilities may differ from the number of positives by this factor less 1, and by what two
    standard errors explain. Not asked of models of interactions, whose negatives are drawn."""
    max_drift: NonNegativeFloat | None = 5.0
    """The stability index that a feature of the new day may have against the day before, beyond what chance explains.
    One whose values are suddenly missing, or written otherwise, has 8 and more; one whose values come and go, such as
    users, may have 3. None looks at no feature."""
    full_every: PositiveInt = 20
    """Each version that is a multiple of this is written in full, the others as what differs from the one before."""
    keep_days: PositiveInt = 30
    """The latest days whose dataset and run are kept, and whose versions can be gone back to; of older ones the figures
    stay."""
