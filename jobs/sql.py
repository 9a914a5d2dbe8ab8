"""`rayrec sql`: asks a dataset, scores or any other finished folder with Parquet files by DuckDB's SQL."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, PositiveInt, TypeAdapter

from jobs.command import Command, Metavar, Positional, Request, Result, describe_outcome, main, text_table
from jobs.verify import load_manifest
from rayrec.common.disk_errors import naming
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import Progress
from rayrec.store.folders import require_absent
from rayrec.store.paths import Folder, RemotePath, cache_root

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

    from rayrec.features.schema import Schema

_ROWS = TypeAdapter(list[dict[str, Any]], config=ConfigDict(ser_json_bytes="base64"))


class SqlRequest(Request):
    """Ask a dataset, scores or another finished folder by SQL.

    The folders in it are tables: train, validation, test, rejected, scores, ... Those of vocabularies are one table,
    vocabulary (feature, value, id, count).
    """

    folder: Annotated[Folder, Positional("FOLDER|URI")]
    """Folder with a manifest.json, such as a dataset's or that of scores."""
    query: Annotated[str, Positional("QUERY")]
    """One SELECT, DESCRIBE or SUMMARIZE, in DuckDB's SQL."""
    rows: PositiveInt = 20
    """Most rows to print."""
    output: Annotated[Folder, Metavar("FILE.parquet|FILE.csv")] | None = None
    """New file for all rows, which are not printed then."""

    def check(self) -> None:
        if self.output is not None and self.output.suffix not in (".parquet", ".csv"):
            raise ConfigError(f"--output {self.output}: the name of a file of rows ends in .parquet or .csv")


def run(request: SqlRequest, progress: Progress) -> Result:
    """Ask; `rows` counts the rows of the answer, as far as they are printed or written.

    `details.rows` has those to print, each a mapping from the names of the columns to JSON values (times and bytes are
    texts); `details.more` says that there are others.
    """
    from rayrec.preprocessing.engines.sql import query

    if request.output is not None:
        require_absent(request.output)
    tables = _tables(request.folder, request.query)
    progress.stage("query")
    with _told_in_a_line(request, tables):
        _require_one_question(request.query)
        answer = query(request.query, **tables)
        names = answer.schema.names
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(f"query: two columns '{twice}'; give one another name with AS")
        if request.output is not None:
            return Result(command="sql", output=request.output, rows=_write(answer, request.output, progress))
        # Whether there are more rows than are wanted, one row more tells.
        found: list[dict[str, Any]] = []
        for batch in answer:
            found += batch.slice(0, request.rows + 1 - len(found)).to_pylist()
            if len(found) > request.rows:
                break
    rows = _ROWS.dump_python([_with_plain_numbers(row) for row in found[: request.rows]], mode="json")
    more = len(found) > request.rows
    return Result(command="sql", rows=len(rows), details={"columns": names, "rows": rows, "more": more})


def _tables(folder: Path, query: str) -> dict[str, "ds.Dataset"]:
    """Return the tables in a folder by name, as Arrow's datasets of Parquet files.

    DuckDB reads no file itself, as what it may read it may overwrite, too.
    """
    import pyarrow.dataset as ds

    from rayrec.features.schema import Schema
    from rayrec.store.node_copy import on_this_node

    # The Parquet files of each folder in it.
    files: dict[str, list[str]] = {}
    for path in sorted(file.path for file in load_manifest(folder).every_file):
        if path.endswith(".parquet") and "/" in path:
            files.setdefault(path.partition("/")[0], []).append(path)
    if not files:
        raise UserError(f"{folder}: has no Parquet files; give a dataset or scores")
    tables = {}
    for name, paths in files.items():
        # A table at a URI is copied to this node; one whose name is not in the query cannot be asked for.
        if isinstance(folder, RemotePath) and name.lower() not in query.lower():
            continue
        here = on_this_node(folder / name).parent
        if name == "vocabulary":
            tables[name] = _vocabulary(Schema.load(folder), here, paths)
        else:
            tables[name] = ds.dataset([str(here / path) for path in paths], format="parquet")
    return tables


def _vocabulary(schema: "Schema", folder: Path, paths: Sequence[str]) -> "ds.Dataset":
    """Return the vocabularies of all features as one table, in which a condition on `feature` chooses the files."""
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyarrow.fs import LocalFileSystem

    disk, parquet, fragments = LocalFileSystem(), ds.ParquetFileFormat(), []
    for feature in schema.categorical:
        listed = feature.vocabulary.file if feature.vocabulary is not None else ""
        for path in paths:
            if path == listed or path.startswith(f"{listed}/"):
                of_feature = ds.field("feature") == feature.name
                file = str(folder / path)
                fragments.append(parquet.make_fragment(file, disk, partition_expression=of_feature))
    columns = pa.schema([("feature", pa.string()), *fragments[0].physical_schema])
    return ds.FileSystemDataset(fragments, columns, parquet, disk)


def _require_one_question(query: str) -> None:
    """Raise ConfigError for no or several statements, and for those that change something."""
    import duckdb

    # PIVOT is of the kind MULTI.
    if [statement.type.name for statement in duckdb.extract_statements(query)] not in (["SELECT"], ["MULTI"]):
        raise ConfigError("query: is not one SELECT, DESCRIBE or SUMMARIZE; a folder is only read")


def _write(answer: "pa.RecordBatchReader", path: Path, progress: Progress) -> int:
    """Write all rows to a file, which is whole or absent; return their number."""
    import pyarrow as pa
    from pyarrow.csv import CSVWriter

    from rayrec.store.files import new_file
    from rayrec.store.parquet import new_parquet

    rows = 0
    try:
        with ExitStack() as stack:
            if path.suffix == ".csv":
                writer = stack.enter_context(CSVWriter(stack.enter_context(new_file(path)), answer.schema))
            else:
                writer = stack.enter_context(new_parquet(path, answer.schema))
            for batch in answer:
                writer.write_batch(batch)
                rows += batch.num_rows
                progress.advance(batch.num_rows)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UserError(
            f"{path}: {str(error).splitlines()[0]}; cast the column in the query, or write .parquet"
        ) from None
    return rows


def _with_plain_numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row in which decimals, such as a sum of integers, are numbers as JSON has them."""

    def plain(value: Decimal) -> int | float:
        return int(value) if value == value.to_integral_value() else float(value)

    return {name: plain(value) if isinstance(value, Decimal) else value for name, value in row.items()}


@contextmanager
def _told_in_a_line(request: SqlRequest, tables: Mapping[str, object]) -> Iterator[None]:
    """Raise ConfigError for what DuckDB says against the query, without the lines that point at the place in it."""
    import duckdb

    try:
        with naming(cache_root()):  # where DuckDB keeps rows beyond the memory
            yield
    except duckdb.Error as error:
        said = " ".join(str(error).partition("\n\nLINE")[0].split())
        known = f"; tables: {', '.join(tables)}" if isinstance(error, duckdb.CatalogException) else ""
        raise ConfigError(f"query: {said}{known}") from None


def describe(result: Result) -> str:
    """Return the rows as a table, and whether there are more."""
    if result.output is not None:
        return describe_outcome(result)
    details = result.details
    if not details["rows"]:
        return f"no rows ({', '.join(details['columns'])})"
    more = "\n... more rows: --rows N prints more, --output FILE.parquet writes all" if details["more"] else ""
    return text_table(details["rows"]) + more


COMMAND = Command("sql", SqlRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
