"""Outbrain's tables, any number of clicks in constant memory, drawn from known preferences.

Documents and ads are a fixed catalogue. Users come in blocks of fixed size, each from its own random stream: more rows
begin with the rows that fewer rows had, but for the last display, whose size is made to fit.

Of the ads of a display the one is clicked whose utility plus standard Gumbel noise is largest, so ad a is clicked with
probability exp(u_a) / sum_b exp(u_b) (multinomial logit; McFadden 1974). Ids in the tables are the numbers here plus 1.
"""

from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.common.progress import Progress, SilentProgress
from rayrec.config import Config
from rayrec.random.arrays import mix
from rayrec.sources.generated_files import TRUTH_FILE, rows_file, to_hexadecimal
from rayrec.sources.outbrain.places import OFFSET_BY_STATE
from rayrec.sources.outbrain.tables import (
    ARROW_TYPES,
    DAY_MILLISECONDS,
    FIRST_MILLISECOND,
    Kind,
    OutbrainTable,
)
from rayrec.sources.synthetic import World
from rayrec.store.files import write_json
from rayrec.store.folders import new_folder

# Document d has the main topic d mod TOPICS, topic t the main category t mod CATEGORIES. Ad a leads to document
# a mod PROMOTED, so both have one topic; the other documents are the pages that users read.
TOPICS, CATEGORIES = 200, 40
DOCUMENTS, PROMOTED, ADS = 4_000, 1_000, 2_000
SOURCES, ADVERTISERS = 150, 60
ENTITIES = 40
"""Entities of a topic."""
BLOCK_USERS = 512
DAYS, FIRST_TEST_DAY, HELD_OUT_FROM_DAY = 15, 13, 11
LEAST_ADS, MOST_ADS = 2, 12

_WRITTEN: dict[Kind, pa.DataType] = ARROW_TYPES | dict.fromkeys(("hash", "time"), pa.string())
VISIT = np.dtype([(n, np.int64) for n in ("user", "document", "timestamp", "platform", "place", "traffic")])
"""A view of a document; platform and traffic source are 1 to 3."""
DISPLAY = np.dtype([
    ("landing", VISIT),
    ("is_test", np.bool_),
    ("size", np.int64),
    ("ads", np.int64, MOST_ADS),
    ("quality", np.float64, MOST_ADS),
    ("utility", np.float64, MOST_ADS),
    ("noise", np.float64, MOST_ADS),
])  # fmt: skip
"""A display, which shows the first `size` of its ads. `quality` is the part of `utility` that belongs to the ad."""
Records = NDArray[np.void]


class RankingTruth(Config):
    """MAP@12 of rankings of displays with a known click: the mean of 1 / rank of the clicked ad."""

    displays: int
    best: float
    """MAP@12 by the true utilities: on average no model ranks better."""
    random: float
    """The expected MAP@12 of a random order."""
    quality_alone: float
    """MAP@12 by the quality of the ads, the best order that is the same for all users, pages and contexts."""

    @classmethod
    def of(cls, sums: NDArray[np.float64]) -> Self:
        """Return the means of `ranking_sums` of at least one display."""
        best, random, quality_alone = (sums[1:] / sums[0]).tolist()
        return cls(displays=int(sums[0]), best=best, random=random, quality_alone=quality_alone)


class OutbrainTruth(Config):
    """`truth.json`, beside generated tables."""

    source: str
    seed: int
    rows: int
    """Lines of clicks_train."""
    all: RankingTruth
    """Displays of clicks_train."""
    held_out: RankingTruth | None
    """Displays of clicks_train from day 11 on; None if there are none."""
    method: str = (
        "Clicks are drawn from a known multinomial logit over the ads of each display. MAP@12 of rankings by the true "
        "utilities against the clicks that were drawn; exact."
    )


class Catalogue:
    """The documents, ads, topics and places of a seed."""

    def __init__(self, world: World) -> None:
        self.world = world
        rng = world.rng("catalogue", 0)
        self.source = rng.integers(SOURCES, size=DOCUMENTS)
        self.age = rng.exponential(200.0 * DAY_MILLISECONDS, DOCUMENTS).astype(np.int64)
        """Milliseconds from publication to the first day."""
        self.is_known = rng.random((3, DOCUMENTS)) > [[0.03], [0.05], [0.25]]
        """Whether source, publisher and time of publication are given."""
        # A campaign has two ads of a topic.
        self.campaign = np.arange(ADS) // (2 * TOPICS) * TOPICS + np.arange(ADS) % TOPICS
        self.advertiser = rng.integers(ADVERTISERS, size=ADS // 2)[self.campaign]
        self.topics = rng.permutation(TOPICS)
        """Those that users care for most first: what few write about, many read."""
        american = [f"{state}>{area}" for state in OFFSET_BY_STATE if state[:2] == "US" for area in range(501, 505)]
        abroad = [f"{country}>0{region}" for country in ("AU", "CA", "DE", "GB", "IN") for region in (1, 2, 3)]
        self.places = rng.permutation([*american, *abroad])

        document = np.arange(ADS) % PROMOTED
        self.quality = (
            0.6 * rng.standard_normal(ADVERTISERS)[self.advertiser]
            + 0.5 * rng.standard_normal(SOURCES)[self.source[document]]
            + 0.3 * rng.standard_normal(ADS)
            + 0.5 * np.exp(-self.age[document] / (100.0 * DAY_MILLISECONDS))
        )
        """The part of an ad's utility that is the same for all users, pages and contexts."""
        self.suits = 0.35 * rng.standard_normal((3, 4, ADVERTISERS))
        """How much a platform, a country and a source of traffic suit an advertiser."""

    def tables(self) -> dict[OutbrainTable, list[Any]]:
        """Return the columns (n,) of the tables of documents and ads."""
        ads = np.arange(ADS)
        published = ((FIRST_MILLISECOND - self.age) // 1_000).astype("datetime64[s]")
        meta = (self.source + 1, self.source // 4 + 1, np.char.replace(np.datetime_as_string(published), "T", " "))
        nulls = [pa.array(column, mask=~known) for column, known in zip(meta, self.is_known, strict=True)]
        return {
            OutbrainTable.DOCUMENTS_META: [np.arange(DOCUMENTS) + 1, *nulls],
            **{OutbrainTable(f"documents_{name}"): self._aspect(name) for name in ("categories", "topics", "entities")},
            OutbrainTable.PROMOTED_CONTENT: [ads + 1, ads % PROMOTED + 1, self.campaign + 1, self.advertiser + 1],
        }

    def _aspect(self, name: str) -> list[Any]:
        """Return the columns (n,) of a table of documents: document, value, confidence; no pair comes twice."""
        rng, document = self.world.rng(name, 0), np.arange(DOCUMENTS)[:, None]
        slots, values = {"categories": (2, CATEGORIES), "topics": (3, TOPICS), "entities": (5, ENTITIES)}[name]
        # The first value is the document's own; steps that stay below the number of values lead to distinct others.
        own = rng.integers(values, size=document.shape) if name == "entities" else document % values
        steps = np.cumsum(rng.integers(1, values // slots, (DOCUMENTS, slots)), axis=1)
        value = (own + steps - steps[:, :1]) % values
        confidence = rng.uniform(0.02, 0.25, value.shape) + 0.5 * (np.arange(slots) == 0)
        # The k-th value, from 0 on, is there with probability 0.75^k, and some documents have none.
        is_there = (rng.random(value.shape) < 0.75 ** np.arange(slots)) & (rng.random(document.shape) > 0.08)
        owner, slot = np.nonzero(is_there)
        value, confidence = value[owner, slot], confidence[owner, slot].round(6)
        # Each topic has entities of its own.
        written = _hexadecimal(owner % TOPICS * ENTITIES + value, 32) if name == "entities" else value + 1
        return [owner + 1, written, confidence]

    def block(self, number: int) -> tuple[Records, Records]:
        """Return the displays and the page views of the users of block `number` (from 0)."""
        rng = self.world.rng("block", number)
        # A user cares for two topics, and is at one place, mostly with one device.
        interests = self.topics[_popular(rng, TOPICS, (BLOCK_USERS, 2))]
        home = rng.choice(self.places.size, BLOCK_USERS)
        device = rng.choice(3, BLOCK_USERS, p=(0.4, 0.47, 0.13)) + 1

        def visits(counts: NDArray[np.int64]) -> Records:
            """Return so many visits of each user to pages: mostly of their topics, else of popular ones."""
            user = rng.permutation(np.repeat(np.arange(BLOCK_USERS), counts))
            n = len(user)
            topic = np.where(rng.random(n) < 0.7, interests[user, rng.integers(2, size=n)], _popular(rng, TOPICS, n))
            page = PROMOTED // TOPICS + _popular(rng, (DOCUMENTS - PROMOTED) // TOPICS, n)
            found = np.empty(n, VISIT)
            found["user"], found["document"] = user, page * TOPICS + topic
            found["timestamp"] = rng.integers(DAYS * DAY_MILLISECONDS, size=n)
            found["platform"] = np.where(rng.random(n) < 0.8, device[user], rng.integers(1, 4, n))
            found["place"], found["traffic"] = home[user], rng.choice(3, n, p=(0.6, 0.25, 0.15)) + 1
            return found

        landings = visits(1 + rng.poisson(0.7, BLOCK_USERS))
        views = visits(rng.poisson(rng.exponential(15.0, BLOCK_USERS)))
        # Now and then a promoted document.
        views["document"] %= np.where(rng.random(len(views)) < 0.08, PROMOTED, DOCUMENTS)
        displays = self._displays(rng, landings, interests[landings["user"]])
        # Most landings are among the views, which tell where the traffic of the display came from.
        views = np.concatenate([views, landings[rng.random(len(landings)) < 0.92]])
        views = views[np.lexsort((views["timestamp"], views["user"]))]
        for visited in (displays["landing"], views):
            visited["user"] += number * BLOCK_USERS
        return displays, views

    def _displays(self, rng: np.random.Generator, landings: Records, interests: NDArray[np.int64]) -> Records:
        """Return what is shown at landings (n,) to users with interests (n, 2)."""
        n, page = len(landings), (landings["document"] % TOPICS)[:, None]
        is_late = landings["timestamp"] >= FIRST_TEST_DAY * DAY_MILLISECONDS
        displays = np.empty(n, DISPLAY)
        displays["landing"], displays["is_test"] = landings, is_late | (rng.random(n) < 0.02)

        # Ads of the page's topic, of the user's, of the page's category, or any; the first distinct ones are shown.
        shape = (n, 2 * MOST_ADS)
        of_user = np.take_along_axis(interests, rng.integers(2, size=shape), axis=1)
        of_category = (page + CATEGORIES * rng.integers(1, TOPICS // CATEGORIES, shape)) % TOPICS
        kind = rng.choice(4, shape, p=(0.15, 0.15, 0.1, 0.6))
        topic = np.choose(kind, [page, of_user, of_category, _popular(rng, TOPICS, shape)])
        drawn = _popular(rng, ADS // TOPICS, shape) * TOPICS + topic
        is_repeated = np.tril(drawn[:, :, None] == drawn[:, None, :], -1).any(axis=2)
        distinct_first = np.argsort(is_repeated, axis=1, kind="stable")[:, :MOST_ADS]
        displays["ads"] = ads = np.take_along_axis(drawn, distinct_first, axis=1)
        # At least one is left, as the last display may show one more.
        size = LEAST_ADS + rng.binomial(MOST_ADS - 1 - LEAST_ADS, 0.3, n)
        displays["size"] = np.minimum(size, (~is_repeated).sum(axis=1) - 1)

        # Quality, what fits the page and the user's interests, and what suits the context.
        topic, advertiser, utility = ads % TOPICS, self.advertiser[ads], self.quality[ads]
        for wanted in (page, interests[:, :1], interests[:, 1:]):
            utility += 1.0 * (topic == wanted) + 0.5 * (topic % CATEGORIES == wanted % CATEGORIES)
        is_american = np.char.startswith(self.places, "US")[landings["place"]].astype(np.int64)
        for suits, state in zip(self.suits, (landings["platform"], is_american, landings["traffic"]), strict=True):
            utility += suits[state[:, None], advertiser]
        displays["quality"], displays["utility"] = self.quality[ads], utility
        displays["noise"] = rng.gumbel(size=ads.shape)
        return displays


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
    everywhere, held_out = np.zeros((2, 4))
    displays = written = 0
    with new_folder(output) as folder, ExitStack() as stack:
        write = {t: stack.enter_context(rows_file(folder / f"{t.value}.csv{'.gz' * compress}")) for t in OutbrainTable}

        def write_rows(tables: dict[OutbrainTable, list[Any]]) -> None:
            for table, columns in tables.items():
                fields = pa.schema([(column.name, _WRITTEN[column.kind]) for column in table.layout.columns])
                arrays = [pa.array(values).cast(field.type) for values, field in zip(columns, fields, strict=True)]
                write[table](pa.RecordBatch.from_arrays(arrays, schema=fields))

        write_rows(catalogue.tables())
        progress.stage("generate", rows)
        for number in count():
            drawn, views = catalogue.block(number)
            shown = cut(drawn, rows - written)
            write_rows(_of_block(shown, views, displays, catalogue.places))
            train = shown[~shown["is_test"]]
            everywhere += ranking_sums(train)
            held_out += ranking_sums(train[train["landing"]["timestamp"] >= HELD_OUT_FROM_DAY * DAY_MILLISECONDS])
            new = int(train["size"].sum())
            progress.advance(new)
            displays, written = displays + len(shown), written + new
            if written == rows:
                break

        truth = OutbrainTruth(
            source="outbrain",
            seed=seed,
            rows=rows,
            all=RankingTruth.of(everywhere),
            held_out=RankingTruth.of(held_out) if held_out[0] else None,
        )
        write_json(folder / TRUTH_FILE, truth.model_dump(mode="json"))
    return truth


def cut(displays: Records, rows: int) -> Records:
    """Return the first displays, with `rows` (at least 2) rows of clicks_train among them; all if they have fewer.

    The last display is cut, or shows one more ad where a single row would be left for the next.
    """
    ends = np.where(displays["is_test"], 0, displays["size"]).cumsum()
    last = int(np.searchsorted(ends, rows - 1))
    displays = displays[: last + 1].copy()
    if last < len(ends):
        displays["size"][last] += rows - ends[last]
    return displays


def is_shown(displays: Records) -> NDArray[np.bool_]:
    """Return whether an ad of a display is shown, (n, MOST_ADS)."""
    return np.arange(MOST_ADS) < displays["size"][:, None]


def clicked_ads(displays: Records) -> NDArray[np.int64]:
    """Return the position of the clicked ad among those shown, (n,)."""
    return np.where(is_shown(displays), displays["utility"] + displays["noise"], -np.inf).argmax(axis=1)


def ranking_sums(displays: Records) -> NDArray[np.float64]:
    """Return sums over displays of 1 and of the clicked ad's 1 / rank: by utility, in a random order, by quality."""
    clicked, size = clicked_ads(displays)[:, None], displays["size"]
    better = [
        (is_shown(displays) & (displays[by] > np.take_along_axis(displays[by], clicked, axis=1))).sum(axis=1)
        for by in ("utility", "quality")
    ]
    harmonic = np.cumsum(1.0 / np.arange(1, MOST_ADS + 1))
    by_utility, by_quality = ((1.0 / (1 + ads)).sum() for ads in better)
    return np.array([len(displays), by_utility, (harmonic[size - 1] / size).sum(), by_quality])


def _of_block(
    displays: Records, views: Records, first: int, places: NDArray[np.str_]
) -> dict[OutbrainTable, list[Any]]:
    """Return the columns of displays, the first of which is number `first` (from 0), and of page views."""

    def seen(visits: Records) -> list[Any]:
        """Return the columns that events and page views share."""
        user, place = _hexadecimal(visits["user"], 14), places[visits["place"]]
        return [user, visits["document"] + 1, visits["timestamp"], visits["platform"], place]

    tables = {
        OutbrainTable.EVENTS: [first + 1 + np.arange(len(displays)), *seen(displays["landing"])],
        OutbrainTable.PAGE_VIEWS: [*seen(views), views["traffic"]],
    }
    clicked, is_test = clicked_ads(displays), displays["is_test"]
    for table, chosen in ((OutbrainTable.CLICKS_TRAIN, ~is_test), (OutbrainTable.CLICKS_TEST, is_test)):
        is_row = is_shown(displays) & chosen[:, None]
        display, position = np.nonzero(is_row)
        columns = [display + first + 1, displays["ads"][is_row] + 1, position == clicked[display]]
        tables[table] = columns[: len(table.layout.columns)]
    return tables


def _popular(rng: np.random.Generator, things: int, shape: int | tuple[int, ...]) -> NDArray[np.int64]:
    """Draw numbers from 0 on, low ones most often."""
    return (things * rng.random(shape) ** 2).astype(np.int64)


def _hexadecimal(numbers: NDArray[np.int64], digits: int) -> pa.StringArray:
    """Return up to 32 hexadecimal digits, practically others for every number."""
    first = mix(numbers.astype(np.uint64))
    text = pc.binary_join_element_wise(to_hexadecimal(first), to_hexadecimal(mix(first)), "")
    return pc.utf8_slice_codeunits(text, 0, digits)
