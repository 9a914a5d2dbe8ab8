"""Outbrain's tables, any number of clicks in constant memory, drawn from known preferences.

Users come in blocks of fixed size, each from its own random stream, and everything else is a function of its number: so
a table depends on the seed and its length alone. More rows repeat the rows that fewer rows had, but for the last
two displays, whose sizes are made to fit.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.common.progress import Progress, SilentProgress
from rayrec.random.arrays import mix
from rayrec.sources.generated_files import rows_file, to_hexadecimal
from rayrec.sources.outbrain.outbrain_tables import (
    ARROW_TYPES,
    DAY_MILLISECONDS,
    FIRST_MILLISECOND,
    NULL,
    Kind,
    OutbrainTable,
)
from rayrec.sources.outbrain.synthetic.catalogue import ADS_A_GROUP, ASPECTS, GROUP, Catalogue
from rayrec.sources.outbrain.synthetic.displays import (
    BLOCK_USERS,
    LEAST_ADS,
    MOST_ADS,
    Records,
    clicked_ads,
    draw_block,
    is_shown,
)
from rayrec.sources.outbrain.synthetic.truth import HELD_OUT_FROM_DAY, TRUTH_FILE, OutbrainTruth, RankingAccumulator
from rayrec.sources.synthetic import World
from rayrec.store.files import write_json
from rayrec.store.folders import new_folder

_DOCUMENTS_A_BATCH = 16_384
_WRITTEN: dict[Kind, pa.DataType] = ARROW_TYPES | dict.fromkeys(("hash", "code", "time"), pa.string())
_CODES = pa.array([NULL, "1", "2", "3"])
_FIRST_CATEGORY = 1_000
Rows = tuple[OutbrainTable, list[Any]]
"""Rows of a table: its columns (n,) in order, as NumPy or Arrow has them."""


def blocks(seed: int) -> Iterator[tuple[Records, Records]]:
    """Yield the displays and page views of the users from the first on."""
    world = World(seed)
    catalogue = Catalogue(world)
    return (draw_block(world, catalogue, number) for number in count())


def generate(
    output: Path, rows: int, *, seed: int = 0, compress: bool = False, progress: Progress | None = None
) -> OutbrainTruth:
    """Write the nine tables, `rows` lines of clicks_train, and `truth.json` into the new folder `output`.

    Files are named as Outbrain's, with `compress` gzip files ending in `.gz`. Raises UserError on arguments out of
    range or an existing output.
    """
    if rows < LEAST_ADS:
        raise UserError(f"rows: {rows}; give {LEAST_ADS} or more, the size of a display")
    progress = progress or SilentProgress()
    catalogue = Catalogue(World(seed))
    everywhere, held_out = RankingAccumulator(), RankingAccumulator()
    displays = page_views = users = written = 0
    with new_folder(output) as folder, ExitStack() as stack:
        write = {t: stack.enter_context(rows_file(folder / f"{t.value}.csv{'.gz' * compress}")) for t in OutbrainTable}

        def write_rows(tables: Iterable[Rows]) -> None:
            for table, columns in tables:
                fields = pa.schema([(column.name, _WRITTEN[column.kind]) for column in table.layout.columns])
                arrays = [pa.array(values, field.type) for values, field in zip(columns, fields, strict=True)]
                write[table](pa.RecordBatch.from_arrays(arrays, schema=fields))

        # What users see and do, block by block, until there are enough clicks.
        progress.stage("generate", rows)
        for drawn, views in blocks(seed):
            shown = cut(drawn, rows - written)
            write_rows(_of_block(catalogue, shown, views, displays))
            train = shown[~shown["is_test"]]
            everywhere.add(train)
            held_out.add(train[train["landing"]["timestamp"] >= HELD_OUT_FROM_DAY * DAY_MILLISECONDS])
            progress.advance(int(train["size"].sum()))
            written += int(train["size"].sum())
            displays, page_views, users = displays + len(shown), page_views + len(views), users + BLOCK_USERS
            if written == rows:
                break

        # The documents and ads that the last users could find.
        groups = catalogue.groups(users - BLOCK_USERS)
        documents, ads = groups * GROUP, groups * ADS_A_GROUP
        progress.stage("documents", documents)
        for start in range(0, documents, _DOCUMENTS_A_BATCH):
            document = np.arange(start, min(start + _DOCUMENTS_A_BATCH, documents))
            write_rows(_of_documents(catalogue, document))
            progress.advance(len(document))
        for start in range(0, ads, _DOCUMENTS_A_BATCH):
            ad = np.arange(start, min(start + _DOCUMENTS_A_BATCH, ads))
            columns = [ad, catalogue.ad_document(ad), catalogue.campaign(ad), catalogue.advertiser(ad)]
            write_rows([(OutbrainTable.PROMOTED_CONTENT, [column + 1 for column in columns])])

        truth = everywhere.result()
        assert truth is not None
        result = OutbrainTruth(
            source="outbrain",
            seed=seed,
            rows=rows,
            displays=displays,
            users=users,
            documents=documents,
            ads=ads,
            page_views=page_views,
            all=truth,
            held_out=held_out.result(),
        )
        write_json(folder / TRUTH_FILE, result.model_dump(mode="json"))
    return result


def cut(displays: Records, rows: int) -> Records:
    """Return the first displays, with `rows` rows of clicks_train among them; all where these have fewer.

    The last display is cut. A display has at least two ads: where a single row would be left for one more, the display
    before takes it, or, being full, gives up one.
    """
    displays = displays.copy()
    size, is_test = displays["size"], displays["is_test"]
    ends = np.where(is_test, 0, size).cumsum()
    before = int(np.searchsorted(ends, rows - 1))
    if before < len(ends) and ends[before] == rows - 1:
        size[before] += 1 if size[before] < MOST_ADS else -1
        ends = np.where(is_test, 0, size).cumsum()
    last = int(np.searchsorted(ends, rows))
    if last < len(ends):
        size[last] -= ends[last] - rows
    return displays[: last + 1]


def _of_block(catalogue: Catalogue, displays: Records, views: Records, first: int) -> Iterator[Rows]:
    """Yield the rows of displays, the first of which is number `first` (from 0), and of page views."""
    places = pa.array([*catalogue.places, NULL])

    def seen(visits: Records) -> list[Any]:
        """Return the columns that events and page views share."""
        place = np.where(visits["place"] < 0, len(places) - 1, visits["place"])
        platform = _CODES.take(pa.array(visits["platform"]))
        return [
            _hexadecimal(visits["user"], 14),
            visits["document"] + 1,
            visits["timestamp"],
            platform,
            places.take(pa.array(place)),
        ]

    yield OutbrainTable.EVENTS, [first + 1 + np.arange(len(displays)), *seen(displays["landing"])]
    clicked, is_test = clicked_ads(displays), displays["is_test"]
    for table, chosen in ((OutbrainTable.CLICKS_TRAIN, ~is_test), (OutbrainTable.CLICKS_TEST, is_test)):
        is_row = is_shown(displays) & chosen[:, None]
        display, position = np.nonzero(is_row)
        columns = [display + first + 1, displays["ads"][is_row] + 1, position == clicked[display]]
        yield table, columns[: len(table.layout.columns)]
    yield OutbrainTable.PAGE_VIEWS, [*seen(views), _CODES.take(pa.array(views["traffic"]))]


def _of_documents(catalogue: Catalogue, document: NDArray[np.int64]) -> Iterator[Rows]:
    """Yield the rows of documents_meta and of the tables of the aspects."""
    source, age = catalogue.source(document), catalogue.age(document)
    published = (FIRST_MILLISECOND // 1_000 - np.nan_to_num(age)).astype("datetime64[s]")
    times = pa.array(np.char.replace(np.datetime_as_string(published), "T", " "), mask=np.isnan(age))
    ids = [pa.array(number + 1, mask=number < 0) for number in (source, catalogue.publisher(source))]
    yield OutbrainTable.DOCUMENTS_META, [document + 1, *ids, times]
    for aspect in ASPECTS:
        slots = catalogue.aspect(aspect, document)
        owner, position = np.nonzero(slots.confidence > 0.0)
        values = slots.values[owner, position]
        named = (
            _hexadecimal(values, 32) if aspect == "entities" else values + _FIRST_CATEGORY * (aspect == "categories")
        )
        yield OutbrainTable(f"documents_{aspect}"), [document[owner] + 1, named, slots.confidence[owner, position]]


def _hexadecimal(numbers: NDArray[np.int64], digits: int) -> pa.StringArray:
    """Return up to thirty-two hexadecimal digits, practically others for every number."""
    first = mix(numbers.astype(np.uint64))
    text = pc.binary_join_element_wise(to_hexadecimal(first), to_hexadecimal(mix(first)), "")
    return pc.utf8_slice_codeunits(text, 0, digits)
