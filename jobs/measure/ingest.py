"""Rows/s of the batches of one worker with nothing else to do, streamed and from memory."""

import time
from typing import Any

from rayrec.ingest.dataset import Dataset
from rayrec.recipes import Recipe


def measure_ingest(recipe: Recipe, dataset: Dataset) -> list[dict[str, Any]]:
    """One epoch of `train`, in the recipe's batches, after a warm-up epoch; needs a Ray session."""
    from rayrec.ingest.loader import open_batches
    from rayrec.ingest.reads import InMemorySplit

    table = []
    store = InMemorySplit.read(dataset, "train")
    for name, kept in (("stream", None), ("memory", store)):
        for epoch in (0, 1):
            started = time.perf_counter()
            first = None
            with open_batches(
                dataset,
                "train",
                recipe.train.ingest.model_copy(update={"in_memory": False}),
                global_batch_size=recipe.train.global_batch_size,
                seed=recipe.train.seed,
                epoch=epoch,
                drop_last=True,
                store=kept,
            ) as batches:
                for _ in batches:
                    first = first or time.perf_counter() - started
                rows = batches.num_batches * recipe.train.global_batch_size
            seconds = time.perf_counter() - started
        table.append({"data": name, "rows": rows, "rows_per_second": rows / seconds, "first_batch_seconds": first})
    return table
