"""The items that each user has in the training data: what a recommendation leaves out.

known_items.safetensors: `first` (users + 1,) int64, `items` (pairs,) int32; the items of user id u are
items[first[u] : first[u + 1]], ascending.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from rayrec.common.errors import UserError
from rayrec.features.schema import Schema
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.interactions.positives import Positives

KNOWN_ITEMS_FILE = "known_items.safetensors"


def can_recommend(schema: Schema) -> bool:
    """Whether a model scores a user and an item alone, so that every item can be scored for a user."""
    columns = schema.interactions
    return columns is not None and {f.name for f in schema.features} == {columns.user, columns.item}


@dataclass(frozen=True)
class KnownItems:
    """Ids of the users' items in `train`, in compressed rows."""

    first: NDArray[np.int64]
    """(users + 1,) the position of each user's first item."""
    items: NDArray[np.int32]
    """(pairs,) ascending for each user."""

    @classmethod
    def read(cls, dataset: Dataset) -> "KnownItems":
        """Read the split `train`; takes 24 bytes of memory an interaction meanwhile."""
        schema = dataset.schema
        assert schema.interactions is not None
        positives = Positives.read(dataset, "train", torch.device("cpu"), in_memory=True)
        cardinality = {feature.name: feature.cardinality for feature in schema.categorical}
        users, items = cardinality[schema.interactions.user], cardinality[schema.interactions.item]
        pairs = np.unique(positives.users.numpy().astype(np.int64) * items + positives.items.numpy())
        first = np.searchsorted(pairs, np.arange(users + 1, dtype=np.int64) * items)
        return cls(first, (pairs % items).astype(np.int32))

    def of(self, user: int) -> NDArray[np.int32]:
        """Ids of one user's items."""
        return self.items[self.first[user] : self.first[user + 1]]

    def save(self, folder: Path) -> None:
        """Write the file into a model folder."""
        tensors = {"first": torch.from_numpy(self.first), "items": torch.from_numpy(self.items)}
        save_file(tensors, folder / KNOWN_ITEMS_FILE)

    @classmethod
    def load(cls, folder: Path, schema: Schema) -> "KnownItems":
        """Map the file of a model folder. Raises UserError if it is missing or does not fit the schema."""
        path = folder / KNOWN_ITEMS_FILE
        try:
            with safe_open(path, framework="pt") as tensors:
                first, items = (tensors.get_tensor(name).numpy() for name in ("first", "items"))
        except FileNotFoundError:
            raise UserError(f"{path}: missing; export the model again") from None
        except SafetensorError as error:
            raise UserError(f"{path}: damaged ({error}); export the model again") from None
        assert schema.interactions is not None
        (users,) = (f.cardinality for f in schema.categorical if f.name == schema.interactions.user)
        if len(first) != users + 1 or first[-1] != len(items):
            raise UserError(f"{path}: does not fit the schema's {users} users; export the model again")
        return cls(first, items)
