"""The base class of a source of data; every source has a folder of its own (docs/adding.md)."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayrec.common.errors import UserError
from rayrec.common.progress import Progress
from rayrec.config import SourceConfig
from rayrec.config.table import TableSourceConfig
from rayrec.features.schema import Schema
from rayrec.ingest.dataset import Dataset
from rayrec.preprocessing.pipeline import PreprocessingJob
from rayrec.preprocessing.rows_job import RowsJob
from rayrec.raw.input_files import InputFile
from rayrec.raw.rows import ExampleReader
from rayrec.raw.table_reader import open_table
from rayrec.recipes import Recipe
from rayrec.sources.generated_files import GeneratorOptions

if TYPE_CHECKING:
    from rayrec.inference.predictor import Predictor
    from rayrec.inference.rank import FeatureLookup

InputPaths = Mapping[str | None, Sequence[str]]
"""Paths (file, folder, glob or URI) by split, or all under None if splits do not come as files."""


@dataclass(frozen=True)
class GeneratedData:
    """Options with which commands use generated files."""

    path: str
    """The input of `preprocess`, relative to the generator's folder."""
    split: str
    """A `preprocess.split.kind` that suits the data."""
    evaluated: str
    """The split that a model is measured on."""
    has_days: bool = False
    """Whether the generator can write a file for each day."""
    drifts_in_a_file: bool = False
    """Whether it can write one file in which people and preferences change."""


class Source(ABC):
    """A kind of data; its `SourceConfig` is in the module `config` of the same folder."""

    generated: GeneratedData | None = None
    """The generator of data with a known truth; None if the source has none."""
    generates_from_recipe = False
    """Whether it generates what a recipe describes, as only a recipe says which columns the data have."""
    can_extend = False
    """Whether its datasets can extend others."""

    @abstractmethod
    def job(self, recipe: Recipe, inputs: InputPaths, parent: Dataset | None = None) -> PreprocessingJob:
        """Return the job that turns raw files into a dataset, which extends `parent` if that is given.

        Raises UserError on wrong inputs or config.
        """

    def recognizes(self, lines: Sequence[str]) -> bool:
        """Tell whether a text file that begins with these lines has the layout of this source and of no other table."""
        return False

    def reader(self, config: SourceConfig, schema: Schema, files: Sequence[InputFile]) -> ExampleReader:
        """Return the reader of examples to score with a model of this schema; they need what features need.

        Raises UserError if a file does not show its columns, or if the files of this source do not hold examples.
        """
        raise UserError(
            f"source.kind '{config.kind}': its raw files hold no examples; preprocess them and give the dataset folder"
        )

    def generate(self, output: Path, options: GeneratorOptions, progress: Progress) -> dict[str, Any]:
        """Write raw rows drawn from a known truth into the new folder `output`; return facts about them.

        Raises UserError.
        """
        raise UserError("source: it has no generator; give raw files of your own")

    def describe_quality(self, metrics: Mapping[str, float | None], generated: Mapping[str, Any]) -> str:
        """Return a sentence on metrics reached on generated data; `generated` is what `generate` returned."""
        return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items() if value is not None)

    def example_request(self, raw: Path) -> dict[str, Any] | None:
        """Return a `:rank` request made from generated data in `raw`; None if the source looks up no features."""
        return None

    def lookup(self, model: "Predictor") -> "FeatureLookup | None":
        """Return what is looked up of candidates by their ids alone; None if requests bring their raw features."""
        return None

    def candidate(self, model: "Predictor") -> str | None:
        """Return the raw feature that names candidates; None if none does, or `lookup` says what names them."""
        return None


class TableSource(Source):
    """A source of files of rows with named columns, an example each; its config is a `TableSourceConfig`."""

    can_extend = True

    def job(self, recipe: Recipe, inputs: InputPaths, parent: Dataset | None = None) -> PreprocessingJob:
        assert isinstance(recipe.source, TableSourceConfig)
        return RowsJob(recipe.source, recipe.preprocess, inputs, parent)

    def reader(self, config: SourceConfig, schema: Schema, files: Sequence[InputFile]) -> ExampleReader:
        assert isinstance(config, TableSourceConfig)
        weights = [feature.inputs[1] for feature in schema.weighted] if config.header is None else []
        needed = {column.name for column in schema.raw_columns}.difference(weights)
        others = [name for name in config.header or weights if name not in needed and name != config.label_column]
        table = open_table(files, config, optional=(config.label_column, *others), needed=needed)
        # What files bring of a side table counts, as in requests.
        needs = [column.name for column in schema.given_columns]
        columns = [c for c in schema.request_columns if c.name in needs or c.name in table.columns.names]
        return table.reader(columns, config.label, needs_label=False, list_lengths=schema.list_lengths)

    def candidate(self, model: "Predictor") -> str | None:
        config = model.recipe.source
        assert isinstance(config, TableSourceConfig)
        return config.candidate if config.candidate in model.raw_rows.columns.names else None
