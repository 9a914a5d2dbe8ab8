"""The best of many: candidates in a context by descending score, and the items with the highest scores for a user."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError, did_you_mean
from rayrec.config.transforms import Vocabulary
from rayrec.features.raw_columns import RawColumn
from rayrec.features.raw_values import needs, read_values
from rayrec.features.schema import CategoricalFeature
from rayrec.features.vocabulary import VocabularyLookup
from rayrec.inference.folder.facts import KnownItems, can_recommend
from rayrec.inference.predictor import Predictor, load_model
from rayrec.inference.raw_rows import describe_value

# ---- candidates in a context


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


# ---- items for a user


class UnknownUserError(UserError):
    """The user is not among those that the model was trained on."""


@dataclass(frozen=True)
class Recommendations:
    """The best items of one user, by descending score."""

    items: list[str]
    """Items as the raw data names them."""
    scores: NDArray[np.float32]
    """(len(items),) probabilities."""


def load_recommender(folder: str | Path) -> "Recommender":
    """Return the recommender of a model folder, on CPU.

    Raises UserError if the folder is not one of users and items.
    """
    return Recommender(load_model(folder))


class Recommender:
    """Ranks the whole catalogue for a user. Nothing in it changes after construction, so threads may share one."""

    def __init__(self, predictor: Predictor) -> None:
        schema = predictor.schema
        if not can_recommend(schema):
            raise UserError(
                f"{predictor.folder}: the model needs more features than a user and an item, so it cannot recommend; "
                "score rows of all its features instead"
            )
        assert schema.interactions is not None
        self.predictor = predictor
        by_name = {feature.name: feature for feature in schema.categorical}
        user, item = by_name[schema.interactions.user], by_name[schema.interactions.item]
        self._user = user.columns[0]
        self._user_is_first = schema.features[0].name == user.name
        self._users, self._items = (_vocabulary(feature, predictor) for feature in (user, item))
        self._removed_items = self._items.removed()
        self._known = KnownItems.load(predictor.model_folder)

    def recommend(self, user: str, k: int, *, exclude_known: bool = True) -> Recommendations:
        """Return the `k` items of highest score, fewer if the catalogue has fewer; equal scores by popularity.

        `exclude_known` leaves out the items that the user has in any split of the data. Raises UnknownUserError.
        """
        user_id = int(self._users.ids(self.predictor.raw_rows.from_values(self._user, [user]))[0])
        if user_id == 0:
            raise UnknownUserError(f"no user '{user[:100]}' in the model's training data")
        ((ids, scores),) = self.recommend_ids(np.array([user_id]), k, exclude_known=exclude_known)
        return Recommendations(self.item_values(ids).to_pylist(), scores)

    @property
    def user_ids(self) -> NDArray[np.int64]:
        """Ids of the known users, ascending."""
        return np.setdiff1d(np.arange(1, len(self._users) + 1), self._users.removed(), assume_unique=True)

    @property
    def num_items(self) -> int:
        """Items of the catalogue; their ids are 1 ... num_items, and some of them may have left it."""
        return len(self._items)

    def user_values(self, ids: NDArray[np.int64]) -> pa.Array:
        """Return the raw values (string) of user ids from 1."""
        return self._users.values(ids).cast(pa.string())

    def recommend_ids(
        self, user_ids: NDArray[np.int64], k: int, *, exclude_known: bool = True
    ) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Return the item ids and scores of the best `k` for each of some users' ids (see `recommend`).

        Holds a score for every pair of a user and an item.
        """
        items = np.arange(1, len(self._items) + 1, dtype=np.int64)
        if self._user_is_first:
            scores = self.predictor.predict_pairs(user_ids, items)
        else:
            scores = self.predictor.predict_pairs(items, user_ids).T
        left_out = [self._left_out(int(user), exclude_known) for user in user_ids]
        return [_best(of_user, ids, k) for of_user, ids in zip(scores, left_out, strict=True)]

    def _left_out(self, user: int, exclude_known: bool) -> NDArray[Any]:
        """Return the ids of the items that are not recommended to a user."""
        if not exclude_known:
            return self._removed_items
        known = self._known.of(user)
        return np.union1d(known, self._removed_items) if len(self._removed_items) else known

    def item_values(self, ids: NDArray[np.int64]) -> pa.Array:
        """Return the raw values (string) of item ids from 1."""
        return self._items.values(ids).cast(pa.string())


def _best(scores: NDArray[np.float32], left_out: NDArray[Any], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the ids and scores of the best `k` items by descending score, then id; without those of the ids
    `left_out`.
    """
    candidates = scores.copy()
    candidates[left_out - 1] = -1.0  # no probability
    k = min(k, len(scores) - len(left_out))
    best = np.arange(len(scores))
    if k < len(scores):
        # All items with the k-th score or a higher one, so that ids decide ties, not the partition.
        best = np.flatnonzero(candidates >= np.partition(candidates, -k)[-k]) if k else best[:0]
    best = best[np.argsort(-candidates[best], kind="stable")][:k]
    return best + 1, scores[best]


def _vocabulary(feature: CategoricalFeature, predictor: Predictor) -> VocabularyLookup:
    match feature.transforms:
        case (Vocabulary(),):
            return predictor.vocabularies[feature.name]
        case _:
            raise UserError(
                f"{predictor.folder}: ids of '{feature.name}' stand for several values (its table is capped), so they "
                "do not name an item; preprocess without preprocess.max_table_size"
            )
