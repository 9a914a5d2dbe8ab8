"""Sources whose rows are interactions of a user with an item: parse, order by user and time, cut, number, draw, write.

Known positives are the rows of `train`; a held-out interaction is a list of rows: itself, then its negatives.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from rayrec.common.errors import UserError
from rayrec.common.progress import Progress
from rayrec.features.schema import CategoricalFeature, InteractionColumns, Schema
from rayrec.features.transforms import Vocabulary
from rayrec.ingest.dataset import SplitInfo
from rayrec.preprocessing.extracted import ExtractedChunk
from rayrec.preprocessing.segments import Piece, Segment, make_segments
from rayrec.preprocessing.vocabularies.fit import fit_vocabularies
from rayrec.preprocessing.vocabularies.long import join_long_vocabularies
from rayrec.preprocessing.workspace import Workspace, WrittenDataset, segments_by_split
from rayrec.preprocessing.write.encode import RowEncoder, SegmentEncoder, write_in_order
from rayrec.raw.files import InputFile
from rayrec.sources.interactions.config import (
    InteractionPreprocessConfig,
    InteractionSourceConfig,
    LeaveOneOutSplitConfig,
)
from rayrec.sources.interactions.drawn_negatives import NegativeSampler
from rayrec.sources.interactions.histories import LISTED, SPLIT, TEST, TRAIN, VALIDATION, HistoryCounts, write_histories
from rayrec.sources.interactions.inputs import InteractionInputs, resolve_interactions
from rayrec.sources.interactions.layout import ITEM, LABEL, USER
from rayrec.sources.interactions.ranking_lists import GivenLists, HeldOut, OrderedRows, Rows, write_rows

GROUP = "group"
_HELD_OUT = {"validation": VALIDATION, "test": TEST}
_HISTORIES = "histories"


class InteractionJob:
    """A checked job."""

    def __init__(
        self,
        source: InteractionSourceConfig,
        config: InteractionPreprocessConfig,
        inputs: Mapping[str | None, Sequence[str]],
    ) -> None:
        """Raises UserError on inputs that cannot work."""
        self._config = config
        self._inputs: InteractionInputs = resolve_interactions(source, config.split, inputs)

    @property
    def files(self) -> tuple[InputFile, ...]:
        return self._inputs.files

    @property
    def is_resumable(self) -> bool:
        return False

    def write(self, workspace: Workspace) -> WrittenDataset:
        """Write vocabularies, splits and bad rows. Raises UserError."""
        config, progress = self._config, workspace.progress
        extracted, rejected = workspace.extract(self._inputs.reader, self.files, None, config.max_rejected_fraction)
        pieces = {split: self._pieces(extracted, split) for split in ("train", *_HELD_OUT)}
        given = {split: of_split for split, of_split in pieces.items() if split != "train" and of_split}
        listed = [segment for of_split in given.values() for segment in make_segments(of_split)]
        histories, counts = write_histories(workspace, make_segments(pieces["train"]), listed, config.split)
        _report(progress, counts, config)

        segments = segments_by_split({_HISTORIES: histories, **given})
        limits = {USER: 1, ITEM: 1}
        vocabularies = fit_vocabularies(
            workspace.spark, segments[_HISTORIES], limits, workspace.folder, workspace.scratch, progress
        )
        schema = interactions_schema(vocabularies)
        split_field, label_field = pa.field(SPLIT, pa.int8(), False), pa.field(LABEL, pa.float32(), False)
        encoder = self._encoder(workspace, schema, segments, split_field)
        held_out = self._held_out(vocabularies[ITEM].size)
        drawn = write_rows(workspace, segments[_HISTORIES], encoder, Rows(schema), held_out)
        for split, written in drawn.items():
            if written.short_lists:
                progress.message(
                    f"{split}: {written.short_lists:,} users know so many items that fewer than "
                    f"{config.split.negatives} negatives are left; their lists are shorter"
                )

        given_lists = GivenLists(RowEncoder(schema, workspace.folder, encoder.long_vocabularies, (label_field,)))
        sources: dict[str, tuple[SegmentEncoder, list[Segment]]] = {
            **{split: (given_lists, segments[split]) for split in given},
            **{s: (OrderedRows(schema, workspace.folder), make_segments(w.pieces)) for s, w in drawn.items()},
        }
        splits: dict[str, SplitInfo] = {
            split: write_in_order(workspace.spark, sources[split][0], split, sources[split][1], config.layout, progress)
            for split in ("train", *_HELD_OUT)
            if split in sources
        }
        return WrittenDataset(schema, splits, rejected)

    def _pieces(self, extracted: Sequence[ExtractedChunk], split: str) -> list[Piece]:
        """The parsed rows of the files of a split."""
        chunks = [chunk for chunk in extracted if self._inputs.splits[chunk.chunk.file_index] == split]
        return [Piece(path, 0, rows) for chunk in chunks for path, rows in chunk.rows.values() if rows]

    def _encoder(
        self, workspace: Workspace, schema: Schema, segments: Mapping[str, Sequence[Segment]], kept: pa.Field
    ) -> RowEncoder:
        """What encodes histories, with long vocabularies joined for all segments."""
        limit = self._config.broadcast_limit
        long = {
            feature.name: workspace.folder / transform.file
            for feature in schema.categorical
            for transform in feature.transforms
            if isinstance(transform, Vocabulary) and transform.size > limit
        }
        every_segment = [segment for of_split in segments.values() for segment in of_split]
        joined = join_long_vocabularies(
            workspace.spark, every_segment, long, limit, workspace.scratch, workspace.progress
        )
        return RowEncoder(schema, workspace.folder, joined, (kept,))

    def _held_out(self, num_items: int) -> dict[str, HeldOut]:
        """The splits whose negatives are drawn, with a sampler each: a user's lists are drawn apart."""
        split, seed = self._config.split, self._config.seed
        names = [*(["validation"] if split.validation else [])]
        names += ["test"] if isinstance(split, LeaveOneOutSplitConfig) else []
        known = (TRAIN, VALIDATION, TEST, LISTED) if split.sampling == "distinct" else (TRAIN,)
        return {
            name: HeldOut(
                _HELD_OUT[name],
                # The lists of a user differ by split, and from those of every other small seed.
                NegativeSampler(num_items, split.negatives, split.sampling, seed + (_HELD_OUT[name] << 32)),
                known,
            )
            for name in names
        }


def interactions_schema(vocabularies: Mapping[str, Vocabulary]) -> Schema:
    """The schema of a dataset of interactions, given the vocabularies of user and item."""
    features = tuple(
        CategoricalFeature(name=name, transforms=(vocabularies[name],), cardinality=vocabularies[name].size + 1)
        for name in (USER, ITEM)
    )
    interactions = InteractionColumns(user=USER, item=ITEM)
    return Schema(label=LABEL, group=GROUP, features=features, interactions=interactions)


def _report(progress: Progress, counts: HistoryCounts, config: InteractionPreprocessConfig) -> None:
    """Say what was left out. Raises UserError where nothing is left."""
    if isinstance(config.split, LeaveOneOutSplitConfig) and counts.dropped_users:
        dropped = (
            f"{counts.dropped_users:,} users with fewer than {config.split.min_interactions} interactions "
            f"({counts.dropped_rows:,} rows) dropped"
        )
        if counts.train == 0:
            raise UserError(f"preprocess.split.min_interactions: {dropped}, which leaves none; lower it")
        progress.message(dropped)
    if counts.train == 0:
        raise UserError("preprocess.split: no good row is left for train; give more rows")
    if counts.repeated:
        progress.message(f"{counts.repeated:,} repeated interactions of a user with an item dropped")
    if counts.short_users:
        progress.message(f"{counts.short_users:,} users with too few interactions to hold one out stay in train")
