"""The pydantic models of a recipe that belong to no source and no model."""

from rayrec.config.base import Config
from rayrec.config.evaluate import EvaluateConfig, RankingConfig
from rayrec.config.model import ModelConfig
from rayrec.config.preprocess import PreprocessConfig, RowsPreprocessConfig
from rayrec.config.serve import ServeConfig
from rayrec.config.source import SourceConfig
from rayrec.config.train import TrainConfig

__all__ = [
    "Config",
    "EvaluateConfig",
    "ModelConfig",
    "PreprocessConfig",
    "RankingConfig",
    "RowsPreprocessConfig",
    "ServeConfig",
    "SourceConfig",
    "TrainConfig",
]
