"""How often places and entities occur, by which the original codes them."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from rayrec.features.keyed_table import HASH, hash_texts, write_file
from rayrec.preprocessing.spark_tasks import collect_rows, user_errors
from rayrec.preprocessing.vocabularies.hash_ranges import ROW_COUNT, row_count
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.features.places import countries, states
from rayrec.sources.outbrain.preprocessing.clicks import events
from rayrec.sources.outbrain.preprocessing.tables import ParsedTables
from rayrec.sources.outbrain.statistics import TEXT_COUNT_SCHEMA, VALUE_COUNT_SCHEMA


def write_counts(workspace: Workspace, tables: ParsedTables, values: Path, folder: Path) -> None:
    """Write a table of places, of states, of countries and of entities; `values`: folder of the aspects' values."""
    workspace.progress.stage("occurrences")

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # As many as there are places, not events.
        places = pa.Table.from_batches(batches)
        text = places["geo_location"].combine_chunks()
        for name, of in {"place": text, "state": states(text), "country": countries(text)}.items():
            counted = pa.table({"text": of, "events": places["count"]}).group_by("text").aggregate([("events", "sum")])
            _write_texts(folder / name, counted["text"].combine_chunks(), counted["events_sum"].combine_chunks())
        yield row_count(len(places))

    with user_errors():
        placed = events(workspace, tables, placed=True).groupBy("geo_location").count()
        collect_rows(placed.repartition(1).mapInArrow(write, ROW_COUNT))
    for path in (values / "entity").glob("*.arrow"):
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
            batches = (file.get_batch(index) for index in range(file.num_record_batches))
            columns = (
                batch.select([HASH, "value", "documents"]).rename_columns(VALUE_COUNT_SCHEMA.names) for batch in batches
            )
            write_file(folder / "entity", VALUE_COUNT_SCHEMA, (batch.cast(VALUE_COUNT_SCHEMA) for batch in columns))


def _write_texts(folder: Path, texts: pa.Array, counts: pa.Array) -> None:
    table = pa.table([pa.array(hash_texts(texts)), texts, counts], schema=TEXT_COUNT_SCHEMA).sort_by(HASH)
    write_file(folder, TEXT_COUNT_SCHEMA, table.combine_chunks().to_batches())
