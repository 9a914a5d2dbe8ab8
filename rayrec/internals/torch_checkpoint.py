"""Checkpoints of torch.distributed.checkpoint: written to folders and buckets, read without running code from them.

Torch reads their metadata, and what is not a tensor, by plain pickle, so that a checkpoint from elsewhere could run
code. Here metadata may name torch's own classes of metadata alone, and all else is what `torch.load` calls weights.
"""

import io
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata

_METADATA = "torch.distributed.checkpoint.metadata"
_ALLOWED = frozenset({
    *((_METADATA, name) for name in (
        "Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata", "BytesStorageMetadata",
        "ChunkStorageMetadata", "TensorProperties", "_MEM_FORMAT_ENCODING",
    )),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
})  # fmt: skip


class Streams(NamedTuple):
    """Reading and writing of files on other machines."""

    read: Callable[[Path], AbstractContextManager[BinaryIO]]
    """Raises OSError if there is no such file."""
    write: Callable[[Path], AbstractContextManager[BinaryIO]]
    """A file of this machine, which is whole at its place after the block; it can be asked for its descriptor."""


def read_metadata(folder: Path, streams: Streams | None = None) -> "Metadata":
    """Return the metadata of a checkpoint.

    Raises OSError if there is none, UnpicklingError if it is damaged or names code.
    """
    return _reader(folder, streams).read_metadata()


def save(state: dict[str, Any], folder: Path, streams: Streams | None = None) -> None:
    """Write a checkpoint; a collective, in which each rank writes its own shards.

    Raises torch's CheckpointException, whose `failures` has what each rank met.
    """
    import torch.distributed.checkpoint as dcp

    writer = dcp.FileSystemWriter(folder, sync_files=streams is None)
    writer.fs = _own_files() if streams is None else _files_of(streams)
    dcp.save(state, storage_writer=writer)


def load(state: dict[str, Any], folder: Path, streams: Streams | None = None, *, no_dist: bool = False) -> None:
    """Fill the tensors of `state` in place from a checkpoint; a collective unless `no_dist`.

    Raises torch's CheckpointException, whose `failures` has what each rank met.
    """
    import torch.distributed.checkpoint as dcp

    dcp.load(state, storage_reader=_reader(folder, streams), planner=_planner(), no_dist=no_dist)


def _reader(folder: Path, streams: Streams | None) -> Any:
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.metadata import StorageMeta

    class Reader(FileSystemReader):
        def read_metadata(self, *args: Any, **kwargs: Any) -> "Metadata":
            with self.fs.create_stream(self._get_metadata_path(kwargs.get("rank")), "rb") as stream:
                content = stream.read()  # that a store fails is no damage
            metadata = _unpickled(io.BytesIO(content))
            metadata.storage_meta = metadata.storage_meta or StorageMeta()
            metadata.storage_meta.load_id = self.load_id
            return metadata

    reader = Reader(folder)
    if streams is not None:
        reader.fs = _files_of(streams)
    return reader


def _own_files() -> Any:
    """Return the file system of this machine, whose errors torch hides by its own, which tell nothing of a disk."""
    from torch.distributed.checkpoint.filesystem import FileSystem

    class Files(FileSystem):
        @contextmanager
        def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
            try:
                with super().create_stream(path, mode) as stream:
                    yield stream
            except RuntimeError as error:
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise

    return Files()


def _files_of(streams: Streams) -> Any:
    """Return the file system that torch uses in the place of the machine's; a checkpoint is only once written to a
    folder.
    """
    from torch.distributed.checkpoint.filesystem import FileSystem

    class Files(FileSystem):
        @contextmanager
        def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
            if mode == "wb":
                # An object is whole as soon as it is there, so the metadata needs no other name before. Torch closes
                # what it writes, which is sent after.
                target = path.with_name(path.name.removesuffix(".tmp"))
                with streams.write(target) as file, open(os.dup(file.fileno()), "wb") as stream:
                    yield stream
            else:
                with streams.read(path) as stream:
                    yield stream

        def rename(self, path: Any, new_path: Any) -> None:
            pass

        def mkdir(self, path: Any) -> None:
            pass

        def exists(self, path: Any) -> bool:
            return False

    return Files()


def _planner() -> Any:
    import torch
    from torch.distributed.checkpoint._nested_dict import set_element
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

    class Planner(DefaultLoadPlanner):
        def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
            path = self.mappings[read_item.dest_index.fqn]
            set_element(self.original_state_dict, path, torch.load(value, weights_only=True))

    # Flattening drops tables of which this rank has no shard, and the planner then takes the checkpoint for one of an
    # old format of torch's, whose optimizer states have other names.
    return Planner(flatten_sharded_tensors=False)


def _unpickled(stream: Any) -> "Metadata":
    """Return the metadata in a stream. Raises UnpicklingError."""
    from torch.distributed.checkpoint.metadata import Metadata

    try:
        metadata = _Unpickler(stream).load()
        # A file outside of the checkpoint does not belong to it.
        whole = isinstance(metadata, Metadata) and all(
            Path(part.relative_path).name == part.relative_path for part in metadata.storage_data.values()
        )
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # damaged bytes raise whatever they lead to
        raise pickle.UnpicklingError(f"its metadata is damaged ({type(error).__name__})") from None
    if not whole:
        raise pickle.UnpicklingError("its metadata is not that of a checkpoint")
    return metadata


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        import torch

        if module in ("pathlib", "pathlib._local", "rayrec.store.paths"):  # the second in Python 3.13
            # The folder that the checkpoint was written to, which nobody reads.
            return lambda *parts: "/".join(map(str, parts))
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        found = getattr(torch, name, None) if module == "torch" and "." not in name else None
        if isinstance(found, torch.dtype):
            return found
        raise pickle.UnpicklingError(f"its metadata names {f'{module}.{name}'!a}, which no checkpoint of rayrec does")
