"""The recommender: a user in, the items with the highest scores out, but for those that the user has."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config.transforms import Vocabulary
from rayrec.features.schema import CategoricalFeature
from rayrec.features.vocabulary import VocabularyLookup
from rayrec.inference.folder.facts import KnownItems, can_recommend
from rayrec.inference.predictor import Predictor, load_model


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
