"""The pydantic models of a recipe; `load_recipe` reads one with overrides applied."""

from rayrec.config.base import Config
from rayrec.config.evaluate import EvaluateConfig, RankingConfig
from rayrec.config.model import DCNv2Config, DLRMConfig, ModelConfig, NeuMFConfig, WideDeepConfig
from rayrec.config.preprocess import DisplayPreprocessConfig, InteractionPreprocessConfig, PreprocessConfig
from rayrec.config.recipe import Recipe, RecipeContent, dump_recipe, load_recipe, read_recipe, shipped_recipes
from rayrec.config.serve import ServeConfig
from rayrec.config.source import CriteoSourceConfig, MovieLensSourceConfig, OutbrainSourceConfig, SourceConfig
from rayrec.config.train import TrainConfig

__all__ = [
    "Config",
    "CriteoSourceConfig",
    "DCNv2Config",
    "DLRMConfig",
    "DisplayPreprocessConfig",
    "EvaluateConfig",
    "InteractionPreprocessConfig",
    "ModelConfig",
    "MovieLensSourceConfig",
    "OutbrainSourceConfig",
    "NeuMFConfig",
    "PreprocessConfig",
    "RankingConfig",
    "Recipe",
    "RecipeContent",
    "ServeConfig",
    "SourceConfig",
    "TrainConfig",
    "WideDeepConfig",
    "dump_recipe",
    "load_recipe",
    "read_recipe",
    "shipped_recipes",
]
