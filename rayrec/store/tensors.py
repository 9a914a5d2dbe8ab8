"""The undistributed tensors of a checkpoint, read by one process without a collective of torch.distributed."""

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from rayrec.common.disk_errors import unreadable
from rayrec.common.errors import UserError, first_failure
from rayrec.internals.torch_checkpoint import Streams, load, read_metadata
from rayrec.store.files import new_remote_file
from rayrec.store.paths import RemotePath

_REMOTE = Streams(lambda path: path.open("rb"), new_remote_file)


def streams_of(checkpoint: Path) -> Streams | None:
    """Return how torch reads and writes a checkpoint that is at a URI; None if it is on a disk."""
    return _REMOTE if isinstance(checkpoint, RemotePath) else None


class StoredTensors:
    """The tensors of a checkpoint, a folder of torch.distributed.checkpoint here or at its URI, by their names.

    Names and shapes are those of the whole tensors, whatever number of workers and sharding plan wrote them.
    """

    def __init__(self, folder: Path) -> None:
        """Read the checkpoint's metadata. Raises UserError where it is not whole, or damaged."""
        # It is meant to be. Settings of warnings belong to the process, so threads cannot set them for a block.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        self.folder, self._streams = folder, streams_of(folder)
        try:
            metadata = read_metadata(self.folder, self._streams)
        except FileNotFoundError:
            raise UserError(f"{folder}: not a whole checkpoint (no metadata); give another one") from None
        except OSError as error:
            raise unreadable(folder, error, "give another one") from None
        except pickle.UnpicklingError as error:
            raise UserError(f"{folder}: not a checkpoint: {error}; give another one") from None
        self.shapes: dict[str, tuple[int, ...]] = {
            name: tuple(stored.size)
            for name, stored in metadata.state_dict_metadata.items()
            if isinstance(stored, TensorStorageMetadata)
        }

    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Fill tensors in place; each stored shard is read on its own, so that memory holds one of them beside.

        Raises UserError if a tensor is missing, has another shape or cannot be read.
        """
        for name, tensor in tensors.items():
            found = self.shapes.get(name)
            if found != tuple(tensor.shape):
                raise UserError(
                    f"{self.folder}: tensor '{name}' is {found or 'missing'}, the run's recipe and schema make it "
                    f"{tuple(tensor.shape)}; the checkpoint is of another run"
                )
        try:
            load(dict(tensors), self.folder, self._streams, no_dist=True)
        except CheckpointException as error:  # a BaseException: `except Exception` would let it pass
            raise first_failure(error.failures, f"{self.folder}: cannot be read") from None
