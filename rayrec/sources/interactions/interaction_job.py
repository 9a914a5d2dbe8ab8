"""Sources whose rows are interactions of a user with an item: parse, order by user and time, cut, number, draw, write.

Known positives are the rows of `train`; a held-out interaction is a list of rows: itself, then its negatives. Each step
is a stage, after the last finished one of which a job that was killed goes on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.common.progress import Progress
from rayrec.config.preprocess import ShardLayoutConfig
from rayrec.config.transforms import Vocabulary
from rayrec.features.feature_kinds import CategoricalFeature
from rayrec.features.hashes import hash_texts
from rayrec.features.schema import InteractionColumns, Schema
from rayrec.ingest.dataset import DROPPED_FOLDER, KNOWN_SPLIT, Dataset, Dropped, SplitInfo, Times
from rayrec.preprocessing.extension import growth_of, require_new
from rayrec.preprocessing.extract import Extracted, extract, pieces_of
from rayrec.preprocessing.numbers.number_fitting import Number, summarize
from rayrec.preprocessing.segments import Piece, Segment, make_segments, read_piece, read_segment, segments_by_split
from rayrec.preprocessing.vocabularies.value_counts import Listing
from rayrec.preprocessing.vocabularies.vocabulary_fitting import fit_vocabularies
from rayrec.preprocessing.workspace import Stages, Workspace, WrittenDataset
from rayrec.preprocessing.write.encode import Encode, RowEncoder, write_in_order
from rayrec.sources.interactions.config import (
    InteractionPreprocessConfig,
    InteractionSourceConfig,
    LeaveOneOutSplitConfig,
)
from rayrec.sources.interactions.drawn_negatives import NegativeSampler
from rayrec.sources.interactions.file_layout import IDS, ITEM, LABEL, TIMESTAMP, USER
from rayrec.sources.interactions.histories import (
    DROPPED,
    EARLIER,
    HISTORIES,
    HISTORY_SCHEMA,
    LISTED,
    SPLIT,
    TEST,
    TRAIN,
    VALIDATION,
    HistoryCounts,
    held_out_codes,
    write_histories,
)
from rayrec.sources.interactions.interaction_inputs import resolve_interactions
from rayrec.sources.interactions.ranking_lists import HeldOutLists, InteractionRows, encode_lists, read_rows, write_rows
from rayrec.store.parquet import new_parquet, open_parquet

GROUP = "group"
_RAW_ITEM = pa.field(ITEM, pa.string(), False)
_HELD_OUT = {"validation": VALIDATION, "test": TEST}


class InteractionJob:
    """A job whose inputs and config were checked."""

    needs_spark = False

    def __init__(
        self,
        source: InteractionSourceConfig,
        config: InteractionPreprocessConfig,
        inputs: Mapping[str | None, Sequence[str]],
        parent: Dataset | None = None,
    ) -> None:
        """`parent`: the dataset that is extended. Raises UserError on inputs that cannot work."""
        if parent is not None and isinstance(config.split, LeaveOneOutSplitConfig):
            # A few rows of a user are a short history there alone where they are all of it.
            config = config.model_copy(update={"split": config.split.model_copy(update={"min_interactions": 0})})
        self._config, self._parent = config, parent
        self._inputs = resolve_interactions(source, config.split, inputs)
        self.files = self._inputs.files
        require_new(self.files, parent)

    def write(self, workspace: Workspace) -> WrittenDataset:
        """Write vocabularies, splits and bad rows. Raises UserError."""
        config, progress, most = self._config, workspace.progress, self._config.max_rejected_fraction
        stages = Stages(workspace.scratch, progress)
        extracted, rejected = stages.run(
            "parse", Extracted, lambda files: extract(workspace.within(files), self._inputs.reader, self.files, most)
        )
        pieces = {
            split: pieces_of(chunk for chunk in extracted if self._inputs.splits[chunk.file_index] == split)
            for split in ("train", *_HELD_OUT)
        }
        given = {split: of_split for split, of_split in pieces.items() if split != "train" and of_split}
        listed = [segment for of_split in given.values() for segment in make_segments(of_split)]
        own = make_segments(pieces["train"])
        histories, counts = stages.run(
            HISTORIES,
            tuple[dict[str, list[Piece]], HistoryCounts],
            lambda files: write_histories(workspace.within(files), own, listed, self._dropped_before(), config.split),
        )
        _report(progress, counts, config)
        if histories[DROPPED]:
            keep = partial(_keep_dropped, workspace, histories[DROPPED])
            stages.leave(DROPPED_FOLDER, keep, workspace.folder / DROPPED_FOLDER)

        segments = segments_by_split({**histories, **given})
        listings = {name: Listing((name,)) for name in (USER, ITEM)}
        found = stages.run("times", tuple[Times, ...], lambda files: _times(workspace.within(files), own))
        times = found[0] if found else None
        growth = growth_of(self._parent, times, config.expire_after)
        vocabularies = fit_vocabularies(workspace, stages, read_segment, segments[HISTORIES], listings, growth)
        schema = interactions_schema(vocabularies)
        encoder = RowEncoder(schema, workspace.folder, (pa.field(SPLIT, pa.int8(), False),))
        held_out = self._held_out(vocabularies[ITEM].size)
        drawn, short_lists = stages.run(
            "ordered",
            tuple[dict[str, list[Piece]], dict[str, int]],
            lambda _: write_rows(
                workspace,
                segments[HISTORIES],
                encoder,
                InteractionRows(schema),
                held_out,
                self._parent,
                counts.no_choices > 0,
            ),
        )
        for split, users in short_lists.items():
            progress.message(
                f"{split}: {users:,} users have so many items that fewer than {config.split.negatives} negatives are "
                "left; their lists are shorter"
            )

        of_lists = replace(encoder, kept=(pa.field(LABEL, pa.float32(), False),))
        sources: dict[str, tuple[Encode, list[Segment]]] = {
            **{split: (partial(encode_lists, of_lists), segments[split]) for split in given},
            **{s: (partial(read_rows, InteractionRows(schema)), make_segments(p)) for s, p in drawn.items()},
        }
        splits: dict[str, SplitInfo] = {}
        for split in ("train", *_HELD_OUT, KNOWN_SPLIT):
            if split in sources:
                encode, of_split = sources[split]
                write = partial(_write_split, workspace, encode, split, of_split, config.layout)
                splits[split] = stages.run(f"write-{split}", SplitInfo, write, workspace.folder / split)
        if KNOWN_SPLIT in splits:
            splits[KNOWN_SPLIT] = splits[KNOWN_SPLIT].model_copy(update={"labelled": False})
        dropped = _dropped(counts, config)
        if counts.dropped_users:
            rule = next(iter(dropped))
            items = _unlisted_items(workspace, replace(encoder, kept=(_RAW_ITEM,)), segments[DROPPED])
            dropped[rule] = dropped[rule].model_copy(update={"items": items})
        return WrittenDataset(schema, splits, rejected, times, growth.moment, dropped)

    def _dropped_before(self) -> list[Segment]:
        """Return the interactions that the dataset which is extended has dropped."""
        pieces = []
        for path in self._parent.files_in(DROPPED_FOLDER) if self._parent is not None else ():
            with open_parquet(path) as file:
                pieces.append(Piece(path, 0, file.metadata.num_rows))
        return make_segments(pieces)

    def _held_out(self, num_items: int) -> dict[str, HeldOutLists]:
        """Return the splits whose negatives are drawn, each with its own sampler, so that a user's lists differ."""
        split, seed = self._config.split, self._config.seed
        codes = held_out_codes(split)
        known = (TRAIN, VALIDATION, TEST, LISTED, EARLIER) if split.sampling == "distinct" else (TRAIN, EARLIER)
        return {
            name: HeldOutLists(
                code,
                # The lists of a user differ by split, and from those of every other small seed.
                NegativeSampler(num_items, split.negatives, split.sampling, seed + (code << 32)),
                known,
            )
            for name, code in _HELD_OUT.items()
            if code in codes
        }


def _write_split(
    workspace: Workspace, encode: Encode, split: str, segments: Sequence[Segment], layout: ShardLayoutConfig, _: Path
) -> SplitInfo:
    return write_in_order(workspace, encode, LABEL, split, segments, layout)


def _times(workspace: Workspace, segments: Sequence[Segment]) -> tuple[Times, ...]:
    """Return the times of rows, which files give in seconds since 1970, if they have any."""
    moment = Number(TIMESTAMP, (TIMESTAMP,))
    found = summarize(workspace, "find the range of times", read_segment, segments, [moment]).values()
    return tuple(Times(first=one.least, last=one.most) for one in found)


def interactions_schema(vocabularies: Mapping[str, Vocabulary]) -> Schema:
    """Return the schema of a dataset of interactions, given the vocabularies of user and item."""
    features = tuple(
        CategoricalFeature(name=name, transforms=(vocabularies[name],), cardinality=vocabularies[name].size + 1)
        for name in (USER, ITEM)
    )
    interactions = InteractionColumns(user=USER, item=ITEM)
    return Schema(label=LABEL, group=GROUP, features=features, columns=IDS, interactions=interactions)


def _dropped(counts: HistoryCounts, config: InteractionPreprocessConfig) -> dict[str, Dropped]:
    """Return the rows that are left out, by the rule."""
    dropped, users = {}, counts.users + counts.dropped_users + counts.users_without
    if isinstance(config.split, LeaveOneOutSplitConfig) and counts.dropped_users:
        rule = f"users with fewer than {config.split.min_interactions} interactions (preprocess.split.min_interactions)"
        dropped[rule] = Dropped(rows=counts.dropped_rows, users=counts.dropped_users, of_users=users)
    if counts.no_choices:
        rule = "rows that are not choices (source.choices)"
        dropped[rule] = Dropped(rows=counts.no_choices, users=counts.users_without, of_users=users)
    if counts.repeated:
        dropped["repeated interactions of a user with an item"] = Dropped(rows=counts.repeated)
    return dropped


def _keep_dropped(workspace: Workspace, pieces: Sequence[Piece], folder: Path) -> None:
    """Copy dropped interactions into the dataset."""

    def copy(segment: Segment) -> None:
        with new_parquet(folder / f"part-{segment.index:05d}.parquet", HISTORY_SCHEMA) as file:
            for batch in read_piece(segment.piece, HISTORY_SCHEMA.names, []):
                file.write_batch(batch)

    workspace.runner.run(make_segments(pieces), copy)


def _unlisted_items(workspace: Workspace, encoder: RowEncoder, dropped: Sequence[Segment]) -> int:
    """Return the number of items that only dropped users have; `encoder` keeps the item as it is."""

    def hashes(segment: Segment) -> NDArray[np.int64]:
        found = [np.empty(0, np.int64)]
        for raw, _, item in (batch.columns for batch in encoder.encode(segment)):
            found.append(hash_texts(raw.filter(pc.equal(item, 0))))
        return np.unique(np.concatenate(found))

    return len(np.unique(np.concatenate(workspace.runner.run(dropped, hashes))))


def _report(progress: Progress, counts: HistoryCounts, config: InteractionPreprocessConfig) -> None:
    """Say whom a split could not be cut from. Raises UserError if nothing is left."""
    if counts.train == 0 and counts.dropped_users:
        assert isinstance(config.split, LeaveOneOutSplitConfig)
        raise UserError(
            f"preprocess.split.min_interactions: all {counts.dropped_users:,} users have fewer than "
            f"{config.split.min_interactions} interactions ({counts.dropped_rows:,} rows); lower it"
        )
    if counts.train == 0:
        raise UserError("preprocess.split: no good row is left for train; give more rows")
    if counts.short_users:
        progress.message(f"{counts.short_users:,} users with too few interactions to hold one out stay in train")
