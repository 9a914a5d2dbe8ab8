"""Permutation importance: how much worse a metric becomes when a feature's values are dealt to other rows.

Breiman 2001, "Random forests", section 10, for any model: Fisher, Rudin and Dominici 2019, "All models are wrong, but
many are useful", JMLR 20(177). The permuted feature keeps its distribution and loses what it says of the label; what
another feature says as well, the model may still know. Features that say the same are permuted together, as a group.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rayrec.common.progress import Progress
from rayrec.config.evaluate import higher_is_better
from rayrec.inference.batch.pool import in_threads
from rayrec.inference.explanation.rows import (
    BlockEstimate,
    LabelledRows,
    MetricsOfBlocks,
    estimate,
    with_columns,
)
from rayrec.inference.predictor import Predictor
from rayrec.random.arrays import HashPermutation


@dataclass(frozen=True)
class Importance:
    """The metrics of some rows, and how much worse each becomes, by what was permuted."""

    metrics: dict[str, float]
    worse_by: dict[str, dict[str, BlockEstimate]]
    """Loss of a metric, by feature or group, then by metric: a mean over permutations."""


def permutation_importance(
    predictor: Predictor,
    rows: LabelledRows,
    permuted: Mapping[str, Sequence[str]],
    permutations: int,
    progress: Progress,
) -> Importance:
    """Return how each metric changes when `permuted`, features by the name of their group, are shuffled together.

    The same names, rows and number of permutations give the same numbers, whatever else is measured.
    """
    measure = MetricsOfBlocks(rows, predictor.recipe.evaluate)
    signs = np.array([1.0 if higher_is_better(name) else -1.0 for name in measure.names])
    # By one thread, too: then what changes nothing changes no bit.
    (before,) = in_threads([rows.features], lambda: lambda features: measure(predictor.logits_encoded(features)))
    progress.stage("importance", len(permuted) * permutations * len(rows))

    def worse_by(task: tuple[str, int]) -> np.ndarray:
        name, number = task
        columns = {feature: rows.features.column(feature) for feature in permuted[name]}
        order = pa.array(HashPermutation(len(rows), _seed(name, number))(np.arange(len(rows))))
        changed = with_columns(predictor.schema, rows.features, {f: c.take(order) for f, c in columns.items()})
        after = measure(predictor.logits_encoded(changed))
        progress.advance(len(rows))
        return (before - after) * signs

    tasks = [(name, number) for name in permuted for number in range(permutations)]
    # (permuted, permutations, all rows and blocks of them, metrics)
    changes = (
        np.array([*in_threads(tasks, lambda: worse_by)])
        .reshape(len(permuted), permutations, *before.shape)
        .mean(axis=1)
    )
    return Importance(
        metrics=dict(zip(measure.names, before[0].tolist(), strict=True)),
        worse_by={
            name: {
                metric: estimate(float(of_metric[0]), of_metric[1:])
                for metric, of_metric in zip(measure.names, change.T, strict=True)
            }
            for name, change in zip(permuted, changes, strict=True)
        },
    )


def _seed(name: str, number: int) -> int:
    return zlib.crc32(name.encode()) + (number << 32)
