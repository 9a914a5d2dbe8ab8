"""Tables: files of rows with named columns, of which raw columns are read.

table = open_table(list_inputs(paths), FileFormat())
reader = table.reader(columns, "click")
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Literal

import numpy as np
import pyarrow as pa

from rayrec.common.errors import UserError, did_you_mean
from rayrec.config.table import FileFormat, LabelCondition
from rayrec.features.labels import label_column
from rayrec.features.raw_columns import ListLength, RawColumn
from rayrec.raw import delimited, json_lines, parquet
from rayrec.raw.input_files import HEAD_BYTES, Chunk, InputFile
from rayrec.raw.rows import RawBlock, RawCells, RowTypes, blocks_of

Layout = delimited.DelimitedLayout | json_lines.JsonLinesLayout | parquet.ParquetLayout
"""The columns of a file, and how its chunks are read."""

_FORMATS: dict[str, Literal["parquet", "json_lines"]] = {
    ".parquet": "parquet",
    ".parq": "parquet",
    ".pq": "parquet",
    ".jsonl": "json_lines",
    ".ndjson": "json_lines",
    ".json": "json_lines",
}
_THREADS = 16


@dataclass(frozen=True)
class TableReader:
    """Reads the chunks of a table's files into rows of raw columns."""

    layouts: tuple[Layout, ...]
    """The layout of each file."""
    types: RowTypes
    file_columns: Sequence[str]
    """Names of all columns of the files."""
    counts_others: bool = False
    """Whether to count rows with values of columns that no one knew when the files were opened."""
    warnings: tuple[str, ...] = ()
    """Warnings about the files."""

    @property
    def label(self) -> str:
        """Name of the label's column; empty if the reader has none."""
        return self.types.label_column or ""

    @property
    def schema(self) -> pa.Schema:
        """Label (float32) if there is one, then the columns with the types `RawColumn.arrow`."""
        return self.types.schema

    @property
    def dictionaries(self) -> tuple[str, ...]:
        """Columns of text."""
        return tuple(raw.name for raw in self.types.columns if raw.type == "text")

    def read(self, chunk: Chunk) -> Iterator[RawBlock]:
        """Return the blocks of a chunk; line numbers count from the chunk's first line, in Parquet files from its first
        row.

        The rows of a file without the label's column have no label.
        """
        layout = self.layouts[chunk.file_index]
        has_label = self.types.label_column in names_of(chunk.file, layout)
        types = self.types if has_label else replace(self.types, label=None)
        wanted = types.wanted
        if self.counts_others and isinstance(layout, json_lines.JsonLinesLayout):
            # Read for nothing but that it shows which names are others.
            is_number = {field.name: pa.types.is_integer(field.type) for field in layout.columns}
            known = {name: RawColumn(name=name, type="number") if is_number[name] else None for name in is_number}
            wanted = {name: raw for name, raw in known.items() if layout.type_of(name) is not None} | wanted
        return blocks_of(chunk, (types.parse(cells) for _, cells in read_cells(layout, chunk, wanted)))

    def count_lines(self, chunk: Chunk) -> int:
        """Return the number of lines of a chunk that has others after it, as `read` numbers lines."""
        return self.layouts[chunk.file_index].count_lines(chunk)


def read_cells(
    layout: Layout, chunk: Chunk, wanted: Mapping[str, RawColumn | None]
) -> Iterator[tuple[bytes, RawCells]]:
    """Yield the text of each block with its rows, in which the columns that the names of folders tell are texts."""
    told = {name: value for name, value in chunk.file.partitions if name in wanted and name not in layout.columns.names}
    for text, cells in layout.read(chunk, wanted):
        rows = np.zeros(len(cells.positions), np.int32)
        same = {
            name: pa.DictionaryArray.from_arrays(rows, pa.array([text], pa.string())) for name, text in told.items()
        }
        yield text, replace(cells, columns={**cells.columns, **same}) if told else cells


def names_of(file: InputFile, layout: Layout) -> list[str]:
    """Return the names of the columns of a file, last those that the names of its folders tell."""
    return list(dict.fromkeys([*layout.columns.names, *(name for name, _ in file.partitions)]))


@dataclass(frozen=True)
class TableFiles:
    """The files of a table, whose columns are known."""

    files: tuple[InputFile, ...]
    layouts: tuple[Layout, ...]
    """The layout of each file."""
    columns: pa.Schema
    """All columns in the order of the first file; text if the format has no types."""
    format: FileFormat
    """How the recipe says that the files hold rows."""
    optional: frozenset[str] = frozenset()
    """Columns that files may lack."""
    warnings: tuple[str, ...] = ()
    """Warnings about the files."""

    def reader(
        self,
        columns: Sequence[RawColumn],
        label: str | LabelCondition | None = None,
        *,
        needs_label: bool = True,
        weight: str | None = None,
        required: Collection[str] = (),
        list_lengths: Sequence[ListLength] = (),
    ) -> TableReader:
        """Return a reader of raw columns, and of the label if there is one.

        Columns without null values of their own have those of the files. A row is bad if a value cannot be read, if the
        label is neither 0 nor 1 (nor a word of `LABEL_WORDS`), if one of the columns `required` has no value, if the
        column `weight` (a number) has none from 0 on, or if a list has not the length that `list_lengths` says, or no
        weight from 0 on for each value. A row without a label is left out. Without `needs_label` the label of all these
        rows is null. The label's column is not one of `columns`. Raises UserError if a column is not there, unless it
        is optional, or if it holds what it cannot be read from.
        """
        null_words = {"null_values": self.format.null_words}
        read = tuple(raw if raw.null_values else raw.model_copy(update=null_words) for raw in columns)
        lengths, of_label = tuple(list_lengths), label_column(self.format)
        types = RowTypes(read, label, weight, frozenset(required), lengths, of_label, needs_label)
        for name in types.wanted:
            if name not in self.columns.names and name not in self.optional:
                hint = did_you_mean(name, self.columns.names, "it has")
                raise UserError(f"{self.files[0].name}: no column '{name}'; {hint}")
        for layout in dict.fromkeys(self.layouts):
            file = self.files[self.layouts.index(layout)]
            # Of columns whose values have several types, each row is judged.
            mixed = layout.mixed if isinstance(layout, json_lines.JsonLinesLayout) else ()
            empty = {f.name: pa.nulls(0, f.type) for f in layout.columns if f.name not in mixed}
            try:
                types.parse(RawCells(empty, np.zeros(0, np.int64), 0, {}, lambda _: b""))
            except UserError as error:
                raise UserError(f"{file.name}: {error}") from None
        return TableReader(self.layouts, types, self.columns.names, warnings=self.warnings)


def open_table(
    files: Sequence[InputFile],
    table_format: FileFormat,
    optional: Sequence[str] = (),
    needed: Collection[str] | None = None,
    is_ignored: Callable[[str], bool] | None = None,
) -> TableFiles:
    """Look at the beginning of every file. All have the same columns, in any order; JSON lines may lack some.

    `optional`: columns that a file may lack all the same, as the label in files that are to be scored. `needed`: the
    columns in which files must not differ, by default all others that the recipe does not ignore (`is_ignored`). Files
    without rows, such as Spark writes for an empty partition, say nothing of the columns. Raises UserError if the
    columns of a file are unclear or differ, or if all files are empty.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda file: _read_layout(file, table_format, optional), files))
        have_rows = list(pool.map(_has_rows, files, found))
    read = {file: layout for file, layout in zip(files, found, strict=True) if layout is not None}
    if not read:
        raise UserError(f"{files[0].name}: empty; there are no rows to read")
    empty = [file for file, has_rows in zip(files, have_rows, strict=True) if not has_rows]
    filled = {file: layout for file, layout in read.items() if file not in empty} or read
    warnings = (f"{len(empty):,} of {len(files):,} files have no rows, such as {empty[0].name}",) if empty else ()
    # Layouts travel with every task, so equal ones are one object.
    same = {layout: layout for layout in reversed([*filled.values(), *read.values()])}
    first = next(iter(filled.values()))
    layouts = tuple(first if layout is None else same[layout] for layout in found)
    _check_names(filled, frozenset(optional), needed, is_ignored)
    columns = _merge([layout.columns for layout in dict.fromkeys(filled.values())])
    told = dict.fromkeys(name for file in filled for name, _ in file.partitions if name not in columns.names)
    columns = pa.schema([*columns, *((name, pa.string()) for name in told)])
    return TableFiles(tuple(files), layouts, columns, table_format, frozenset(optional), warnings)


def _read_layout(file: InputFile, table_format: FileFormat, optional: Sequence[str]) -> Layout | None:
    if file.bytes == 0:
        return None
    match table_format.format if table_format.format != "auto" else format_of(file):
        case "parquet":
            return parquet.read_layout(file)
        case "json_lines":
            return json_lines.read_layout(file, table_format.encoding)
    return delimited.read_layout(file, table_format, optional)


def _has_rows(file: InputFile, layout: Layout | None) -> bool:
    if layout is None or file.bytes > HEAD_BYTES:
        return layout is not None
    chunk = Chunk(file, 0, 0, None)
    if isinstance(layout, parquet.ParquetLayout):
        return layout.count_lines(chunk) > 0
    return any(len(cells.positions) or cells.bad_lines for _, cells in layout.read(chunk, {}))


def format_of(file: InputFile) -> Literal["parquet", "json_lines", "delimited"]:
    """Return the format of a file by its first bytes, or else its name."""
    if file.is_parquet:
        return "parquet"
    # The last suffix of a packed file says how it is packed, as a rule.
    suffixes = PurePosixPath(file.base_name.lower()).suffixes[-1 if file.packing is None else -2 :]
    return next((_FORMATS[suffix] for suffix in reversed(suffixes) if suffix in _FORMATS), "delimited")


def _check_names(
    layouts: dict[InputFile, Layout],
    optional: frozenset[str],
    needed: Collection[str] | None,
    is_ignored: Callable[[str], bool] | None,
) -> None:
    first_file, first = next(iter(layouts.items()))
    has_first = set(names_of(first_file, first))
    for file, layout in layouts.items():
        if isinstance(layout, json_lines.JsonLinesLayout) or (
            layout is first and file.partitions == first_file.partitions
        ):
            continue
        differing = has_first.symmetric_difference(names_of(file, layout))
        for name in sorted(differing - optional if needed is None else differing.intersection(needed)):
            if is_ignored is not None and is_ignored(name):
                continue
            lacks, has = (file, first_file) if name in has_first else (first_file, file)
            ignore = "" if is_ignored is None else ", or list it in source.ignore"
            raise UserError(
                f"{lacks.name}: no column '{name}', which {has.name} has; give files of the same columns{ignore}"
            )


def _merge(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return the columns of all schemas, each of a type for all its values."""
    types: dict[str, list[pa.DataType]] = {}
    for field in (field for schema in schemas for field in schema):
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        types.setdefault(field.name, []).append(kind)
    return pa.schema({name: common_type(of_name) for name, of_name in types.items()})


def common_type(types: Iterable[pa.DataType]) -> pa.DataType:
    """Return the type for values of several ones; text where they differ other than in width."""
    try:
        schemas = [pa.schema([("", kind)]) for kind in types]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowTypeError:
        return pa.string()
