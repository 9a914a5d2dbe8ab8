"""How a model is evaluated."""

from pydantic import Field, PositiveInt

from rayrec.config.base import Config


class EvaluateConfig(Config):
    global_batch_size: PositiveInt = 65_536
    exact_auc_rows: PositiveInt = 100_000_000
    """Up to this many rows AUC is exact (all scores sorted); beyond, from a histogram with a stated error bound."""
    auc_bins: PositiveInt = Field(1_048_576, ge=2)
