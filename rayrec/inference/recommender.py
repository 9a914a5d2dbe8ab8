"""Items for a person, and items like an item: the best of the whole catalogue by descending score."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config.transforms import Vocabulary
from rayrec.features.item_table import ITEMS_FILE, ItemTable
from rayrec.features.raw_columns import STATISTICS_FOLDER
from rayrec.features.schema import CategoricalFeature
from rayrec.features.vocabulary import VocabularyLookup
from rayrec.inference.folder.facts import KnownItems, can_recommend
from rayrec.inference.predictor import Predictor, load_model

_ASK_OTHERS = "models that read histories, such as 'sasrec', recommend to anybody"


class UnknownUserError(UserError):
    """The user is not among those that the model was trained on, and it reads nothing else of a user."""


class UnknownItemError(UserError):
    """The item is not among those that the model was trained on."""


@dataclass(frozen=True)
class Recommendations:
    """The best items for a user, or those most like an item, by descending score."""

    items: list[str]
    """Items as the raw data names them."""
    scores: NDArray[np.float32]
    """(len(items),) probabilities; of items like an item the cosines."""
    unknown_events: list[str]
    """Items of brought events that the model does not know: they were left out."""


def load_recommender(folder: str | Path) -> "Recommender":
    """Return the recommender of a model folder, on CPU.

    Raises UserError if the folder is not one of users and items.
    """
    return Recommender(load_model(folder))


class Recommender:
    """Ranks the whole catalogue. Threads may share one: nothing but what is computed when it is first needed changes
    after construction.
    """

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
        self._user, self._item = user.columns[0], item.columns[0]
        self._user_is_first = schema.features[0].name == user.name
        self._users, self._items = (_vocabulary(feature, predictor) for feature in (user, item))
        self._is_removed = np.zeros(len(self._items), bool)
        self._is_removed[self._items.removed() - 1] = True
        self._known = KnownItems.load(predictor.model_folder)
        table = predictor.model_folder.path(str(Path(STATISTICS_FOLDER, ITEMS_FILE)))
        self._table = ItemTable.load(table, len(self._items))
        self.reads_histories = predictor.scores_next_items
        """Whether it recommends to anybody by a history of items, and not by rows of users and items."""
        self.compares_items = predictor.compares_items
        """Whether the model has vectors of items, so that some are like others."""
        self.settings = predictor.recipe.serve.recommend
        """How its lists are made."""
        self._counts = self._known.counts(len(self._items))
        self._penalties = np.float32(self.settings.popularity_penalty) * np.log1p(self._counts)
        """What the logits (items,) lose."""

    @property
    def columns(self) -> tuple[str, str]:
        """Raw columns of the user and of the item."""
        return self._user, self._item

    @property
    def user_ids(self) -> NDArray[np.int64]:
        """Ids of the known users, ascending."""
        return np.setdiff1d(np.arange(1, len(self._users) + 1), self._users.removed(), assume_unique=True)

    @property
    def num_items(self) -> int:
        """Items of the catalogue; their ids are 1 ... num_items, and some of them may have left it."""
        return len(self._items)

    @property
    def item_ids(self) -> NDArray[np.int64]:
        """Ids of the items that have not left the catalogue, ascending."""
        return np.flatnonzero(~self._is_removed) + 1

    def item_vectors(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the vectors (n, D) of item ids; D is 0 if the model has none."""
        return self.predictor.item_vectors[ids - 1]

    def user_vectors(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the vectors (n, D) of ids of known users by their histories, whose products with those of items rank
        the items as `recommend` does; of whom no event is left, zeros.
        """
        no_events = np.empty(0, np.int64)
        return self.predictor.person_vectors([self._history(user, no_events) for user in ids.tolist()])

    def user_values(self, ids: NDArray[np.int64]) -> pa.Array:
        """Return the raw values (string) of user ids."""
        return self._users.values(ids).cast(pa.string())

    def item_values(self, ids: NDArray[np.int64]) -> pa.Array:
        """Return the raw values (string) of item ids."""
        return self._items.values(ids).cast(pa.string())

    def recommend(
        self,
        user: str | None,
        k: int,
        *,
        events: Sequence[str] = (),
        exclude_known: bool = True,
        allow: Sequence[str] | None = None,
        deny: Sequence[str] = (),
        filter: Mapping[str, Sequence[str]] | None = None,
    ) -> Recommendations:
        """Return the `k` items of highest score, fewer if no more may be recommended; equal scores by popularity.

        `exclude_known` leaves out the items that the user has in any split of the data, and those of `events`. `allow`
        and `deny` name the items that alone, or that never, are recommended; `filter` leaves those that have, in each
        of some columns of the table of items (`source.items`), one of some values. Raises UserError for a column that
        is not there.

        A model that reads histories takes anybody: `events` are items in order of time, the newest one last, which
        follow what is known of the user, if anything. An item that was there before does not count again, as in
        training, and one that the model does not know is left out. Scores are then probabilities of being the next
        item, which add up to 1 over the catalogue; of whom nothing is known, the items' shares of all known events.
        `serve.recommend.popularity_penalty` of the recipe changes the order, not the scores.

        Any other model takes the users of its training data and no events: it raises UnknownUserError, and UserError
        for events.
        """
        known, history, unknown = self._user_id(user), np.empty(0, np.int64), list[str]()
        if self.reads_histories:
            brought = self._item_ids(events)
            unknown = [event for event, id_ in zip(events, brought.tolist(), strict=True) if not id_]
            history = self._history(known, brought[brought > 0])
            scored = self._next_items(history)
        elif events:
            raise UserError(f"events: {self._kind} reads no history; leave them out, or {_ASK_OTHERS}")
        elif not known:
            if user is None:
                raise UserError(f"user: missing; {self._kind} recommends to users of its training data; {_ASK_OTHERS}")
            raise UnknownUserError(f"no user '{user[:100]}' in the model's training data; {_ASK_OTHERS}")
        else:
            (scored,) = self._pairs(np.array([known]))
        left_out = self._left_out(allow, deny, filter or {})
        if exclude_known:
            left_out[self._known.of(known) - 1] = True
            left_out[history - 1] = True
        ids = _best(scored.order, left_out, k)
        return Recommendations(self.item_values(ids).to_pylist(), scored.scores[ids - 1], unknown)

    def similar(
        self,
        item: str,
        k: int,
        *,
        allow: Sequence[str] | None = None,
        deny: Sequence[str] = (),
        filter: Mapping[str, Sequence[str]] | None = None,
    ) -> Recommendations:
        """Return the `k` other items whose vectors have the highest cosine with that of `item`; equal ones by
        popularity. `allow`, `deny` and `filter` are as in `recommend`.

        Raises UnknownItemError, and UserError if the model has no vectors of items.
        """
        (item_id,) = self._item_ids([item])
        if not item_id or self._is_removed[item_id - 1]:
            raise UnknownItemError(f"no item '{item[:100]}' in the model's training data")
        if not self.compares_items:
            raise UserError(f"{self.predictor.folder}: {self._kind} has no vectors of items, so none is like another")
        vectors = self.predictor.item_vectors
        products = np.einsum("nd,d->n", vectors, vectors[item_id - 1])
        lengths = self._lengths * self._lengths[item_id - 1]
        cosines = np.clip(products / np.maximum(lengths, np.finfo(np.float32).tiny), -1, 1)
        left_out = self._left_out(allow, deny, filter or {})
        left_out[item_id - 1] = True
        ids = _best(cosines, left_out, k)
        return Recommendations(self.item_values(ids).to_pylist(), cosines[ids - 1], [])

    def recommend_ids(
        self, user_ids: NDArray[np.int64], k: int, *, exclude_known: bool = True
    ) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Return the item ids and scores of the best `k` for each of some known users' ids (see `recommend`).

        Holds a score for every pair of a user and an item, unless the model reads histories.
        """
        no_events, users = np.empty(0, np.int64), user_ids.tolist()
        found = []
        for user, scored in zip(
            users,
            (self._next_items(self._history(user, no_events)) for user in users)
            if self.reads_histories
            else self._pairs(user_ids),
            strict=True,
        ):
            left_out = self._is_removed.copy()
            if exclude_known:
                left_out[self._known.of(user) - 1] = True
            ids = _best(scored.order, left_out, k)
            found.append((ids, scored.scores[ids - 1]))
        return found

    @cached_property
    def _lengths(self) -> NDArray[np.float32]:
        """The lengths (items,) of the items' vectors."""
        vectors = self.predictor.item_vectors
        return np.sqrt(np.einsum("nd,nd->n", vectors, vectors))

    @property
    def _kind(self) -> str:
        return f"a model of kind '{self.predictor.recipe.model.kind}'"

    def _user_id(self, user: str | None) -> int:
        """Return the id of a user, 0 for nobody that is known."""
        if user is None:
            return 0
        return int(self._users.ids(self.predictor.raw_rows.from_values(self._user, [user]))[0])

    def _item_ids(self, items: Sequence[str]) -> NDArray[np.int64]:
        """Return the ids (n,) of n items, 0 for those that are not known."""
        return self._items.ids(self.predictor.raw_rows.from_values(self._item, list(items)))

    def _history(self, user: int, events: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of the events that are known of a user, and then of others, each once, that are still
        there.
        """
        ids = np.concatenate([self._known.events_of(user).astype(np.int64), events])
        _, first = np.unique(ids, return_index=True)
        ids = ids[np.sort(first)]
        return ids[~self._is_removed[ids - 1]]

    def _next_items(self, history: NDArray[np.int64]) -> "_Scored":
        """Return how likely each item is to be the next one after a history."""
        if not len(history):
            return _Scored(self._counts, self._counts / max(1.0, self._counts.sum()))
        (logits,) = self.predictor.next_item_logits([history])
        odds = np.exp(logits - logits.max())
        return _Scored(logits - self._penalties, odds / odds.sum())

    def _pairs(self, user_ids: NDArray[np.int64]) -> Iterator["_Scored"]:
        """Yield how likely each item is for each of some users."""
        items = np.arange(1, len(self._items) + 1, dtype=np.int64)
        sides = (user_ids, items) if self._user_is_first else (items, user_ids)
        logits = self.predictor.pair_logits(*sides)
        scores = torch.sigmoid(torch.from_numpy(logits)).numpy()
        if not self._user_is_first:
            logits, scores = logits.T, scores.T
        for of_user, probabilities in zip(logits, scores, strict=True):
            yield _Scored(of_user - self._penalties, probabilities)

    def _left_out(
        self, allow: Sequence[str] | None, deny: Sequence[str], filter: Mapping[str, Sequence[str]]
    ) -> NDArray[np.bool_]:
        """Return (items,) whether an item may not be in an answer, by what `recommend` was asked for."""
        left_out = self._is_removed.copy()
        if allow is not None:
            is_allowed = np.zeros(1 + len(left_out), bool)
            is_allowed[self._item_ids(allow)] = True
            left_out |= ~is_allowed[1:]
        if deny:
            denied = self._item_ids(deny)
            left_out[denied[denied > 0] - 1] = True
        for name, values in filter.items():
            if self._table is None:
                raise UserError("filter: the model has no table of items; set source.items and preprocess again")
            left_out |= ~self._table.has(name, values)
        return left_out


@dataclass(frozen=True)
class _Scored:
    """The whole catalogue for one user."""

    order: NDArray[np.floating]
    """(items,) what items are ranked by: logits less what popular items lose; of whom nothing is known, events."""
    scores: NDArray[np.float32]
    """(items,) probabilities."""


def _best(order: NDArray[np.floating], left_out: NDArray[np.bool_], k: int) -> NDArray[np.int64]:
    """Return the ids of the best `k` items by descending `order`, then id; without those `left_out`."""
    candidates = np.where(left_out, -np.inf, order)
    k = min(k, len(order) - int(np.count_nonzero(left_out)))
    best = np.arange(len(order))
    if k < len(order):
        # All items with the k-th score or a higher one, so that ids decide ties, not the partition.
        best = np.flatnonzero(candidates >= np.partition(candidates, -k)[-k]) if k else best[:0]
    best = best[np.argsort(-candidates[best], kind="stable")][:k]
    return best + 1


def _vocabulary(feature: CategoricalFeature, predictor: Predictor) -> VocabularyLookup:
    match feature.transforms:
        case (Vocabulary(),):
            return predictor.vocabularies[feature.name]
        case _:
            raise UserError(
                f"{predictor.folder}: ids of '{feature.name}' stand for several values (its table is capped), so they "
                "do not name an item; preprocess without preprocess.max_table_size"
            )
