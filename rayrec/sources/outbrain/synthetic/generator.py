"""Outbrain's tables, any number of clicks in constant memory, drawn from known preferences.

Users come in blocks of fixed size, each from its own random stream, and everything else is a function of its number: so
a table depends on the seed and its length alone. More rows repeat the rows that fewer rows had, but for the last
two displays, whose sizes are made to fit.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa

from rayrec.common.errors import UserError
from rayrec.common.progress import Progress, SilentProgress
from rayrec.sources.generated_text import csv_file
from rayrec.sources.outbrain.outbrain_tables import DAY_MILLISECONDS, OutbrainTable
from rayrec.sources.outbrain.synthetic.displays import BLOCK_USERS, MOST_ADS, Displays, Visits, draw_block
from rayrec.sources.outbrain.synthetic.generated_tables import (
    SCHEMAS,
    ad_rows,
    click_rows,
    document_rows,
    event_rows,
    page_view_rows,
)
from rayrec.sources.outbrain.synthetic.preferences import Preferences
from rayrec.sources.outbrain.synthetic.truth import HELD_OUT_FROM_DAY, TRUTH_FILE, OutbrainTruth, RankingAccumulator
from rayrec.sources.outbrain.synthetic.world import ADS_A_DOCUMENT, PROMOTED_EVERY, World
from rayrec.store.files import write_json
from rayrec.store.folders import new_folder

LEAST_ROWS = 2
_DOCUMENTS_A_BATCH = 16_384


class OutbrainGenerator:
    """An endless sequence of blocks of users that depends on the seed alone."""

    def __init__(self, seed: int = 0) -> None:
        seeds = np.random.SeedSequence(seed).generate_state(3)
        world_seed, preferences_seed, self._blocks_seed = map(int, seeds)
        self.world = World(world_seed)
        self.preferences = Preferences(self.world, preferences_seed)

    def blocks(self) -> Iterator[tuple[Displays, Visits]]:
        """Yield the displays and page views of the users from the first on."""
        return (draw_block(self.world, self.preferences, self._blocks_seed, number) for number in count())


def generate(
    output: Path, rows: int, *, seed: int = 0, compress: bool = False, progress: Progress | None = None
) -> OutbrainTruth:
    """Write the nine tables, `rows` lines of clicks_train, and `truth.json` into the new folder `output`.

    Files are named as Outbrain's, with `compress` gzip files ending in `.gz`. Raises UserError on arguments out of
    range or an existing output.
    """
    if rows < LEAST_ROWS:
        raise UserError(f"rows: {rows}; give {LEAST_ROWS} or more, the size of a display")
    progress = progress or SilentProgress()
    generator = OutbrainGenerator(seed)
    world = generator.world
    everywhere, held_out = RankingAccumulator(), RankingAccumulator()
    displays = page_views = blocks = written = 0
    with new_folder(output) as folder, ExitStack() as stack:
        write = {
            table: stack.enter_context(csv_file(folder / f"{table.value}.csv{'.gz' * compress}", schema))
            for table, schema in SCHEMAS.items()
        }
        progress.stage("generate", rows)
        for drawn, views in generator.blocks():
            shown = _cut(drawn, rows - written)
            clicked = shown.clicked()
            write[OutbrainTable.EVENTS](event_rows(world, shown.landings, displays))
            for table, is_chosen in (
                (OutbrainTable.CLICKS_TRAIN, ~shown.is_test),
                (OutbrainTable.CLICKS_TEST, shown.is_test),
            ):
                write[table](click_rows(shown, clicked, is_chosen, displays, table))
            write[OutbrainTable.PAGE_VIEWS](page_view_rows(world, views))
            everywhere.add(shown, clicked, ~shown.is_test)
            is_late = shown.landings.timestamp >= HELD_OUT_FROM_DAY * DAY_MILLISECONDS
            held_out.add(shown, clicked, ~shown.is_test & is_late)
            added = int(shown.size[~shown.is_test].sum())
            written += added
            displays += len(shown.size)
            page_views += len(views.user)
            blocks += 1
            progress.advance(added)
            if written == rows:
                break
        promoted = world.promoted_documents((blocks - 1) * BLOCK_USERS)
        _write_documents(world, promoted, write, progress)
        truth = everywhere.result()
        assert truth is not None
        result = OutbrainTruth(
            source="outbrain",
            seed=seed,
            rows=rows,
            displays=displays,
            users=blocks * BLOCK_USERS,
            documents=promoted * PROMOTED_EVERY,
            ads=promoted * ADS_A_DOCUMENT,
            page_views=page_views,
            all=truth,
            held_out=held_out.result(),
        )
        write_json(folder / TRUTH_FILE, result.model_dump(mode="json"))
    return result


def _write_documents(
    world: World, promoted: int, write: dict[OutbrainTable, Callable[[pa.RecordBatch], None]], progress: Progress
) -> None:
    """Return the tables of documents and ads."""
    documents, ads = promoted * PROMOTED_EVERY, promoted * ADS_A_DOCUMENT
    progress.stage("documents", documents)
    for start in range(0, documents, _DOCUMENTS_A_BATCH):
        document = np.arange(start, min(start + _DOCUMENTS_A_BATCH, documents))
        for table, batch in document_rows(world, document).items():
            write[table](batch)
        progress.advance(len(document))
    for start in range(0, ads, _DOCUMENTS_A_BATCH):
        write[OutbrainTable.PROMOTED_CONTENT](ad_rows(world, np.arange(start, min(start + _DOCUMENTS_A_BATCH, ads))))


def _cut(displays: Displays, rows: int) -> Displays:
    """Return the first displays, with `rows` rows of clicks_train among them; all where these have fewer.

    The last display is cut. A display has at least two ads: where a single row would be left for one more, the display
    before takes it, or, being full, gives up one.
    """
    sizes = np.where(displays.is_test, 0, displays.size)
    ends = np.cumsum(sizes)
    last = int(np.searchsorted(ends, rows))
    is_whole = last == len(ends)
    left = rows - int(ends[-1] if is_whole else ends[last] - sizes[last])
    size = displays.size.copy()
    if left == 1:
        before = int(np.flatnonzero(sizes[:last])[-1])
        if size[before] < MOST_ADS:
            size[before] += 1
            return displays.first(before + 1, size)
        size[before] -= 1
        left = 2
    if not is_whole:
        size[last] = left
    return displays.first(last + 1, size)
