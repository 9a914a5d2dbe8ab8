"""Decides which columns a job keeps of rows, and which rows belong to which split."""

import re
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import repeat
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from xxhash import xxh64_intdigest

from rayrec.common.errors import UserError
from rayrec.config.preprocess import (
    ColumnSplitConfig,
    DaySplitConfig,
    FileSplitConfig,
    FractionSplitConfig,
    HashSplitConfig,
    Span,
    SplitConfig,
    TimeSplitConfig,
    seconds_of,
)
from rayrec.features.hashes import by_distinct_text, hash_texts
from rayrec.features.raw_columns import SECOND, RawColumn
from rayrec.features.raw_values import read_column
from rayrec.features.text_forms import in_form
from rayrec.ingest.dataset import Dataset
from rayrec.preprocessing.extract import ExtractedChunk, pieces_of
from rayrec.preprocessing.numbers import Number, Summary, summarize
from rayrec.preprocessing.planned_columns import KeptColumn
from rayrec.preprocessing.segments import (
    Piece,
    ReadRows,
    Segment,
    cut_pieces,
    make_segments,
    new_rows,
    read_segment,
)
from rayrec.preprocessing.workspace import Workspace
from rayrec.random.arrays import StatelessRandom
from rayrec.raw.input_files import Chunk
from rayrec.raw.rows import RawBlock
from rayrec.raw.table_reader import TableReader
from rayrec.store.parquet import open_parquet

_INTEGER = r"^(0|-?[1-9][0-9]*)$"


@dataclass(frozen=True)
class KeptColumns:
    """The columns of rows as a job keeps them."""

    label: str
    roles: tuple[KeptColumn, ...]
    raw: tuple[pa.Field, ...]

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """Columns that go to the dataset as they are: the label, the weight, the group and the candidate."""
        kinds = {"weight": pa.float32(), "group": pa.int64(), "candidate": pa.int64()}
        roles = (pa.field(column.name, kinds[column.role], False) for column in self.roles)
        return (pa.field(self.label, pa.float32(), False), *roles)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*self.fields, *self.raw])

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the kept columns of rows that have none of them missing."""
        roles = [
            rows[column.column].cast(pa.float32(), safe=False)
            if column.role == "weight"
            else pa.array(integers_of(rows[column.column]))
            for column in self.roles
        ]
        raw = [rows[field.name] for field in self.raw]
        return pa.RecordBatch.from_arrays([rows[self.label], *roles, *raw], schema=self.schema)


def integers_of(texts: pa.Array) -> NDArray[np.int64]:
    """Return (n,) numbers for n texts or integers without nulls: an integer of 64 bits itself, of other texts the hash.

    `007` is no integer, as it is another text than `7`; `7.0` is 7.
    """

    def numbers(values: pa.Array) -> NDArray[np.int64]:
        values = in_form(values.cast(pa.string()), "number")
        digits = pc.if_else(pc.match_substring_regex(values, _INTEGER), values, "")
        integers, _ = read_column(digits, RawColumn(name="texts", type="integer"))
        return np.where(integers.is_valid(), integers.fill_null(0).to_numpy(), hash_texts(values))

    return texts.to_numpy() if pa.types.is_integer(texts.type) else by_distinct_text(texts, numbers, 0)


SPLIT_ORDER = ("train", "validation", "test")
_FORM = re.compile(r"(\.[A-Za-z]+)?(\.(gz|gzip|zip|zst|zstd))?$")
"""The ends of a file's name that tell its format and packing."""


@dataclass(frozen=True)
class RowDivision:
    """Keeps what is needed of parsed rows, and divides them into splits if that follows from each row alone.

    Where it does not, as it takes the rows of all files, `split_rows` divides them later; until then all have the
    split ''.
    """

    split: SplitConfig
    seed: int
    hashed: str | None
    """The column whose hash tells the split; None takes a random number for each row."""
    kept: KeptColumns
    reader: TableReader
    keys: Sequence[str]
    """Keys of `keys_of_files`."""

    @property
    def names(self) -> tuple[str, ...]:
        match self.split:
            case HashSplitConfig(validation=validation, test=test):
                return ("train", *(["validation"] if validation else []), *(["test"] if test else []))
            case ColumnSplitConfig(values=values):
                return ("train", *(name for name in SPLIT_ORDER if name in values))
        return ("",)

    @property
    def schema(self) -> pa.Schema:
        return self.kept.schema

    @property
    def count_lines(self) -> Callable[[Chunk], int] | None:
        return self.reader.count_lines if isinstance(self.split, HashSplitConfig) and self.hashed is None else None

    def divide(self, block: RawBlock, chunk: Chunk, lines_before: int) -> dict[str, pa.RecordBatch]:
        """Return the rows of a block by split; all under the empty name if the split needs more than the row.

        At random, the split follows from the seed, the file's key and the row's number in the file: not from what is in
        a row, or equal rows would all be in one split, nor from the format of the file.
        """
        rows = self.kept.of(block.rows)
        match self.split:
            case HashSplitConfig() if self.hashed is None:
                header_lines = self.reader.layouts[chunk.file_index].header_lines
                numbers = lines_before + block.lines - (1 + header_lines)
                random = StatelessRandom(self.seed % 2**64)
                places = _places_of_shares(self.split, random.uniform(self.keys[chunk.file_index], numbers)[:, 0])
            case HashSplitConfig():
                shares = self._hashes(block.rows[self.hashed]) / 2.0**64
                places = _places_of_shares(self.split, np.minimum(shares, np.nextafter(1.0, 0.0)))  # not rounded to 1
            case ColumnSplitConfig():
                places = _places_of_values(self.split, block.rows[self.split.column])
            case DaySplitConfig() | FileSplitConfig() | FractionSplitConfig() | TimeSplitConfig():
                return {"": rows}
        return {name: rows.filter(pa.array(places == SPLIT_ORDER.index(name))) for name in self.names}

    def _hashes(self, values: pa.Array) -> NDArray[np.uint64]:
        """Return (n,) hashes of the texts of n values; numbers have one text each: `7.0` is `7`."""

        def hash_texts(texts: pa.Array) -> NDArray[np.int64]:
            return self._hashes_of([text.encode() for text in texts.to_pylist()]).view(np.int64)

        (missing,) = self._hashes_of([b""]).view(np.int64)
        texts = in_form(values.cast(pa.string()), "number")
        return by_distinct_text(texts, hash_texts, int(missing)).view(np.uint64)

    def _hashes_of(self, values: Sequence[bytes]) -> NDArray[np.uint64]:
        digests = map(xxh64_intdigest, values, repeat(self.seed & (2**64 - 1)))
        return np.fromiter(digests, np.uint64, len(values))


def keys_of_files(files: Sequence[str], parent: Dataset | None = None) -> tuple[str, ...]:
    """Return what the random numbers of each file's rows are drawn from: the table's name, and how often it came
    before.

    The name is that of the file without folders, format and packing. Files of one name, in several folders or of each
    day, are split differently, as they may have rows of the same users in the same order. In an extension of `parent`,
    a file whose name has been there counts the datasets before.
    """

    def table_of(file: str) -> str:
        return _FORM.sub("", PurePosixPath(file).name)

    before = Tally[str]()
    if parent is not None:
        before.update({table_of(source.path): parent.manifest.sequence + 1 for source in parent.manifest.sources})
    keys = []
    for table in map(table_of, files):
        keys.append(f"{table} {before[table]}")
        before[table] += 1
    return tuple(keys)


def _places_of_shares(config: HashSplitConfig, shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return (n,) the places in `SPLIT_ORDER` of the splits of rows with random numbers (n,) in [0, 1)."""
    test_from = 1.0 - config.test
    return np.searchsorted([test_from - config.validation, test_from], shares, side="right")


def _places_of_values(config: ColumnSplitConfig, values: pa.Array) -> NDArray[np.int64]:
    places = np.zeros(len(values), np.int64)
    texts = in_form(values.cast(pa.string()), "number")
    for name, of_split in config.values.items():
        is_in = pc.is_in(texts, in_form(pa.array(of_split, pa.string()), "number"))
        places[is_in.to_numpy(zero_copy_only=False)] = SPLIT_ORDER.index(name)
    return places


def split_rows(
    workspace: Workspace,
    config: SplitConfig,
    extracted: Sequence[ExtractedChunk],
    splits: Sequence[str | None],
    days: Sequence[int | None],
    time: str | None = None,
) -> dict[str, list[Piece]]:
    """Return the rows of each split in the order of the input; `splits` and `days` are given by file.

    `time`: the column of the rows' times. Raises UserError if no rows are left for a split.
    """
    match config:
        case HashSplitConfig() | ColumnSplitConfig():
            result = {name: pieces_of(extracted, name) for name in extracted[0].pieces}
        case FileSplitConfig():
            named = {split for split in splits if split is not None}
            given = [*(name for name in SPLIT_ORDER if name in named), *sorted(named.difference(SPLIT_ORDER))]
            result = {s: pieces_of(c for c in extracted if splits[c.file_index] == s) for s in given}
        case FractionSplitConfig():
            result = _by_fraction(config, pieces_of(extracted))
        case DaySplitConfig():
            result = _by_day(config, extracted, days)
        case TimeSplitConfig():
            assert time is not None
            result = _by_time(workspace, config, pieces_of(extracted), time)
    total = sum(_count_rows(pieces) for pieces in result.values())
    if total == 0:
        raise UserError(f"{extracted[0].file}: no good rows in the input; give files with rows")
    if _count_rows(result["train"]) == 0:
        raise UserError(f"preprocess.split: none of {total:,} good rows falls into train; give more rows, or change it")
    if isinstance(config, (ColumnSplitConfig, TimeSplitConfig)):
        for name, pieces in result.items():
            if _count_rows(pieces) == 0:
                raise UserError(f"preprocess.split.{name}: none of {total:,} good rows falls into {name}; change it")
    return result


def _by_time(workspace: Workspace, config: TimeSplitConfig, pieces: list[Piece], time: str) -> dict[str, list[Piece]]:
    """Return the rows by the moments at which splits begin."""
    segments = make_segments(pieces)
    starts = split_starts(workspace, config, segments, time, read_segment)
    if starts is None:
        return {"train": []}
    names = ["train", *starts]
    divide = partial(_divide, time=time, names=names, starts=[*starts.values()], folder=workspace.scratch / "by-time")
    divided = workspace.engine.run(segments, divide)
    return {name: [of_segment[name] for of_segment in divided if name in of_segment] for name in names}


def split_starts(
    workspace: Workspace, config: TimeSplitConfig, segments: Sequence[Segment], time: str, read: ReadRows
) -> dict[str, float] | None:
    """Return the first moment (microseconds since 1970) of each held-out split, in order of time; None if no row has
    one.
    """
    moment = Number(time, (time,))
    summary = summarize(workspace, "find the range of times", read, segments, [moment]).get(time)
    if summary is None:
        return None
    names = [name for name in SPLIT_ORDER[1:] if getattr(config, name)]
    return dict(zip(names, _starts(summary, [getattr(config, name) for name in names]), strict=True))


def _starts(times: Summary, spans: Sequence[Span]) -> list[float]:
    """Return the first moments (microseconds since 1970) of splits that follow each other, each of a span."""
    starts, beyond = [], 0.0
    for span in reversed(spans):
        if isinstance(span, str):
            beyond += seconds_of(span) * SECOND
            starts.append(times.most - beyond + 1)
        else:
            beyond += span
            rows = max(1, round(beyond * times.rows))
            starts += times.quantiles([Fraction(times.rows - rows, max(times.rows - 1, 1))])
    return starts[::-1]


def _divide(
    segment: Segment, time: str, names: Sequence[str], starts: Sequence[float], folder: Path
) -> dict[str, Piece]:
    """Return the rows of a segment by split, without empty ones; `starts`: of all splits but the first.

    Logs are mostly in order of time, so most segments are a piece of one split as they are. The rows of others are
    written to a file for each split.
    """
    moments = [batch[time].cast(pa.int64()).to_numpy() for batch in read_segment(segment, [time])]
    places = np.searchsorted(starts, np.concatenate(moments), side="right")
    rows = {names[place]: int(count) for place, count in enumerate(np.bincount(places)) if count}
    if len(rows) == 1:
        return dict.fromkeys(rows, segment.piece)
    pieces = {name: Piece(folder / f"{segment.index:06d}-{name}.parquet", 0, count) for name, count in rows.items()}
    with open_parquet(segment.piece.path) as file:
        schema = file.schema_arrow
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    done = 0
    with ExitStack() as stack:
        writers = {name: stack.enter_context(new_rows(piece.path, schema, texts)) for name, piece in pieces.items()}
        for batch in read_segment(segment, schema.names):
            of_batch = places[done : done + batch.num_rows]
            done += batch.num_rows
            for name, writer in writers.items():
                of_split = batch.filter(pa.array(of_batch == names.index(name)))
                if of_split.num_rows:
                    writer.write_batch(of_split)
    return pieces


def _count_rows(pieces: Iterable[Piece]) -> int:
    return sum(piece.rows for piece in pieces)


def _by_fraction(config: FractionSplitConfig, pieces: list[Piece]) -> dict[str, list[Piece]]:
    total = _count_rows(pieces)
    test_from = total - round(total * config.test)
    validation_from = test_from - round(total * config.validation)
    result = {"train": cut_pieces(pieces, 0, validation_from)}
    if config.validation:
        result["validation"] = cut_pieces(pieces, validation_from, test_from)
    if config.test:
        result["test"] = cut_pieces(pieces, test_from, total)
    return result


def _by_day(
    config: DaySplitConfig, extracted: Sequence[ExtractedChunk], days: Sequence[int | None]
) -> dict[str, list[Piece]]:
    held_out = [c for c in extracted if days[c.file_index] == config.held_out_day]
    # As `head -n` counts: bad lines are counted too, and the first half is the longer one.
    remaining = -(-sum(c.lines for c in held_out) // 2)
    test_rows = 0
    for chunk in held_out:
        lines = min(remaining, chunk.lines)
        test_rows += chunk.rows_before_line(lines)
        remaining -= lines
    pieces = pieces_of(held_out)
    return {
        "train": pieces_of(c for c in extracted if days[c.file_index] != config.held_out_day),
        "validation": cut_pieces(pieces, test_rows, _count_rows(pieces)),
        "test": cut_pieces(pieces, 0, test_rows),
    }


def rows_by_day(pieces: Iterable[Piece], extracted: Sequence[ExtractedChunk], days: Sequence[int | None]) -> list[int]:
    """Return the number of rows of each day, in the order of days."""
    day_of_path = {p.path: days[c.file_index] for c in extracted for of in c.pieces.values() for p in of}
    totals: dict[int | None, int] = {}
    for piece in pieces:
        day = day_of_path[piece.path]
        totals[day] = totals.get(day, 0) + piece.rows
    return list(totals.values())
