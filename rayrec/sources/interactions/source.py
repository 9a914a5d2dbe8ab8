"""Interactions of users with items as a source."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayrec.common.progress import Progress
from rayrec.common.text import format_number
from rayrec.config import SourceConfig
from rayrec.features.schema import Schema
from rayrec.ingest.dataset import Dataset
from rayrec.raw.input_files import InputFile
from rayrec.raw.rows import ExampleReader
from rayrec.recipes import Recipe
from rayrec.sources.generated_files import GeneratorOptions
from rayrec.sources.interactions.config import InteractionPreprocessConfig, InteractionSourceConfig
from rayrec.sources.interactions.generator import FILE, generate
from rayrec.sources.interactions.interaction_job import InteractionJob
from rayrec.sources.interactions.interaction_reader import InteractionReader, has_lists
from rayrec.sources.interactions.people import generate_people
from rayrec.sources.source import GeneratedData, InputPaths, Source


class InteractionSource(Source):
    """Files with a user, an item and perhaps a time in each row."""

    generated = GeneratedData(FILE, "leave_one_out", "test", has_days=True, drifts_in_a_file=True)
    can_extend = True

    def job(self, recipe: Recipe, inputs: InputPaths, parent: Dataset | None = None) -> InteractionJob:
        assert isinstance(recipe.source, InteractionSourceConfig)
        assert isinstance(recipe.preprocess, InteractionPreprocessConfig)
        return InteractionJob(recipe.source, recipe.preprocess, inputs, parent)

    def reader(self, config: SourceConfig, schema: Schema, files: Sequence[InputFile]) -> ExampleReader:
        assert isinstance(config, InteractionSourceConfig)
        if has_lists(config, files[0]):
            return InteractionReader()
        return InteractionReader.of_tables(config, files, is_scored=True)

    def generate(self, output: Path, options: GeneratorOptions, progress: Progress) -> dict[str, Any]:
        if options.drift and options.days is None:
            return generate_people(output, options, progress)
        return generate(output, options, progress)

    def describe_quality(self, metrics: Mapping[str, float | None], generated: Mapping[str, Any]) -> str:
        rows, lists, hr = metrics["rows"], metrics["groups"], metrics["hr@10"]
        assert rows and lists and hr is not None
        return f"Test HR@10: {format_number(hr)}; random order gives {format_number(10 * lists / rows)}."


SOURCE = InteractionSource()
