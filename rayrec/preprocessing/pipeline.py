"""From raw files to a dataset folder: parse, split, fit vocabularies, encode, write.

Stages hand rows to each other as Parquet files in a scratch folder, so memory stays flat and a task that runs again
finds its input. Everything lies in an unfinished folder beside the output, which takes the output's name at the end.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rayrec.common.errors import ConfigError
from rayrec.common.files import new_folder, require_absent
from rayrec.common.progress import Progress, SilentProgress
from rayrec.config import Recipe
from rayrec.config.preprocess import PreprocessConfig
from rayrec.features.schema import CategoricalFeature, NumericFeature, Schema
from rayrec.features.transforms import Fill, HashIds, Log, Vocabulary
from rayrec.ingest.dataset import REJECTED_FOLDER, VOCABULARY_FOLDER, Manifest, SourceFile, SplitInfo
from rayrec.preprocessing.encode import Permutation, RowEncoder, write_in_order, write_shuffled
from rayrec.preprocessing.extract import check_rejected, extract, write_rejected
from rayrec.preprocessing.extracted import ExtractedChunk
from rayrec.preprocessing.inputs import Inputs, resolve_inputs
from rayrec.preprocessing.long_vocabularies import join_long_vocabularies
from rayrec.preprocessing.order import BlockwisePermutation
from rayrec.preprocessing.order import Permutation as TotalPermutation
from rayrec.preprocessing.segments import Piece, Segment, make_segments
from rayrec.preprocessing.spark_tasks import no_tasks_left_behind, user_errors
from rayrec.preprocessing.splits import hashed_splits, rows_by_day, split_rows
from rayrec.preprocessing.vocabularies import fit_vocabularies, vocabulary_file
from rayrec.sources.files import plan_chunks
from rayrec.sources.registry import RawColumns, TextSource, text_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LEAST_CHUNK_BYTES, _MOST_CHUNK_BYTES = 2**22, 2**26
_SCRATCH = ".scratch"


class Preprocessing:
    """A checked job: what can be refused without Spark is refused by the constructor."""

    def __init__(self, recipe: Recipe, inputs: Mapping[str | None, Sequence[str]], output: Path) -> None:
        """`inputs`: paths (file, folder, glob or URI) by split, or all under None where splits do not come as files.

        Raises UserError on inputs, a recipe or an output that cannot work.
        """
        self._recipe = recipe
        self._source: TextSource = text_source(recipe.source)
        self._output = Path(output).absolute()
        require_absent(self._output)
        _check_columns(recipe.preprocess, self._source.columns)
        self._inputs: Inputs = resolve_inputs(recipe, self._source, inputs)

    def run(self, spark: "SparkSession", progress: Progress | None = None) -> Manifest:
        """Write the dataset folder. Whatever fails, the output stays as it was. Raises UserError."""
        with user_errors(), new_folder(self._output) as folder, no_tasks_left_behind(spark):
            return self._write(spark, folder, progress or SilentProgress())

    def _write(self, spark: "SparkSession", folder: Path, progress: Progress) -> Manifest:
        config = self._recipe.preprocess
        scratch = folder / _SCRATCH
        scratch.mkdir()
        (folder / VOCABULARY_FOLDER).mkdir()
        extracted = self._extract(spark, scratch, progress)
        rejected = check_rejected(extracted, config.max_rejected_fraction)
        if rejected:
            write_rejected(spark, extracted, folder / REJECTED_FOLDER)

        pieces = split_rows(config.split, extracted, self._inputs.splits, self._inputs.days)
        segments = _segments(pieces)
        fitted_on = [s for split, of_split in segments.items() if split == "train" or config.vocabulary_from == "all"
                     for s in of_split]  # fmt: skip
        limits = {name: config.frequency_limit_of(name) for name in self._source.columns.categorical}
        sizes = fit_vocabularies(spark, fitted_on, limits, folder, scratch, progress)
        schema = dataset_schema(self._source.columns, config, sizes)
        long = {n: folder / vocabulary_file(n, size) for n, size in sizes.items() if size > config.broadcast_limit}
        every_segment = [segment for of_split in segments.values() for segment in of_split]
        joined = join_long_vocabularies(spark, every_segment, long, config.broadcast_limit, scratch, progress)

        encoder = RowEncoder(schema, folder, joined)
        splits: dict[str, SplitInfo] = {}
        for split, of_split in segments.items():
            permutation = self._permutation(pieces, extracted) if split == "train" else None
            if permutation is None:
                splits[split] = write_in_order(spark, encoder, split, of_split, config.layout, progress)
            else:
                splits[split] = write_shuffled(spark, encoder, split, of_split, permutation, config.layout, progress)

        shutil.rmtree(scratch)
        schema.save(folder)
        sources = tuple(SourceFile(path=f.name, bytes=f.bytes, modified=f.modified) for f in self._inputs.files)
        manifest = Manifest(
            splits=splits, rejected=rejected, sources=sources, config=self._recipe.model_dump(mode="json")
        )
        manifest.save(folder)
        return manifest

    def _extract(self, spark: "SparkSession", scratch: Path, progress: Progress) -> list[ExtractedChunk]:
        total = sum(file.bytes for file in self._inputs.files)
        share = total // (4 * spark.sparkContext.defaultParallelism)
        chunks = plan_chunks(self._inputs.files, min(max(share, _LEAST_CHUNK_BYTES), _MOST_CHUNK_BYTES))
        config = self._recipe.preprocess
        return extract(spark, self._source, chunks, scratch, hashed_splits(config.split, config.seed), progress)

    def _permutation(
        self, pieces: Mapping[str, Sequence[Piece]], extracted: Sequence[ExtractedChunk]
    ) -> Permutation | None:
        """What moves the rows of train; None where they stay in the order of the input."""
        config = self._recipe.preprocess
        match config.order:
            case "input":
                return None
            case "total_random":
                return TotalPermutation(sum(piece.rows for piece in pieces["train"]), config.seed)
            case "day_random":
                return BlockwisePermutation(rows_by_day(pieces["train"], extracted, self._inputs.days), config.seed)


def preprocess(
    spark: "SparkSession",
    recipe: Recipe,
    inputs: Mapping[str | None, Sequence[str]],
    output: Path,
    progress: Progress | None = None,
) -> Manifest:
    """Check and run a `Preprocessing` job on a Spark session."""
    return Preprocessing(recipe, inputs, output).run(spark, progress)


def dataset_schema(columns: RawColumns, config: PreprocessConfig, sizes: Mapping[str, int]) -> Schema:
    """The schema of the dataset: the transforms that `config` asks for, with vocabularies of `sizes` values."""
    numeric = (Log(), Fill()) if config.numeric_log else (Fill(),)
    features: list[NumericFeature | CategoricalFeature] = [
        NumericFeature(name=name, transforms=numeric) for name in columns.numeric
    ]
    for name in columns.categorical:
        size = sizes[name]
        transforms: tuple[Vocabulary | HashIds, ...] = (Vocabulary(file=vocabulary_file(name, size), size=size),)
        cardinality = size + 1
        if config.max_table_size is not None and cardinality > config.max_table_size:
            transforms += (HashIds(buckets=config.max_table_size),)
            cardinality = config.max_table_size
        features.append(CategoricalFeature(name=name, transforms=transforms, cardinality=cardinality))
    return Schema(label=columns.label, features=tuple(features))


def _check_columns(config: PreprocessConfig, columns: RawColumns) -> None:
    if isinstance(config.frequency_limit, int):
        return
    unknown = sorted(set(config.frequency_limit) - set(columns.categorical) - {"default"})
    if unknown:
        known = f"{columns.categorical[0]} to {columns.categorical[-1]}"
        raise ConfigError(f"preprocess.frequency_limit: no categorical column '{unknown[0]}'; there are {known}")


def _segments(pieces: Mapping[str, Sequence[Piece]]) -> dict[str, list[Segment]]:
    """The segments of every split, numbered through."""
    segments: dict[str, list[Segment]] = {}
    for split, of_split in pieces.items():
        segments[split] = make_segments(of_split, sum(len(s) for s in segments.values()))
    return segments
