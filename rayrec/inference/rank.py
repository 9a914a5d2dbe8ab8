"""The best of many: candidates in a context by descending score."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError, did_you_mean
from rayrec.features.raw_columns import RawColumn
from rayrec.features.raw_values import needs, read_values
from rayrec.inference.predictor import Predictor
from rayrec.inference.raw_rows import describe_value


class FeatureLookup(Protocol):
    """Looks up the features of candidates in a context; a model's source provides one.

    Columns are int64 or string.
    """

    @property
    def context(self) -> pa.Schema:
        """Fields of a context, all of them optional."""

    @property
    def candidate(self) -> pa.Field:
        """Column of the candidates."""

    def features(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the raw features (n rows) of n rows with the columns of `candidate` and `context`."""


@dataclass(frozen=True)
class Ranking:
    """Candidates by descending score; those of equal scores in the order given."""

    candidates: list[Any]
    scores: NDArray[np.float32]
    """(len(candidates),) probabilities of a positive label."""

    @classmethod
    def of(cls, candidates: Sequence[Any], scores: NDArray[np.float32], k: int | None = None) -> "Ranking":
        """Return the best `k` of `candidates`, whose scores are given in their order."""
        order = np.argsort(-scores, kind="stable")[:k]
        return cls([candidates[index] for index in order], scores[order])


@dataclass(frozen=True)
class Ranker:
    """Ranks candidates for a context. It does not change after construction, so threads may share one."""

    predictor: Predictor
    lookup: FeatureLookup | None
    """None if the source looks nothing up of candidates, so that they are objects of raw features."""
    candidate: str | None = None
    """The raw feature that names candidates: a value of it alone stands for an object of nothing else."""

    def rank(self, context: Mapping[str, Any], candidates: Sequence[Any], k: int | None = None) -> Ranking:
        """Return the best `k` of `candidates`, all of them by default.

        Candidates are ids, and `context` has values of the fields of `lookup.context`; or candidates are objects of raw
        features, and `context` has the features that all of them share. A field that is left out or null is missing, as
        in training. Raises UserError naming the field that is unknown or of a wrong type.
        """
        return Ranking.of(candidates, self.scores(context, candidates), k)

    def scores(self, context: Mapping[str, Any], candidates: Sequence[Any]) -> NDArray[np.float32]:
        """Return the probability of a positive label of each candidate. Raises UserError as `rank`."""
        return self.predictor.predict(self.rows(context, candidates))

    def rows(self, context: Mapping[str, Any], candidates: Sequence[Any]) -> pa.RecordBatch:
        """Return the raw features of the candidates, a row each: what `Predictor.predict` takes."""
        if self.lookup is None or any(isinstance(candidate, Mapping) for candidate in candidates):
            return self._rows_of_objects(context, candidates)
        fields, candidate = self.lookup.context, self.lookup.candidate
        if not isinstance(context, Mapping):
            raise UserError(f"context: give an object with {', '.join(fields.names)}")
        others = (name for name in context if name not in fields.names)
        unknown = next((name for name in others if not self.predictor.raw_rows.is_unneeded(name)), None)
        if unknown is not None:
            hint = did_you_mean(str(unknown), fields.names, "fields:")
            raise UserError(f"context: unknown field '{str(unknown)[:100]}'; {hint}")
        places = [f"candidates[{place}]" for place in range(len(candidates))]
        columns = [_read(places, list(candidates), candidate.type, needs_values=True)]
        for field in fields:
            (value,) = _read([f"context.{field.name}"], [context.get(field.name)], field.type)
            columns.append(pa.repeat(value, len(candidates)))
        rows = pa.RecordBatch.from_arrays(columns, schema=pa.schema([candidate, *fields]))
        return self.predictor.raw_rows.from_batch(self.lookup.features(rows))

    def _rows_of_objects(self, context: Mapping[str, Any], candidates: Sequence[Any]) -> pa.RecordBatch:
        if not isinstance(context, Mapping):
            raise UserError("context: give an object of the features that all candidates share")
        rows: list[dict[str, Any]] = []
        for index, candidate in enumerate(candidates):
            if isinstance(candidate, Mapping):
                rows.append({**context, **candidate})
            elif self.candidate is not None:
                rows.append({**context, self.candidate: candidate})
            else:
                raise UserError(
                    f"candidates[{index}]: give an object of raw features, as for all other candidates; the model "
                    "cannot look anything up by an id"
                )
        try:
            return self.predictor.raw_rows.from_rows(rows)
        except UserError as error:
            # Its rows are those of the candidates, and what is wrong may stand in the context.
            try:
                self.predictor.raw_rows.from_rows([context])
            except UserError as of_context:
                raise UserError(str(of_context).replace("row 0", "context", 1)) from None
            raise UserError(re.sub(r"^row (\d+)", r"candidates[\1]", str(error))) from None


def _read(places: Sequence[str], values: list[Any], kind: pa.DataType, *, needs_values: bool = False) -> pa.Array:
    """Read ids of one column as files of the source have them. Raises UserError that begins with the value's place."""
    raw = RawColumn(name="", type="text" if pa.types.is_string(kind) else "integer", form="number")
    found, wrong = read_values(values, raw)
    wrong = wrong | found.is_null().to_numpy(zero_copy_only=False) if needs_values else wrong
    if wrong.any():
        place = int(wrong.argmax())
        raise UserError(f"{places[place]}: {describe_value(values[place])}; needs {needs(raw)}")
    return found
