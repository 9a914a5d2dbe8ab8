"""The pydantic models of a recipe that belong to no source and no model."""

from rayrec.config.base import Config, ModelConfig
from rayrec.config.evaluate import EvaluateConfig, PublishConfig, RankingConfig
from rayrec.config.preprocess import PreprocessConfig, RowsPreprocessConfig, SourceConfig
from rayrec.config.serve import RecommendConfig, ServeConfig
from rayrec.config.train import TrainConfig

__all__ = [
    "Config",
    "EvaluateConfig",
    "ModelConfig",
    "PreprocessConfig",
    "PublishConfig",
    "RankingConfig",
    "RowsPreprocessConfig",
    "RecommendConfig",
    "ServeConfig",
    "SourceConfig",
    "TrainConfig",
]
