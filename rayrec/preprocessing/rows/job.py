"""Sources whose rows are examples with a label: parse, split, fit vocabularies, encode, write."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from rayrec.config.preprocess import HashSplitConfig, PreprocessConfig, RowsPreprocessConfig
from rayrec.config.transforms import Fill, HashIds, Log, Vocabulary
from rayrec.features.schema import CategoricalFeature, NumericFeature, Schema
from rayrec.ingest.dataset import SplitInfo
from rayrec.preprocessing.extract import ExtractedChunk, extract
from rayrec.preprocessing.rows.inputs import resolve_inputs
from rayrec.preprocessing.rows.row_splits import HashedSplits, rows_by_day, split_rows
from rayrec.preprocessing.rows.text_reader import DelimitedText, RawColumns, TextReader
from rayrec.preprocessing.segments import Piece, segments_by_split
from rayrec.preprocessing.vocabularies.fit import fit_vocabularies
from rayrec.preprocessing.vocabularies.long import join_long_vocabularies
from rayrec.preprocessing.workspace import Workspace, WrittenDataset
from rayrec.preprocessing.write.encode import RowEncoder, write_in_order
from rayrec.preprocessing.write.shuffle import NewPositions, write_shuffled
from rayrec.random.permutation import BlockwisePermutation, HashPermutation


class RowsJob:
    """A job whose inputs and config were checked."""

    is_resumable = False

    def __init__(
        self, text_format: DelimitedText, config: PreprocessConfig, inputs: Mapping[str | None, Sequence[str]]
    ) -> None:
        """`config` is a `RowsPreprocessConfig`. Raises UserError on inputs or a config that cannot work."""
        assert isinstance(config, RowsPreprocessConfig)
        self._config = config
        self._format = text_format
        self._inputs = resolve_inputs(config, text_format, inputs)
        self.files = self._inputs.files

    def write(self, workspace: Workspace) -> WrittenDataset:
        """Write vocabularies, splits and bad rows. Raises UserError."""
        config = self._config
        reader = TextReader(self._format, (True,) * len(self.files))
        hashed = HashedSplits(config.split, config.seed) if isinstance(config.split, HashSplitConfig) else None
        extracted, rejected = extract(workspace, reader, self.files, config.max_rejected_fraction, hashed)

        pieces = split_rows(config.split, extracted, self._inputs.splits, self._inputs.days)
        segments = segments_by_split(pieces)
        columns = self._format.columns
        limits = dict.fromkeys(columns.categorical, config.frequency_limit)
        vocabularies = fit_vocabularies(workspace, segments["train"], limits)
        schema = dataset_schema(columns, config, vocabularies)
        every_segment = [segment for of_split in segments.values() for segment in of_split]
        joined = join_long_vocabularies(workspace, every_segment, schema, config.broadcast_limit)

        encoder = RowEncoder(schema, workspace.folder, joined, (pa.field(schema.label, pa.float32(), False),))
        splits: dict[str, SplitInfo] = {}
        for split, of_split in segments.items():
            order = self._order_of_train(pieces["train"], extracted) if split == "train" else None
            if order is None:
                splits[split] = write_in_order(workspace, encoder.encode, schema.label, split, of_split, config.layout)
            else:
                splits[split] = write_shuffled(workspace, encoder, split, of_split, order, config.layout)
        return WrittenDataset(schema, splits, rejected)

    def _order_of_train(self, pieces: Sequence[Piece], extracted: Sequence[ExtractedChunk]) -> NewPositions | None:
        """The new positions of the rows of `train`; None if they keep the order of the input."""
        config = self._config
        match config.order:
            case "input":
                return None
            case "total_random":
                return HashPermutation(sum(piece.rows for piece in pieces), config.seed)
            case "day_random":
                return BlockwisePermutation(rows_by_day(pieces, extracted, self._inputs.days), config.seed)


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
