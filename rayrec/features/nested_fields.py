"""Fields of objects as columns: the row {"user": {"geo": {"country": "NZ"}}} has the column `user.geo.country`.

JSON, Parquet and requests may hold objects within rows. What reads them makes columns of their fields, however deep, so
that no other part knows of objects. Objects within lists stay as they are.
"""

from collections.abc import Container, Iterator, Mapping
from typing import Any

import pyarrow as pa


def fields_of(
    row: Mapping[str, Any], columns: Container[str] = (), above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the values of a row, those of its objects in their place, each with the names that lead to it.

    An object that stands where one of `columns` should have its value stays whole, as what is wrong.
    """
    for name, value in row.items():
        path = (*above, name)
        if isinstance(value, Mapping) and ".".join(path) not in columns:
            yield from fields_of(value, columns, path)
        else:
            yield path, value


def flat_row(row: Mapping[str, Any], columns: Container[str] = ()) -> Mapping[str, Any]:
    """Return the row with the fields of its objects in their place; itself if it has none. See `fields_of`."""
    if not any(isinstance(value, Mapping) for value in row.values()):
        return row
    return {".".join(path): value for path, value in fields_of(row, columns)}


def flat_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with the fields of structs in their place."""
    while any(pa.types.is_struct(field.type) for field in schema):
        schema = pa.schema([part for field in schema for part in field.flatten()])
    return schema


def flat_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return (n,) rows with the fields of structs in their place; those of a missing struct are missing."""
    while any(pa.types.is_struct(kind) for kind in batch.schema.types):
        flat = pa.Table.from_batches([batch]).flatten()
        batch = pa.RecordBatch.from_arrays([column.combine_chunks() for column in flat.columns], flat.column_names)
    return batch


def nested_schema(kinds: Mapping[tuple[str, ...], pa.DataType]) -> pa.Schema | None:
    """Return the schema of rows whose values have these types, by the names that lead to them.

    None if there is none: an object has the name of another value.
    """
    columns = {path[0]: kind for path, kind in kinds.items() if len(path) == 1}
    inner: dict[str, dict[tuple[str, ...], pa.DataType]] = {}
    for path, kind in kinds.items():
        if len(path) > 1:
            inner.setdefault(path[0], {})[path[1:]] = kind
    for name, fields in inner.items():
        schema = nested_schema(fields)
        if name in columns or schema is None:
            return None
        columns[name] = pa.struct(list(schema))
    return pa.schema(columns)
