"""Generated things as rows of Outbrain's tables, ids being numbers plus 1."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.random.splitmix64 import mix
from rayrec.sources.generated_text import to_hexadecimal
from rayrec.sources.outbrain.outbrain_tables import ARROW_TYPES, FIRST_MILLISECOND, NULL, Kind, OutbrainTable
from rayrec.sources.outbrain.synthetic.displays import Displays, Visits
from rayrec.sources.outbrain.synthetic.world import ASPECTS, World

_WRITTEN: dict[Kind, pa.DataType] = ARROW_TYPES | {"code": pa.string(), "time": pa.string()}
SCHEMAS = {table: pa.schema([(c.name, _WRITTEN[c.kind]) for c in table.layout.columns]) for table in OutbrainTable}
"""The columns of the rows as they are written."""
_CODES = pa.array([NULL, "1", "2", "3"])
_UUID_BITS = 56
_FIRST_CATEGORY = 1_000


def event_rows(world: World, landings: Visits, first: int) -> pa.RecordBatch:
    """Return the events of the displays of landings, the first of which is number `first`."""
    display = np.arange(first, first + len(landings.user)) + 1
    return _batch(OutbrainTable.EVENTS, [display, *_visits(world, landings)])


def click_rows(
    displays: Displays, clicked: NDArray[np.int64], chosen: NDArray[np.bool_], first: int, table: OutbrainTable
) -> pa.RecordBatch:
    """Return the ads of the chosen ones of n displays, the first of which is number `first`; clicked positions (n,)."""
    is_row = displays.is_shown & chosen[:, None]
    display, position = np.nonzero(is_row)
    columns = [display + first + 1, displays.ads[is_row] + 1, (position == clicked[display]).astype(np.int8)]
    return _batch(table, columns[: len(SCHEMAS[table])])


def page_view_rows(world: World, views: Visits) -> pa.RecordBatch:
    return _batch(OutbrainTable.PAGE_VIEWS, [*_visits(world, views), _CODES.take(pa.array(views.traffic))])


def _visits(world: World, visits: Visits) -> list[NDArray[np.int64] | pa.Array]:
    """Return the columns that events and page views share."""
    place = np.where(visits.place < 0, len(world.places), visits.place)
    return [
        _uuids(visits.user),
        visits.document + 1,
        visits.timestamp,
        _CODES.take(pa.array(visits.platform)),
        pa.array([*world.places, NULL]).take(pa.array(place)),
    ]


def document_rows(world: World, document: NDArray[np.int64]) -> dict[OutbrainTable, pa.RecordBatch]:
    """documents_meta and the tables of the aspects."""
    meta = world.meta(document)
    published = (FIRST_MILLISECOND // 1_000 - meta.age).astype("datetime64[s]")
    times = np.char.replace(np.datetime_as_string(published), "T", " ")
    source, publisher = (pa.array(x + 1, mask=x < 0) for x in (meta.source, meta.publisher))
    columns = [document + 1, source, publisher, pa.array(times, mask=~meta.has_time)]
    rows = {OutbrainTable.DOCUMENTS_META: _batch(OutbrainTable.DOCUMENTS_META, columns)}
    for aspect in ASPECTS:
        slots = world.aspect(aspect, document)
        owner, position = np.nonzero(slots.confidence > 0.0)
        values = slots.values[owner, position]
        ids = _entities(values) if aspect == "entities" else values + _FIRST_CATEGORY * (aspect == "categories")
        table = OutbrainTable(f"documents_{aspect}")
        rows[table] = _batch(table, [document[owner] + 1, ids, slots.confidence[owner, position]])
    return rows


def ad_rows(world: World, ad: NDArray[np.int64]) -> pa.RecordBatch:
    """promoted_content."""
    columns = [ad, world.ad_document(ad), world.campaign(ad), world.advertiser(ad)]
    return _batch(OutbrainTable.PROMOTED_CONTENT, [column + 1 for column in columns])


def _batch(table: OutbrainTable, columns: Sequence[NDArray[np.int64] | pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=SCHEMAS[table])


def _uuids(user: NDArray[np.int64]) -> pa.StringArray:
    """Return fourteen hexadecimal digits, others for every user: products with odd numbers and shifts are
    bijections.
    """
    mask = np.uint64(2**_UUID_BITS - 1)
    x = (user.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7D) & mask
    x = ((x ^ (x >> np.uint64(28))) * np.uint64(0x58476D1CE4E5B9)) & mask
    x ^= x >> np.uint64(28)
    return pc.utf8_slice_codeunits(to_hexadecimal(x), 16 - _UUID_BITS // 4)


def _entities(entity: NDArray[np.int64]) -> pa.StringArray:
    """Return thirty-two hexadecimal digits."""
    first = mix(entity.astype(np.uint64))
    return pc.binary_join_element_wise(to_hexadecimal(first), to_hexadecimal(mix(first)), "")
