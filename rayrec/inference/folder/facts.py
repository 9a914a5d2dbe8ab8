"""Facts of a model that its folder may have beside weights, such as which items users have."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config import Config
from rayrec.config.validation import read_json
from rayrec.features.schema import Schema
from rayrec.inference.folder.model_folder import ModelFolder
from rayrec.inference.folder.tensor_files import open_tensors, save_tensors
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.interactions import interaction_columns, known_pairs, num_item_rows, positive_pairs
from rayrec.store.files import write_json

KNOWN_ITEMS_FILE = "known_items.safetensors"
REFERENCE_FILE = "reference_traffic.json"
REFERENCE_ROWS_FILE = "reference_rows.parquet"


class ModelFacts(Config):
    """The content of a small JSON file of a model folder that a model may lack."""

    file: ClassVar[str]
    """The name of the file in a model folder."""

    def save(self, folder: Path) -> None:
        """Write the file into a model folder."""
        write_json(folder / self.file, self.model_dump(mode="json"))

    @classmethod
    def load(cls, model: ModelFolder) -> Self | None:
        """Return the content of a model's file; None if the model has none. Raises UserError if it is damaged."""
        return read_json(cls, model.path(cls.file), "export the model again")


def can_recommend(schema: Schema) -> bool:
    """Return whether a model scores a user and an item alone, so that every item can be scored for a user."""
    columns = schema.interactions
    return columns is not None and {f.name for f in schema.features} == {columns.user, columns.item}


@dataclass(frozen=True)
class KnownItems:
    """Ids of the users' items in all splits, now or before, in compressed rows, as `known_items.safetensors` has them.

    The items of user id u are items[first[u] : first[u + 1]], each once: what the user did not choose
    (`source.choices`), then from events[u] on the user's events, in order of time.
    """

    first: NDArray[np.int64]
    """(users + 1,) the position of each user's first item."""
    items: NDArray[np.int32]
    """(pairs,)"""
    events: NDArray[np.int64]
    """(users,) the position of each user's first event."""

    @classmethod
    def read(cls, dataset: Dataset) -> "KnownItems":
        """Read the pairs of all splits, as a held-out item is no new one; takes 40 bytes of memory a pair meanwhile.

        The splits follow each other in time, and so do the rows of a user in each.
        """
        columns, items = interaction_columns(dataset.schema), num_item_rows(dataset.schema)
        (users,) = (f.cardinality for f in dataset.schema.categorical if f.name == columns.user)
        splits = (dataset.known_split, *dataset.evaluation_splits)
        empty = np.empty(0, np.int64)
        chosen = np.concatenate([empty, *(found for split in splits for found in positive_pairs(dataset, split))])
        distinct, places = np.unique(chosen, return_index=True)
        others = np.setdiff1d(np.concatenate([empty, *known_pairs(dataset)]), distinct)
        # By user, then by place: what was not chosen is before the first place.
        pairs = np.concatenate([others, distinct])
        order = np.lexsort((np.concatenate([np.full(len(others), -1), places]), pairs // items))
        first = np.searchsorted(pairs[order] // items, np.arange(users + 1))
        not_chosen = np.bincount(others // items, minlength=users)
        return cls(first, (pairs[order] % items).astype(np.int32), first[:-1] + not_chosen)

    def of(self, user: int) -> NDArray[np.int32]:
        """Return the ids of one user's items."""
        return self.items[self.first[user] : self.first[user + 1]]

    def events_of(self, user: int) -> NDArray[np.int32]:
        """Return the ids of one user's events, the newest one last."""
        return self.items[self.events[user] : self.first[user + 1]]

    def counts(self, items: int) -> NDArray[np.float32]:
        """Return the number of events of each of the items 1 ... `items`."""
        is_event = np.arange(len(self.items)) >= np.repeat(self.events, np.diff(self.first))
        return np.bincount(self.items[is_event], minlength=items + 1)[1:].astype(np.float32)

    def without(self, user: int) -> "KnownItems":
        """Return the same without what is known of one user."""
        start, end = self.first[user : user + 2]
        later = np.arange(len(self.first)) > user
        first = self.first - later * (end - start)
        events = np.where(later[:-1], self.events - (end - start), self.events)
        events[user] = start
        return KnownItems(first, np.delete(self.items, slice(start, end)), events)

    def save(self, folder: Path) -> None:
        """Write the file into a model folder."""
        save_tensors(folder / KNOWN_ITEMS_FILE, {"first": self.first, "items": self.items, "events": self.events})

    @classmethod
    def load(cls, model: ModelFolder) -> "KnownItems":
        """Map the file of a model. Raises UserError if it is missing or does not fit the schema."""
        path, schema = model.path(KNOWN_ITEMS_FILE), model.schema
        with open_tensors(path) as tensors:
            found = {name: tensors.get_tensor(name).numpy() for name in [*tensors.keys()]}
        if found.keys() != {"first", "items", "events"}:
            raise UserError(f"{path}: is of another version of rayrec; export the model again")
        first, items, events = found["first"], found["items"], found["events"]
        assert schema.interactions is not None
        (users,) = (f.cardinality for f in schema.categorical if f.name == schema.interactions.user)
        if len(first) != users + 1 or len(events) != users or first[-1] != len(items):
            raise UserError(f"{path}: does not fit the schema's {users} users; export the model again")
        return cls(first, items, events)


def forget_items(folder: Path, user: str) -> int:
    """Take what is known of a user, as the vocabulary has the name, out of the file of a model folder, in place; return
    how many items that were.
    """
    model = ModelFolder.open(folder)
    assert model.schema.interactions is not None
    (feature,) = (f for f in model.schema.categorical if f.name == model.schema.interactions.user)
    known, id_ = KnownItems.load(model), int(model.vocabulary(feature).ids(pa.array([user]))[0])
    if items := len(known.of(id_)):
        known.without(id_).save(folder)
    return items
