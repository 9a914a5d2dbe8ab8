"""Sources whose rows are examples with a label: parse, split, fit vocabularies, encode, write."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from rayrec.common.errors import ConfigError
from rayrec.config.preprocess import PreprocessConfig, RowsPreprocessConfig
from rayrec.features.schema import CategoricalFeature, NumericFeature, Schema
from rayrec.features.transforms import Fill, HashIds, Log, Vocabulary
from rayrec.ingest.dataset import SplitInfo
from rayrec.preprocessing.extracted import ExtractedChunk
from rayrec.preprocessing.rows.inputs import Inputs, resolve_inputs
from rayrec.preprocessing.rows.splits import hashed_splits, rows_by_day, split_rows
from rayrec.preprocessing.rows.text_reader import RawColumns, TextFormat, TextReader
from rayrec.preprocessing.segments import Piece
from rayrec.preprocessing.vocabularies.fit import fit_vocabularies
from rayrec.preprocessing.vocabularies.long import join_long_vocabularies
from rayrec.preprocessing.workspace import Workspace, WrittenDataset, segments_by_split
from rayrec.preprocessing.write.encode import RowEncoder, write_in_order
from rayrec.preprocessing.write.shuffle import RowMapping, write_shuffled
from rayrec.random.permutation import BlockwisePermutation, HashPermutation
from rayrec.raw.files import InputFile


class RowsJob:
    """A job whose inputs and config were checked."""

    def __init__(
        self, text_format: TextFormat, config: PreprocessConfig, inputs: Mapping[str | None, Sequence[str]]
    ) -> None:
        """`config` is a `RowsPreprocessConfig`. Raises UserError on inputs or a config that cannot work."""
        assert isinstance(config, RowsPreprocessConfig)
        self._config = config
        self._format = text_format
        _check_columns(config, self._format.columns)
        self._inputs: Inputs = resolve_inputs(config, self._format, inputs)

    @property
    def files(self) -> tuple[InputFile, ...]:
        return self._inputs.files

    @property
    def is_resumable(self) -> bool:
        return False

    def write(self, workspace: Workspace) -> WrittenDataset:
        """Write vocabularies, splits and bad rows. Raises UserError."""
        config, spark, folder, progress = self._config, workspace.spark, workspace.folder, workspace.progress
        reader = TextReader(self._format, (True,) * len(self.files))
        splits_by_hash = hashed_splits(config.split, config.seed)
        extracted, rejected = workspace.extract(reader, self.files, splits_by_hash, config.max_rejected_fraction)

        pieces = split_rows(config.split, extracted, self._inputs.splits, self._inputs.days)
        segments = segments_by_split(pieces)
        fitted_on = [s for split, of_split in segments.items() if split == "train" or config.vocabulary_from == "all"
                     for s in of_split]  # fmt: skip
        limits = {name: config.frequency_limit_of(name) for name in self._format.columns.categorical}
        vocabularies = fit_vocabularies(spark, fitted_on, limits, folder, workspace.scratch, progress)
        schema = dataset_schema(self._format.columns, config, vocabularies)
        long = {name: folder / v.file for name, v in vocabularies.items() if v.size > config.broadcast_limit}
        every_segment = [segment for of_split in segments.values() for segment in of_split]
        joined = join_long_vocabularies(spark, every_segment, long, config.broadcast_limit, workspace.scratch, progress)

        encoder = RowEncoder(schema, folder, joined, (pa.field(schema.label, pa.float32(), False),))
        splits: dict[str, SplitInfo] = {}
        for split, of_split in segments.items():
            permutation = self._permutation(pieces, extracted) if split == "train" else None
            if permutation is None:
                splits[split] = write_in_order(spark, encoder, split, of_split, config.layout, progress)
            else:
                splits[split] = write_shuffled(spark, encoder, split, of_split, permutation, config.layout, progress)
        return WrittenDataset(schema, splits, rejected)

    def _permutation(
        self, pieces: Mapping[str, Sequence[Piece]], extracted: Sequence[ExtractedChunk]
    ) -> RowMapping | None:
        """What moves the rows of train; None where they stay in the order of the input."""
        config = self._config
        match config.order:
            case "input":
                return None
            case "total_random":
                return HashPermutation(sum(piece.rows for piece in pieces["train"]), config.seed)
            case "day_random":
                return BlockwisePermutation(rows_by_day(pieces["train"], extracted, self._inputs.days), config.seed)


def dataset_schema(columns: RawColumns, config: RowsPreprocessConfig, vocabularies: Mapping[str, Vocabulary]) -> Schema:
    """The schema of the dataset: the transforms that `config` asks for, with the vocabularies of the features."""
    numeric = (Log(), Fill()) if config.numeric_log else (Fill(),)
    features: list[NumericFeature | CategoricalFeature] = [
        NumericFeature(name=name, transforms=numeric) for name in columns.numeric
    ]
    for name in columns.categorical:
        transforms: tuple[Vocabulary | HashIds, ...] = (vocabularies[name],)
        cardinality = vocabularies[name].size + 1
        if config.max_table_size is not None and cardinality > config.max_table_size:
            transforms += (HashIds(buckets=config.max_table_size),)
            cardinality = config.max_table_size
        features.append(CategoricalFeature(name=name, transforms=transforms, cardinality=cardinality))
    return Schema(label=columns.label, features=tuple(features))


def _check_columns(config: RowsPreprocessConfig, columns: RawColumns) -> None:
    if isinstance(config.frequency_limit, int):
        return
    unknown = sorted(set(config.frequency_limit) - set(columns.categorical) - {"default"})
    if unknown:
        known = f"{columns.categorical[0]} to {columns.categorical[-1]}"
        raise ConfigError(f"preprocess.frequency_limit: no categorical column '{unknown[0]}'; there are {known}")
