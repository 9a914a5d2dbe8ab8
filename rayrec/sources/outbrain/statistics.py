"""The statistics of a dataset: tables of documents, ads, click-through rates and users' profiles, looked up by key.

    statistics/constants.json
    statistics/documents/   document -> source, publisher, time of publication, values of the three aspects
    statistics/ads/         ad -> document, campaign, advertiser
    statistics/rates/<key>/ key -> rows of train, clicked rows, distinct ads
    statistics/profiles/    user -> page views, documents viewed, weights by value (`full` alone)

The tables have the format of `rayrec.features.lookup_table`. Preprocessing writes them into the dataset, export copies
them into the model, and the same code computes the features from them in both.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

import pyarrow as pa
from pydantic import NonNegativeFloat, NonNegativeInt

from rayrec.common.errors import UserError
from rayrec.config import Config
from rayrec.config.validation import read_json
from rayrec.features.lookup_table import HASH, LookupTable
from rayrec.features.lookups import RATES_FOLDER
from rayrec.sources.outbrain.tables import OutbrainTable
from rayrec.store.files import write_json

CONSTANTS_FILE = "constants.json"
Aspect = Literal["category", "topic", "entity"]
ASPECTS: tuple[Aspect, ...] = ("category", "topic", "entity")
KEY = "first"
"""The column of the key in a table of rates."""
PLURALS: dict[Aspect, str] = {"category": "categories", "topic": "topics", "entity": "entities"}

_HASH = pa.field(HASH, pa.int64(), False)
_VALUE = pa.field("value", pa.int64(), False)
"""An id of an aspect; for an entity the hash of its text."""
_DOCUMENT_VALUE = pa.struct(
    [_VALUE, pa.field("confidence", pa.float64(), False), pa.field("weight", pa.float64(), False)]
)
_PROFILE_VALUE = pa.struct([_VALUE, pa.field("weight", pa.float64(), False)])

DOCUMENT_SCHEMA = pa.schema(
    [
        _HASH,
        *OutbrainTable.DOCUMENTS_META.layout.schema,
        # Values ascending.
        *(pa.field(aspect, pa.list_(_DOCUMENT_VALUE), False) for aspect in ASPECTS),
        # The values of the highest confidence, in the order of the list features.
        *(pa.field(f"{aspect}_list", pa.list_(pa.int64()), False) for aspect in ASPECTS),
    ]
)
AD_SCHEMA = pa.schema([_HASH, *OutbrainTable.PROMOTED_CONTENT.layout.schema])
PROFILE_SCHEMA = pa.schema(
    [
        _HASH,
        pa.field("uuid", pa.string(), False),
        pa.field("views", pa.int64(), False),
        pa.field("viewed", pa.list_(pa.int64()), False),  # documents, ascending
        *(pa.field(aspect, pa.list_(_PROFILE_VALUE), False) for aspect in ASPECTS),  # values ascending
        *(pa.field(f"{aspect}_norm", pa.float64(), False) for aspect in ASPECTS),
    ]
)


Referred = Literal["user", "landing", "ad", "ad_document"]
"""What an ad in a context refers to: the profile of the user, the landing document, the ad, and the ad's document."""


@dataclass(frozen=True)
class RateKey:
    """A key that clicks are counted by, such as the ad or the publisher of its document."""

    name: str
    least: int
    """A rate is known if more rows of `train` than these have the key."""
    column: str
    """The column of the key; in lists of values each one is a key."""
    of: Referred | None = None
    """Whose column it is; None for one of the row itself."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of the key's table; `confidence` is the mean of the ad documents' confidences in the value."""
        numbers = [pa.field(name, pa.int64(), False) for name in (KEY, "views", "clicks", "ads")]
        return pa.schema([_HASH, *numbers, pa.field("confidence", pa.float64(), False)])


RATE_KEYS = {
    key.name: key
    for key in (
        RateKey("ad", 5, "ad_id"),
        RateKey("document", 5, "document_id", "ad"),
        RateKey("source", 10, "source_id", "ad_document"),
        RateKey("publisher", 10, "publisher_id", "ad_document"),
        RateKey("advertiser", 10, "advertiser_id", "ad"),
        RateKey("campaign", 10, "campaign_id", "ad"),
        RateKey("category", 10, "category", "ad_document"),
        RateKey("topic", 10, "topic", "ad_document"),
        RateKey("entity", 5, "entity", "ad_document"),
    )
}
"""The keys by name, in the order of docs/outbrain.md."""


class Constants(Config):
    """The numbers that the features need besides the tables."""

    feature_set: Literal["full", "lean"]
    documents: NonNegativeInt
    """Number of documents that have a source."""
    values: dict[str, NonNegativeInt]
    """Number of distinct values by aspect."""
    mean_rate: float
    """Share of the rows of `train` that were clicked."""
    smoothing: NonNegativeFloat

    def save(self, folder: Path) -> None:
        write_json(folder / CONSTANTS_FILE, self.model_dump(mode="json"))

    @classmethod
    def load(cls, folder: Path) -> "Constants":
        """Read the constants of `folder`. Raises UserError if the file is missing or damaged."""
        path = folder / CONSTANTS_FILE
        constants = read_json(cls, path, "create its folder again")
        if constants is None:
            raise UserError(f"{path}: missing; the statistics belong beside schema.json")
        return constants


@dataclass(frozen=True)
class Statistics:
    """The tables of a folder, each opened when it is first used."""

    folder: Path
    constants: Constants
    rates_by_fold: Path | None = None
    """Folder of tables of rates that also have the sums of each fold of `train` (views_0, clicks_0, ...); only
    preprocessing has it."""

    @classmethod
    def open(cls, folder: Path, rates_by_fold: Path | None = None) -> "Statistics":
        """Return the statistics in `folder`. Raises UserError if it holds none."""
        return cls(folder, Constants.load(folder), rates_by_fold)

    @classmethod
    @lru_cache(maxsize=4)
    def cached(cls, folder: Path, rates_by_fold: Path | None = None) -> "Statistics":
        """Return the statistics that this process opened before; the folders must not change meanwhile."""
        return cls.open(folder, rates_by_fold)

    @cached_property
    def documents(self) -> LookupTable:
        return LookupTable.open(self.folder / "documents")

    @cached_property
    def ads(self) -> LookupTable:
        return LookupTable.open(self.folder / "ads")

    @cached_property
    def profiles(self) -> LookupTable:
        return LookupTable.open(self.folder / "profiles")

    @cached_property
    def rates(self) -> dict[str, LookupTable]:
        """Return the tables of rates by the names of their keys."""
        folder = self.rates_by_fold or self.folder / RATES_FOLDER
        return {name: LookupTable.open(folder / name) for name in RATE_KEYS}
