"""Values that rows give for categorical features, and that the model does not know."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.config.transforms import HashIds, HashUnlisted, Vocabulary
from rayrec.features.lookups import Lookups
from rayrec.features.raw_columns import Rate
from rayrec.features.schema import CategoricalFeature, MultiHotFeature, Schema
from rayrec.features.transforms import ids_of, lengths_of

ENOUGH = 100
"""Values from which it is no chance that most are unknown."""
_EXAMPLES = 3
_LOOKED_AT = 100
"""Unknown values that examples are taken from."""


@dataclass(frozen=True)
class UnknownValues:
    """Counts of values and unknown values in a raw column."""

    values: int = 0
    """Values that are not missing; of lists those up to the feature's hotness."""
    unknown: int = 0
    """Values that are not listed in the vocabulary, whether they are hashed or not, or no id of the table."""
    examples: tuple[str, ...] = ()

    def __add__(self, other: "UnknownValues") -> "UnknownValues":
        examples = tuple(dict.fromkeys((*self.examples, *other.examples)))[:_EXAMPLES]
        return UnknownValues(self.values + other.values, self.unknown + other.unknown, examples)

    @property
    def are_most(self) -> bool:
        """Tell whether more values are unknown than known."""
        return 2 * self.unknown > self.values

    def described(self, column: str) -> str:
        """Return a line for a person."""
        examples = ", ".join(f"{value[:40]!a}" for value in self.examples)
        return (
            f"column '{column}': {self.unknown / self.values:.0%} of {self.values:,} values are unknown to the model "
            f"(such as {examples})"
        )


def count_unknown(
    schema: Schema, raw: pa.RecordBatch | pa.Table, encoded: pa.RecordBatch, lookups: Lookups | None = None
) -> dict[str, UnknownValues]:
    """Count by raw column the unknown values of n rows, of which `encoded` is what the encoder made of `raw`.

    Where several features read a column, the one that knows most counts. Columns of hashed values have no unknown
    ones; of a table that is capped below its vocabulary and the rows of unlisted values nobody can tell from the ids.
    Columns that are looked up play no part, but the keys that `lookups` finds them by do, as `KEY (LOOK-UP)`.
    """
    found: dict[str, UnknownValues] = {}
    looked_up = schema.looked_up
    for feature in schema.categorical:
        column = feature.columns[0]
        if column in looked_up or not _tells_unknown(feature):
            continue
        given, ids = raw.column(column), encoded.column(feature.name)
        if isinstance(feature, MultiHotFeature):
            one = _of_lists(given, ids, feature.unlisted_buckets)
        else:
            one = _of_values(given, ids.to_numpy() <= feature.unlisted_buckets, not feature.transforms)
        if column not in found or one.unknown < found[column].unknown:
            found[column] = one
    features = frozenset(found)
    for batch in raw.to_batches() if isinstance(raw, pa.Table) else [raw]:
        for lookup, _, keys, is_found in lookups.keys_found(batch) if lookups is not None else ():
            if isinstance(lookup, Rate) and features.intersection(lookup.keys):
                continue  # it was counted in the rows that the vocabulary is of
            name = f"{' and '.join(lookup.keys)} ({lookup.name})"
            found[name] = found.get(name, UnknownValues()) + _of_values(keys.cast(pa.string()), ~is_found, False)
    return found


def _tells_unknown(feature: CategoricalFeature) -> bool:
    match feature.transforms:
        case () if not isinstance(feature, MultiHotFeature):
            return True
        case (Vocabulary(),) | (Vocabulary(), HashIds() | HashUnlisted()):
            return True
    return False


def _of_values(given: pa.Array | pa.ChunkedArray, is_unlisted: NDArray[np.bool_], are_ids: bool) -> UnknownValues:
    """Return those of one value a row, which is unknown or missing where `is_unlisted`."""
    known = len(given) - int(np.count_nonzero(is_unlisted))
    if known == len(given) - given.null_count:
        return UnknownValues(known)
    values = given.filter(pa.array(is_unlisted)).drop_null()
    # Row 0 of the table is that of missing values.
    missing = 0 if are_ids else "" if pa.types.is_string(given.type) else None
    if missing is not None:
        values = values.filter(pc.not_equal(values, missing))
    examples = pc.unique(values[:_LOOKED_AT])[:_EXAMPLES].to_pylist()
    return UnknownValues(known + len(values), len(values), tuple(map(str, examples)))


def _of_lists(given: pa.Array | pa.ChunkedArray, ids: pa.Array, unlisted_buckets: int) -> UnknownValues:
    is_unlisted = ids_of(ids.flatten()).to_numpy() <= unlisted_buckets
    unknown = int(np.count_nonzero(is_unlisted))
    if not unknown:
        return UnknownValues(len(is_unlisted))
    # Missing values of a list have no id, so an example is the first value of a list of unknown ones alone.
    row = np.repeat(np.arange(len(ids)), lengths_of(ids))
    rows = np.setdiff1d(row[is_unlisted], row[~is_unlisted])[:_EXAMPLES]
    lists = given.take(pa.array(rows)).to_pylist()
    examples = dict.fromkeys(str(next(value for value in values if value not in {None, ""})) for values in lists)
    return UnknownValues(len(is_unlisted), unknown, tuple(examples))
