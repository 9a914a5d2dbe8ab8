"""The ranker: a display's context and candidate ads in, the ads by descending score out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.inference.predictor import Predictor, load_model
from rayrec.sources.outbrain.features.raw import raw_features
from rayrec.sources.outbrain.features.rows import ROW_SCHEMA
from rayrec.sources.outbrain.layout import CODES
from rayrec.sources.outbrain.statistics import STATISTICS_FOLDER, Statistics

_AD = "ad_id"
CONTEXT = tuple(name for name in ROW_SCHEMA.names if name != _AD)
"""The fields of a context, all of them optional."""
_CODES = ("platform", "traffic_source")


@dataclass(frozen=True)
class Ranking:
    """Ads by descending score; those of equal scores in the order given."""

    ads: list[int]
    scores: NDArray[np.float32]
    """(len(ads),) probabilities of a click."""

    @classmethod
    def of(cls, ads: Sequence[int], scores: NDArray[np.float32], k: int | None = None) -> "Ranking":
        """The best `k` of `ads`, whose scores are given in their order."""
        order = np.argsort(-scores, kind="stable")[:k]
        return cls([int(ads[index]) for index in order], scores[order])


def can_rank(folder: Path) -> bool:
    """Whether the features of a model folder are looked up from a context and an ad."""
    return (folder / STATISTICS_FOLDER).is_dir()


def load_ranker(folder: str | Path) -> "Ranker":
    """The ranker of a model folder, on CPU. Raises UserError where its features are not looked up in statistics."""
    return Ranker(load_model(folder))


class Ranker:
    """Ranks ads for a context. Nothing that it answers with changes after construction, so threads may share one."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        if not can_rank(predictor.folder):
            raise UserError(
                f"{predictor.folder}: has no {STATISTICS_FOLDER}/ to look features up in; score rows of all its "
                "features instead, or export a model of source.kind 'outbrain'"
            )
        self.statistics = Statistics.open(predictor.folder / STATISTICS_FOLDER)

    def rank(self, context: Mapping[str, Any], ads: Sequence[int], k: int | None = None) -> Ranking:
        """The best `k` of `ads` (ids as in promoted_content), all of them by default.

        `context`: uuid, document_id (the page shown), timestamp (ms, as in events.csv), platform (1 to 3),
        geo_location (CC>ST>DMA), traffic_source (1 to 3). What is left out, null or never seen before is treated as in
        training. Raises UserError naming the field that is unknown or of a wrong type.
        """
        return Ranking.of(ads, self.scores(context, ads), k)

    def scores(self, context: Mapping[str, Any], ads: Sequence[int]) -> NDArray[np.float32]:
        """(len(ads),) probabilities of a click, in the order of `ads`. Raises UserError as `rank`."""
        return self.predictor.predict(self.rows(context, ads))

    def rows(self, context: Mapping[str, Any], ads: Sequence[int]) -> pa.RecordBatch:
        """The raw features of each ad in the context, one row an ad: what `Predictor.predict` takes."""
        checked = _checked_context(context)
        if self.statistics.constants.is_original_full and None in (checked["platform"], checked["geo_location"]):
            # Such events are dropped before anything else.
            checked = dict.fromkeys(checked)
        ids = pa.array([_checked_id(f"ads[{index}]", ad) for index, ad in enumerate(ads)], pa.int64())
        columns = [
            ids if field.name == _AD else pa.repeat(pa.scalar(checked[field.name], field.type), len(ids))
            for field in ROW_SCHEMA
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)
        return self.predictor.raw_rows.from_batch(raw_features(self.statistics, rows))


def _checked_context(context: Mapping[str, Any]) -> dict[str, int | str | None]:
    if not isinstance(context, Mapping):
        raise UserError(f"context: give an object with {', '.join(CONTEXT)}")
    unknown = next((name for name in context if name not in CONTEXT), None)
    if unknown is not None:
        raise UserError(f"context: unknown field '{str(unknown)[:100]}'; fields: {', '.join(CONTEXT)}")
    checked: dict[str, int | str | None] = {}
    for name in CONTEXT:
        value = context.get(name)
        if value is None:
            checked[name] = None
        elif pa.types.is_string(ROW_SCHEMA.field(name).type):
            # The empty field of the tables is null, too.
            checked[name] = _checked_text(f"context.{name}", value) or None
        else:
            number = _checked_id(f"context.{name}", value)
            checked[name] = None if name in _CODES and number not in CODES else number
    return checked


def _checked_text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where}: a value of type {type(value).__name__}; needs a string, or null where it is missing")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: no valid Unicode; needs text, or null where it is missing") from None
    return value


def _checked_id(where: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not -(2**63) <= int(value) < 2**63:
        raise UserError(f"{where}: a value of type {type(value).__name__}; needs an integer of 64 bits")
    return int(value)
