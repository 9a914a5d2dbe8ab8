"""Size and reading speed of Parquet parts by compression, encoding and row group: the choice of ShardLayoutConfig.

    python -m benchmarks.shard_layout --rows 1000000 --output benchmarks/results/shard_layout.json

Generated Criteo rows are encoded as preprocessing does (frequency limit 15) and written in every layout. Reading is
that of training: row groups in random order into packed arrays, one thread, the file in the page cache. Time is the
process's own (CPU) time, so that other work on the machine disturbs little; the best of `--repeats` counts.
"""

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayrec.common.machine import Machine
from rayrec.config.transforms import Fill, Log, Vocabulary
from rayrec.features.encoder import FeatureEncoder
from rayrec.features.schema import CategoricalFeature, NumericFeature, Schema
from rayrec.ingest.packed_rows import RowPacker
from rayrec.preprocessing.vocabularies import vocabulary_file
from rayrec.sources.criteo.config import CATEGORICAL, LABEL, NUMERIC
from rayrec.sources.criteo.generator import criteo_rows
from rayrec.store.files import write_json
from tests.vocabularies import write_vocabulary

_FREQUENCY_LIMIT = 15
_COMPRESSIONS = ("none", "snappy", "lz4", "zstd")
_ROW_GROUPS = (8_192, 32_768, 131_072)
_ENCODINGS = ("plain", "dictionary", "byte stream split", "delta")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    machine = Machine()
    with tempfile.TemporaryDirectory() as folder:
        schema, table = _encoded_rows(Path(folder), arguments.rows)
        layouts = [
            _measure(Path(folder), schema, table, compression, encoding, row_group, arguments.repeats)
            for compression, encoding, row_group in itertools.product(_COMPRESSIONS, _ENCODINGS, _ROW_GROUPS)
        ]
        types = [
            _measure_types(Path(folder), name, typed, arguments.repeats) for name, typed in _other_types(table).items()
        ]
    result = {
        "rows": arguments.rows,
        "bytes_in_memory": table.nbytes,
        "machine": machine.described(),
        "layouts": layouts,
        "types": types,
    }
    write_json(arguments.output, result)


def _encoded_rows(folder: Path, rows: int) -> tuple[Schema, pa.Table]:
    """Return generated rows as a dataset holds them."""
    raw = pa.Table.from_batches(chunk.rows for chunk in criteo_rows(seed=0).chunks(rows))
    features: list[NumericFeature | CategoricalFeature] = [
        NumericFeature(name=name, transforms=(Log(offset=3.0), Fill())) for name in NUMERIC
    ]
    for name in CATEGORICAL:
        vocabulary = _fit(folder, raw[name], name)
        features.append(CategoricalFeature(name=name, transforms=(vocabulary,), cardinality=vocabulary.size + 1))
    schema = Schema(label=LABEL, features=tuple(features))
    encoder = FeatureEncoder(schema, folder)
    encoded = pa.Table.from_batches([encoder.encode(batch) for batch in raw.to_batches()])
    label = raw[LABEL].cast(pa.float32())
    return schema, encoded.add_column(0, pa.field(LABEL, pa.float32(), False), label).combine_chunks()


def _fit(folder: Path, values: pa.ChunkedArray, name: str) -> Vocabulary:
    counted = pa.Table.from_struct_array(values.drop_null().value_counts())
    listed = counted.filter(pc.greater_equal(counted["counts"], _FREQUENCY_LIMIT))
    ranked = listed.sort_by([("counts", "descending"), ("values", "ascending")])
    path = folder / vocabulary_file(name, len(ranked))
    write_vocabulary(path, ranked["values"].to_pylist(), ranked["counts"].to_pylist())
    return Vocabulary(file=vocabulary_file(name, len(ranked)), size=len(ranked))


def _measure(
    folder: Path, schema: Schema, table: pa.Table, compression: str, encoding: str, row_group: int, repeats: int
) -> dict[str, Any]:
    path = folder / "part.parquet"
    options = _options(table.schema, encoding)
    write_seconds = _cpu_seconds(
        lambda: pq.write_table(
            table, path, row_group_size=row_group, compression=compression, write_statistics=False, **options
        )
    )
    packer = RowPacker(folder, schema)
    order = np.random.default_rng(0).permutation(-(-len(table) // row_group)).tolist()
    read_seconds = [_cpu_seconds(lambda: [packer.read(path.name, group) for group in order]) for _ in range(repeats)]
    result = {
        "compression": compression,
        "encoding": encoding,
        "rows_per_row_group": row_group,
        "bytes_per_row": round(path.stat().st_size / len(table), 2),
        "million_rows_read_per_cpu_second": round(len(table) / min(read_seconds) / 1e6, 2),
        "million_rows_written_per_cpu_second": round(len(table) / write_seconds / 1e6, 2),
    }
    print(*result.values(), sep="\t")
    return result


def _other_types(table: pa.Table) -> dict[str, pa.Table]:
    """Return the same rows with other types of columns."""

    def cast(numbers: pa.DataType, ids: Callable[[pa.ChunkedArray], pa.DataType]) -> pa.Table:
        columns = [c.cast(numbers if pa.types.is_floating(c.type) else ids(c)) for c in table.columns]
        return pa.table(columns, names=table.column_names)

    def smallest(column: pa.ChunkedArray) -> pa.DataType:
        largest = pc.max(column).as_py()
        return next(t for t, top in ((pa.int8(), 2**7), (pa.int16(), 2**15), (pa.int32(), 2**31)) if largest < top)

    return {
        "float32, int32": table,
        "float32, int64": cast(pa.float32(), lambda _: pa.int64()),
        "float32, smallest int": cast(pa.float32(), smallest),
        "float16, int32": cast(pa.float16(), lambda _: pa.int32()),
    }


def _measure_types(folder: Path, name: str, table: pa.Table, repeats: int) -> dict[str, Any]:
    """Return the chosen layout with other types, read column by column and cast to what training wants."""
    path = folder / "part.parquet"
    pq.write_table(table, path, row_group_size=32_768, compression="lz4", write_statistics=False, use_dictionary=True)

    def read() -> None:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                for column in file.read_row_group(group, use_threads=False).columns:
                    values = column.to_numpy()
                    values.astype(np.float32 if values.dtype.kind == "f" else np.int32, copy=False)

    result = {
        "types": name,
        "bytes_per_row": round(path.stat().st_size / len(table), 2),
        "million_rows_read_per_cpu_second": round(
            len(table) / min(_cpu_seconds(read) for _ in range(repeats)) / 1e6, 2
        ),
    }
    print(*result.values(), sep="\t")
    return result


def _options(schema: pa.Schema, encoding: str) -> dict[str, Any]:
    match encoding:
        case "plain":
            return {"use_dictionary": False}
        case "dictionary":
            return {"use_dictionary": True}
        case "byte stream split":
            return {"use_dictionary": False, "use_byte_stream_split": True}
        case "delta":
            integers = {field.name: "DELTA_BINARY_PACKED" for field in schema if pa.types.is_integer(field.type)}
            return {"use_dictionary": False, "column_encoding": integers}
    raise AssertionError(encoding)


def _cpu_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    main()
