"""Sources whose rows are interactions of a user with an item: parse, order by user and time, cut, number, draw, write.

Known positives are the rows of `train`; a held-out interaction is a list of rows: itself, then its negatives. Each step
is a stage, after the last finished one of which a job that was killed goes on.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import Progress
from rayrec.config.transforms import Vocabulary
from rayrec.features.schema import CategoricalFeature, InteractionColumns, Schema
from rayrec.ingest.dataset import DROPPED_FOLDER, KNOWN_SPLIT, Dataset, Dropped, SplitInfo
from rayrec.preprocessing.extension import growth_of, require_new
from rayrec.preprocessing.extract import ExtractedChunk, extract_tables, pieces_of
from rayrec.preprocessing.inputs import check_files, require_no_names
from rayrec.preprocessing.parts import Encode, RowEncoder, write_in_order
from rayrec.preprocessing.segments import (
    Piece,
    Segment,
    make_segments,
    pieces_of_files,
    read_segment,
    rows_of,
    segments_by_split,
)
from rayrec.preprocessing.sql import query
from rayrec.preprocessing.vocabularies import HeldOut, Listing, fit_vocabularies
from rayrec.preprocessing.workspace import Stages, Workspace, WrittenDataset
from rayrec.raw.input_files import InputFile, list_inputs
from rayrec.raw.rows import Reason, RowReader
from rayrec.sources.interactions.config import (
    ITEM,
    USER,
    InteractionFilesSplitConfig,
    InteractionPreprocessConfig,
    InteractionSourceConfig,
    InteractionSplitConfig,
    InteractionTimeSplitConfig,
    LeaveOneOutSplitConfig,
)
from rayrec.sources.interactions.histories import (
    EARLIER,
    HELD_OUT,
    LISTED,
    NO_CHOICE,
    SPLIT,
    TRAIN,
    HistoryCounts,
    held_out_codes,
    write_histories,
)
from rayrec.sources.interactions.interaction_reader import LABEL, ROW_SCHEMA, InteractionReader, has_lists, id_column
from rayrec.sources.interactions.items import open_items, write_items
from rayrec.sources.interactions.ranking_lists import GROUP, NegativeSampler, with_group, write_rows

_SPLITS = ("train", "validation", "test")
_ITEMS = "items"
"""The name of the table of items among those that are parsed."""
_RATINGS_FILE = re.compile(r"^(u\.data|ratings\.(dat|csv|parquet))(\.gz)?$")
_PAPER_FILE = re.compile(r"\.((?P<train>train)\.(rating|pairs\.tsv)|(?P<held_out>validation|test)\.negative)(\.gz)?$")
_FIXES: dict[str, str] = {Reason.TIME: "source.timestamp: {column: NAME, format: FORMAT} says how times are written"}
_ITEM, _VALUE = pa.schema([(ITEM, pa.string())]), pa.schema([("value", pa.string())])


class InteractionJob:
    """A job whose inputs and config were checked."""

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
        found = find_files(source, config.split, inputs)
        self.files = tuple(file for files in found.values() for file in files)
        self._train, self._lists = found["train"], {split: files for split, files in found.items() if split != "train"}
        self._reader = InteractionReader.of_tables(source, self._train)
        if isinstance(config.split, InteractionTimeSplitConfig):
            _require_times(config.split, self._reader, self._train[0])
        require_new(self.files, parent)
        self._items, self._items_from = source.items, None if source.items is None else open_items(source.items)

    def write(self, workspace: Workspace) -> WrittenDataset:
        """Write vocabularies, splits and bad rows. Raises UserError."""
        config, progress, most = self._config, workspace.progress, self._config.max_rejected_fraction
        stages = Stages(workspace.scratch, progress)
        tables: dict[str, tuple[RowReader, Sequence[InputFile]]] = {"": (self._reader, self._train)}
        tables |= {split: (InteractionReader(), files) for split, files in self._lists.items()}
        tables |= {} if self._items_from is None else {_ITEMS: self._items_from}
        extracted, rejected = stages.run(
            "parse",
            tuple[dict[str, list[ExtractedChunk]], dict[str, int]],
            lambda files: extract_tables(workspace.within(files), tables, files, most, fixes=_FIXES),
        )
        given = {split: pieces_of(extracted[split]) for split in self._lists}
        own = make_segments(pieces_of(extracted[""]))
        listed = [segment for of_split in given.values() for segment in make_segments(of_split)]

        # Users with few rows are dropped, and the histories of the others are cut into splits.
        histories, dropped_rows, counts = stages.run(
            "histories",
            tuple[list[Piece], list[Piece], HistoryCounts],
            lambda files: write_histories(workspace.within(files), own, listed, self._dropped_before(), config.split),
        )
        _report(progress, counts, config)

        # Users and items get their ids from what is left; where a moment divides it, from what came before.
        is_by_time = isinstance(config.split, InteractionTimeSplitConfig)
        segments = segments_by_split({"histories": histories, **given})
        listings = {name: Listing((name,)) for name in (USER, ITEM)}
        growth = growth_of(self._parent, counts.times, config.expire_after)
        held_out = {code: split for split, code in HELD_OUT.items()} | {LISTED: " and ".join(given)}
        held_out |= dict.fromkeys((EARLIER, NO_CHOICE), "")

        def read_train(segment: Segment, columns: Sequence[str], texts: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
            for batch in read_segment(segment, [*columns, SPLIT], texts):
                yield batch.filter(pc.equal(batch[SPLIT], TRAIN)).select(columns)

        def read_held_out(segment: Segment, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
            for batch in read_segment(segment, [*columns, SPLIT], columns):
                for code in pc.unique(batch[SPLIT]).to_pylist():
                    if code in held_out:
                        yield held_out[code], batch.filter(pc.equal(batch[SPLIT], code)).select(columns)

        vocabularies, known_values = fit_vocabularies(
            workspace,
            stages,
            read_train if is_by_time else read_segment,
            segments["histories"],
            listings,
            growth,
            HeldOut(
                segments["histories"],
                read_held_out,
                tuple(dict.fromkeys(held_out.values())),
                are_counted=not is_by_time,
            ),
        )
        users, items = (_values_of(workspace, vocabularies[name]) for name in (USER, ITEM))
        schema = _schema(vocabularies)
        if self._items is not None:
            catalogue = vocabularies[ITEM]
            found = write_items(self._items, pieces_of(extracted[_ITEMS]), catalogue, workspace.folder)
            progress.message(f"source.items: has {found:,} of {catalogue.size:,} items")

        # With ids come the order of rows, and the items that negatives are drawn from.
        encoder = RowEncoder(schema, workspace.folder, (ROW_SCHEMA.field(LABEL),))
        samplers = self._samplers(vocabularies[ITEM].size)
        drawn, short_lists = stages.run(
            "ordered",
            tuple[dict[str, list[Piece]], dict[str, int]],
            lambda files: write_rows(
                workspace.within(files),
                segments["histories"],
                users,
                encoder,
                samplers,
                self._parent,
                counts.no_choices > 0,
            ),
        )
        for split, short in short_lists.items():
            sampler = samplers[split]
            if short and sampler is not None:
                progress.message(
                    f"{split}: {short:,} users have so many items that fewer than {sampler.negatives} negatives "
                    "are left; their lists are shorter"
                )

        # Rows in their order become parts.
        read_drawn = partial(read_segment, columns=[*encoder.encoded_schema.names, GROUP])
        in_order: dict[str, tuple[Encode, Sequence[Segment]]] = {}
        for split in ("train", *HELD_OUT, KNOWN_SPLIT):
            if split in given:
                in_order[split] = partial(with_group, encoder.encode), segments[split]
            elif split in drawn:
                in_order[split] = read_drawn, make_segments(drawn[split])
        written = stages.run(
            "write",
            list[SplitInfo],
            lambda _: write_in_order(workspace, in_order, LABEL, config.layout),
            *(workspace.folder / split for split in in_order),
        )
        splits = dict(zip(in_order, written, strict=True))
        if is_by_time and self._parent is None:
            total = sum(split.rows for split in splits.values())
            for name in HELD_OUT:
                if name in splits and not splits[name].rows:
                    raise UserError(f"preprocess.split.{name}: none of {total:,} choices falls into {name}; change it")
        if KNOWN_SPLIT in splits:
            splits[KNOWN_SPLIT] = splits[KNOWN_SPLIT].model_copy(update={"labelled": False})
        unlisted = _unlisted_items(workspace, dropped_rows, items) if counts.dropped_users else 0
        dropped = _dropped(counts, unlisted, config)
        return WrittenDataset(schema, splits, rejected, counts.times, growth.moment, dropped, known_values=known_values)

    def _dropped_before(self) -> list[Segment]:
        """Return the interactions that the dataset which is extended has dropped."""
        files = self._parent.files_in(DROPPED_FOLDER) if self._parent is not None else ()
        return make_segments(pieces_of_files(files))

    def _samplers(self, num_items: int) -> dict[str, NegativeSampler | None]:
        """Return what draws the negatives of each split, None if none are; the lists of a user differ by split."""
        split, seed, codes = self._config.split, self._config.seed, held_out_codes(self._config.split)
        if isinstance(split, InteractionTimeSplitConfig):
            return dict.fromkeys(name for name in HELD_OUT if getattr(split, name))
        return {
            # The lists differ from those of every other small seed, too.
            name: NegativeSampler(num_items, split.negatives, split.sampling, seed + (code << 32))
            for name, code in HELD_OUT.items()
            if code in codes
        }


def _require_times(split: InteractionTimeSplitConfig, reader: InteractionReader, file: InputFile) -> None:
    """Raise ConfigError if the rows have no times to split them by, or times of no unit and a duration is asked for."""
    if reader.time is None:
        raise ConfigError(
            f"preprocess.split.kind: 'time' needs the time of each row, and {file.name} has no column 'timestamp'; set "
            "source.timestamp to its name, or use 'leave_one_out'"
        )
    for name in HELD_OUT:
        if isinstance(getattr(split, name), str) and reader.time.type != "time":
            raise ConfigError(
                f"preprocess.split.{name}: {getattr(split, name)!r} needs times with a unit, and those of {file.name} "
                "show none; set source.timestamp: {column: NAME, format: FORMAT}, or give a fraction"
            )


def find_files(
    source: InteractionSourceConfig, split: InteractionSplitConfig, paths: Mapping[str | None, Sequence[str]]
) -> dict[str, list[InputFile]]:
    """Return the files of interactions (`train`) and of lists (`validation`, `test`) at paths by split, or under None.

    Raises UserError if a path gives no file, or the files do not suit the config.
    """
    found = _of_files(split, paths) if isinstance(split, InteractionFilesSplitConfig) else _of_rows(split, paths)
    check_files([file for of_split in found.values() for file in of_split])
    for name, of_split in found.items():
        for file in of_split:
            if name == "train" and has_lists(source, file):
                raise UserError(
                    f"{file.name}: lists of negatives, no interactions; give it as test=PATH with "
                    "preprocess.split.kind 'files'"
                )
            if name != "train" and not has_lists(source, file):
                raise UserError(
                    f"{file.name}: no lists of a positive and its negatives, as {name}=PATH needs (*.test.negative); "
                    "give these, or all interactions with preprocess.split.kind 'leave_one_out'"
                )
    return found


def _of_rows(split: InteractionSplitConfig, paths: Mapping[str | None, Sequence[str]]) -> dict[str, list[InputFile]]:
    require_no_names(split.kind, paths)
    found = []
    for path in paths[None]:
        # The folders of MovieLens hold other files than ratings, too: movies.csv, tags.csv, u.item.
        files = list_inputs([path])
        found += [file for file in files if _RATINGS_FILE.match(file.base_name)] or files
    return {"train": found}


def _of_files(
    split: InteractionFilesSplitConfig, paths: Mapping[str | None, Sequence[str]]
) -> dict[str, list[InputFile]]:
    unknown = next((name for name in paths if name not in (None, *_SPLITS)), None)
    if unknown is not None:
        raise ConfigError(f"--input {unknown}=...: no split of interactions; use train, validation or test")
    found = {name: list_inputs(paths.get(name, ())) for name in _SPLITS}
    for path in paths.get(None, ()):
        # Of the paper's files *.test.rating is left out, whose content is in the lists too.
        named = [(file, _PAPER_FILE.search(file.base_name)) for file in list_inputs([path])]
        if not any(name for _, name in named):
            raise UserError(
                f"{path}: no files NAME.train.rating and NAME.test.negative; name the files: --input train=PATH "
                "--input test=PATH"
            )
        for file, name in named:
            if name:
                found[name["train"] or name["held_out"]].append(file)
    if not found["train"]:
        raise ConfigError("--input: preprocess.split.kind is 'files' and no files are for train; add train=PATH")
    if split.validation and found["validation"]:
        raise ConfigError(
            "--input validation=...: preprocess.split.validation makes that split from train; leave one of them out"
        )
    return {name: files for name, files in found.items() if files}


def _values_of(workspace: Workspace, vocabulary: Vocabulary) -> list[Piece]:
    """Return the values of a vocabulary of the dataset, in order of id."""
    path = workspace.folder / vocabulary.file
    return pieces_of_files([path] if path.suffix == ".parquet" else sorted(path.glob("part-*.parquet")))


def _schema(vocabularies: Mapping[str, Vocabulary]) -> Schema:
    """Return the schema of a dataset of interactions, given the vocabularies of user and item."""
    features = tuple(
        CategoricalFeature(name=name, transforms=(vocabularies[name],), cardinality=vocabularies[name].size + 1)
        for name in (USER, ITEM)
    )
    columns = (id_column(USER), id_column(ITEM))
    return Schema(
        label=LABEL,
        group=GROUP,
        features=features,
        columns=columns,
        interactions=InteractionColumns(user=USER, item=ITEM),
    )


def _dropped(counts: HistoryCounts, unlisted_items: int, config: InteractionPreprocessConfig) -> dict[str, Dropped]:
    """Return the rows that are left out, by the rule; `unlisted_items`: those that only dropped users have."""
    dropped, users = {}, counts.users + counts.dropped_users + counts.users_without
    if isinstance(config.split, LeaveOneOutSplitConfig) and counts.dropped_users:
        rule = f"users with fewer than {config.split.min_interactions} interactions (preprocess.split.min_interactions)"
        dropped[rule] = Dropped(
            rows=counts.dropped_rows, users=counts.dropped_users, items=unlisted_items, of_users=users
        )
    if counts.no_choices:
        rule = "rows that are not choices (source.choices)"
        dropped[rule] = Dropped(rows=counts.no_choices, users=counts.users_without, of_users=users)
    if counts.repeated:
        dropped["repeated interactions of a user with an item"] = Dropped(rows=counts.repeated)
    return dropped


def _unlisted_items(workspace: Workspace, dropped: Sequence[Piece], listed: Sequence[Piece]) -> int:
    """Return the number of items that only dropped users have; `listed`: the vocabulary of items."""

    def count(_: None) -> int:
        tables = {"dropped": rows_of(dropped, _ITEM), "listed": rows_of(listed, _VALUE)}
        found = query("select count(distinct item) as items from dropped anti join listed on item = value", **tables)
        return int(found.read_all()["items"][0].as_py())

    (items,) = workspace.engine.run([None], count)
    return items


def _report(progress: Progress, counts: HistoryCounts, config: InteractionPreprocessConfig) -> None:
    """Say whom a split could not be cut from. Raises UserError if nothing is left."""
    if counts.train == 0 and counts.dropped_users:
        assert isinstance(config.split, LeaveOneOutSplitConfig)
        raise UserError(
            f"preprocess.split.min_interactions: all {counts.dropped_users:,} users have fewer than "
            f"{config.split.min_interactions} interactions ({counts.dropped_rows:,} rows); lower it"
        )
    if counts.train == 0:
        raise UserError("preprocess.split: none of the good rows falls into train; give more rows, or change it")
    if counts.short_users:
        progress.message(f"{counts.short_users:,} users with too few interactions to hold one out stay in train")
