"""First stage: raw files -> Parquet files of parsed rows, one or more a chunk, with bad rows set aside."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayrec.common.errors import UserError
from rayrec.features.text_forms import TextFacts, TextForm, form_of
from rayrec.ingest.dataset import REJECTED_FOLDER
from rayrec.preprocessing.engine import Counter
from rayrec.preprocessing.segments import SEGMENT_ROWS, Piece
from rayrec.preprocessing.workspace import Workspace, counted_rows, run_brief_tasks, user_errors
from rayrec.raw.input_files import Chunk, InputFile, plan_chunks
from rayrec.raw.rows import (
    LEFT_OUT,
    REJECTED_SCHEMA,
    RawBlock,
    Reason,
    RowReader,
    describe_reasons,
    describe_rejected,
)
from rayrec.store.files import remove
from rayrec.store.parquet import new_parquet, new_parquet_files, open_parquet
from rayrec.store.paths import KeptPath

_LEAST_CHUNK_BYTES, _MOST_CHUNK_BYTES = 2**22, 2**26
_ROWS_PER_FILE = 4 * SEGMENT_ROWS
"""A packed file is one chunk, however long: one Parquet file of it would have a footer that takes a second to parse."""
_ROWS_PER_REJECTED_PART = 1_000_000


class Division(Protocol):
    """Makes rows of a job's own of parsed ones, and divides them into files."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the files of each chunk."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows."""

    @property
    def count_lines(self) -> Callable[[Chunk], int] | None:
        """Counts the lines of a chunk, if `divide` needs to know how many come before one."""

    def divide(self, block: RawBlock, chunk: Chunk, lines_before: int) -> dict[str, pa.RecordBatch]:
        """Return the rows of a block by name; `lines_before`: lines of the file before the chunk, if counted."""


@dataclass(frozen=True)
class ExtractedChunk:
    """The parsed rows of a chunk of a raw file."""

    file: str
    """Name of the raw file."""
    file_index: int
    lines: int
    pieces: dict[str, tuple[Piece, ...]]
    """The files of rows by split; all rows under the empty name if the split does not follow from the row."""
    rejected: dict[str, int]
    """Number of bad rows by reason."""
    rejected_path: KeptPath
    """Rows of `REJECTED_SCHEMA`, lines counted from the chunk's first (1); exists only if there are bad rows."""
    texts: dict[str, TextFacts]
    """What the good rows say about the form of each column of texts, or of lists of them."""
    others: dict[str, int] = field(default_factory=dict)
    """Rows that have a value of each column that no one knew when the file was opened."""

    def rows_before_line(self, line: int) -> int:
        """Return the number of good rows among the first `line` lines of the chunk."""
        if not self.rejected:
            return line
        with open_parquet(self.rejected_path) as file:
            rejected = file.read(["line"]).column("line")
        return line - pc.sum(pc.less_equal(rejected, line)).as_py()


class Extracted(NamedTuple):
    """The chunks of files of one kind, in order, and the number of bad rows by reason."""

    chunks: list[ExtractedChunk]
    rejected: dict[str, int]


def text_forms(chunks: Sequence[ExtractedChunk]) -> dict[str, TextForm]:
    """Return the form of each column of texts, from what all chunks say of it."""
    names = {name for chunk in chunks for name in chunk.texts}
    return {name: form_of(name, (chunk.texts[name] for chunk in chunks if name in chunk.texts)) for name in names}


def pieces_of(chunks: Iterable[ExtractedChunk], split: str = "") -> list[Piece]:
    """Return the files of the chunks' rows of a split, in order."""
    return [piece for chunk in chunks for piece in chunk.pieces[split]]


def extract(
    workspace: Workspace,
    reader: RowReader,
    files: Sequence[InputFile],
    max_rejected: float,
    division: Division | None = None,
    fixes: Mapping[str, str] = MappingProxyType({}),
) -> Extracted:
    """Parse files of one kind, as `extract_tables` does; with `division`, into its files for each chunk."""
    tables = {"": (reader, files)}
    extracted, rejected = extract_tables(workspace, tables, workspace.scratch, max_rejected, division, fixes)
    return Extracted(extracted[""], rejected)


def extract_tables(
    workspace: Workspace,
    tables: Mapping[str, tuple[RowReader, Sequence[InputFile]]],
    scratch: Path,
    max_rejected: float,
    division: Division | None = None,
    fixes: Mapping[str, str] = MappingProxyType({}),
) -> tuple[dict[str, list[ExtractedChunk]], dict[str, int]]:
    """Parse the files of each table into files under `scratch` and write bad rows to the dataset's `rejected/`.

    Return the chunks by table, and the number of bad rows by reason. Raises UserError if a table has no line, not even
    a header, or if more than the share `max_rejected` of its rows is bad; `fixes` says by reason what else can be done.
    """
    total = sum(file.bytes for _, files in tables.values() for file in files)
    share = total // (4 * workspace.engine.parallelism)
    size = min(max(share, _LEAST_CHUNK_BYTES), _MOST_CHUNK_BYTES)
    planned = {name: plan_chunks(files, size) for name, (_, files) in tables.items()}
    readers = {name: reader for name, (reader, _) in tables.items()}
    every_chunk = [(name, chunk) for name, chunks in planned.items() for chunk in chunks]
    before = _lines_before(workspace, [chunk for _, chunk in every_chunk], division)
    with counted_rows(workspace.engine, workspace.progress, "parse") as counter:

        def run(item: tuple[int, tuple[str, Chunk], int]) -> ExtractedChunk:
            number, (name, chunk), lines_before = item
            return _extract_chunk(readers[name], chunk, scratch, f"{number:06d}", division, lines_before, counter)

        items = [*zip(range(len(before)), every_chunk, before, strict=True)]
        extracted = iter(workspace.engine.run(items, run))
    by_table = {name: list(islice(extracted, len(chunks))) for name, chunks in planned.items()}
    reasons: Tally[str] = Tally()
    for name, chunks in by_table.items():
        rejected = _check_rejected(chunks, max_rejected, fixes)
        if rejected:
            _write_rejected(workspace, chunks, f"{name}-" if name else "")
        reasons.update(rejected)
    return by_table, dict(reasons)


def _lines_before(workspace: Workspace, chunks: Sequence[Chunk], division: Division | None) -> list[int]:
    """Return, for each chunk, the number of lines of its file before it; 0 if the division does not ask for it.

    To count lines takes a tenth of the time that it takes to parse them. Divided after they were parsed, when their
    numbers are known, all rows would be written twice.
    """
    count = None if division is None else division.count_lines
    counted = [number for number, (chunk, later) in enumerate(pairwise(chunks)) if chunk.file == later.file]
    if count is None or not counted:
        return [0] * len(chunks)
    workspace.progress.stage("count lines")
    with user_errors():
        counts = run_brief_tasks(workspace.engine, [chunks[number] for number in counted], count)
    lines = dict(zip(counted, counts, strict=True))
    return _sums_before((chunk.file_index, lines.get(number, 0)) for number, chunk in enumerate(chunks))


def _extract_chunk(
    reader: RowReader,
    chunk: Chunk,
    scratch: Path,
    name: str,
    division: Division | None,
    lines_before: int,
    count: Counter,
) -> ExtractedChunk:
    labels, schema = (division.names, division.schema) if division else (("",), reader.schema)
    rejected_path = scratch / "rejected" / f"{name}.parquet"
    reasons: Tally[str] = Tally()
    lines = 0
    texts: dict[str, TextFacts] = {}
    others: Tally[str] = Tally()
    options: dict[str, Any] = {
        "compression": "lz4",
        "use_dictionary": [name for name in reader.dictionaries if name in schema.names],
        "write_statistics": False,
    }
    with ExitStack() as stack:
        files = {
            label: stack.enter_context(
                new_parquet_files(scratch / "rows" / f"{name}{label and '-'}{label}", schema, _ROWS_PER_FILE, **options)
            )
            for label in labels
        }
        rejected_writer: pq.ParquetWriter | None = None
        for block in reader.read(chunk):
            for field, column in zip(block.rows.schema, block.rows.columns, strict=True):
                values = column.flatten() if pa.types.is_list(field.type) else column
                if pa.types.is_string(values.type):
                    texts[field.name] = texts.get(field.name, TextFacts()) | TextFacts.of(values)
            divided = division.divide(block, chunk, lines_before) if division else {"": block.rows}
            for label, rows in divided.items():
                write, _ = files[label]
                write(rows)
            if block.rejected.num_rows:
                if rejected_writer is None:
                    rejected_writer = stack.enter_context(new_parquet(rejected_path, REJECTED_SCHEMA))
                rejected_writer.write_table(block.rejected)
                reasons.update(block.rejected.column("reason").to_pylist())
            others.update(block.others)
            lines += block.num_lines
            count.add(block.num_lines)
    pieces = {label: tuple(Piece(f.path, 0, f.rows) for f in written) for label, (_, written) in files.items()}
    file = chunk.file.name, chunk.file_index
    return ExtractedChunk(*file, lines, pieces, dict(reasons), rejected_path, texts, dict(others))


def _check_rejected(
    extracted: Sequence[ExtractedChunk], max_fraction: float, fixes: Mapping[str, str]
) -> dict[str, int]:
    """Return the number of lines that are no rows by reason, also of those that are left out.

    Raises UserError if there are no rows, or if too large a share of those that are not left out is bad.
    """
    lines = sum(chunk.lines for chunk in extracted)
    if lines == 0:
        raise UserError(f"{extracted[0].file}: empty; there are no rows to preprocess")
    reasons: Tally[str] = Tally()
    for chunk in extracted:
        reasons.update(chunk.rejected)
    of_no_label = reasons[Reason.NO_LABEL]
    if of_no_label and not any(piece.rows for c in extracted for pieces in c.pieces.values() for piece in pieces):
        raise UserError(f"{extracted[0].file}: none of {of_no_label:,} rows has a label; give rows with labels")
    of_bad = Tally({reason: number for reason, number in reasons.items() if reason not in LEFT_OUT})
    bad, lines = of_bad.total(), lines - sum(reasons[reason] for reason in LEFT_OUT)
    if bad > max_fraction * lines:
        offset, first = next(
            (o, c)
            for o, c in zip(_first_lines(extracted), extracted, strict=True)
            if not LEFT_OUT.issuperset(c.rejected)
        )
        with open_parquet(first.rejected_path) as file:
            rows = file.read()
        is_bad = pc.invert(pc.is_in(rows["reason"], value_set=pa.array(map(str, LEFT_OUT))))
        example = rows.filter(is_bad).slice(0, 1).to_pylist()[0]
        example["line"] += offset
        fix = f"; {fixes[example['reason']]}" if example["reason"] in fixes else ""
        raise UserError(
            f"{bad:,} of {lines:,} rows are bad ({describe_reasons(of_bad)}), more than "
            f"preprocess.max_rejected_fraction ({max_fraction:g}); the first is {describe_rejected(example)}{fix}"
        )
    return dict(reasons)


def _write_rejected(workspace: Workspace, extracted: Sequence[ExtractedChunk], prefix: str) -> None:
    """Write the bad rows of all chunks to Parquet parts named PREFIXpart-*, with their lines in the files."""
    groups: list[list[tuple[Path, int]]] = []
    filled = _ROWS_PER_REJECTED_PART
    for offset, chunk in zip(_first_lines(extracted), extracted, strict=True):
        number = sum(chunk.rejected.values())
        if number == 0:
            continue
        if filled >= _ROWS_PER_REJECTED_PART:
            groups.append([])
            filled = 0
        groups[-1].append((chunk.rejected_path, offset))
        filled += number
    folder = workspace.folder / REJECTED_FOLDER
    for left in sorted(folder.glob(f"{prefix}part-*")):  # by an attempt that was killed
        remove(left)

    def run(item: tuple[int, list[tuple[Path, int]]]) -> None:
        index, files = item
        with new_parquet(folder / f"{prefix}part-{index:05d}.parquet", REJECTED_SCHEMA) as writer:
            for path, offset in files:
                with open_parquet(path) as file:
                    for batch in file.iter_batches():
                        column = batch.schema.get_field_index("line")
                        lines = pc.add(batch.column(column), offset)
                        writer.write_batch(batch.set_column(column, REJECTED_SCHEMA.field("line"), lines))

    workspace.engine.run(list(enumerate(groups)), run)


def _first_lines(extracted: Sequence[ExtractedChunk]) -> list[int]:
    """Return, for each chunk, in order, the number of lines of its file before it."""
    return _sums_before((chunk.file_index, chunk.lines) for chunk in extracted)


def _sums_before(lines: Iterable[tuple[int, int]]) -> list[int]:
    """Return, for each pair of a file and a number of lines, the sum of the numbers of the file's pairs before it."""
    before: Tally[int] = Tally()
    result = []
    for file, number in lines:
        result.append(before[file])
        before[file] += number
    return result
