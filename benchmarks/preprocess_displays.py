"""Seconds by stage, memory and disk of preprocessing Outbrain's tables, at growing numbers of clicks.

    python -m benchmarks.preprocess_displays --rows 100000 1000000 10000000 --output FILE

Tables are generated, and preprocessed by threads of this process, or with `--on ray` by one Spark session on this
machine, after a small warm-up. Memory is what each kind of process has for itself (USS), pages of mapped files not
counted; disk that of the unfinished dataset, with its scratch files, and of Spark's shuffles. Both are sampled every
`--interval` seconds, and the largest counts. CPU seconds are those of all these processes, which other work on the
machine disturbs less than the time that passes. A size that is done is in FILE when the next one begins.
"""

import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import psutil

from benchmarks.process_tree import MIB, folder_size, sampled
from benchmarks.result_rows import parser_by_rows
from cluster.ray_session import ray_session
from cluster.spark_session import spark_session
from rayrec.common.machine import Machine
from rayrec.common.progress import SilentProgress
from rayrec.config.preprocess import SparkConfig
from rayrec.preprocessing.engine import EmbeddedEngine, Engine
from rayrec.preprocessing.spark import SparkEngine
from rayrec.recipes import Recipe
from rayrec.sources.outbrain.generator import generate
from rayrec.sources.registry import preprocessing
from rayrec.store.files import write_json

_WARM_UP_ROWS = 10_000


def main() -> None:
    parser = parser_by_rows(__doc__, rows=[100_000, 1_000_000], interval=2.0)
    parser.add_argument("--feature-set", choices=["full", "lean"], default="full")
    parser.add_argument("--on", choices=["process", "ray"], default="process")
    arguments = parser.parse_args()
    machine = Machine()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.folder)))
        engine: Engine = EmbeddedEngine.of_this_machine()
        if arguments.on == "ray":
            os.environ["SPARK_LOCAL_DIRS"] = str(folder / "spark")
            stack.enter_context(ray_session())
            engine = SparkEngine(stack.enter_context(spark_session(SparkConfig(), "benchmark")))
        runs = []
        for rows in [_WARM_UP_ROWS, *arguments.rows]:
            runs.append(_measure(engine, folder, rows, arguments.feature_set, arguments.interval))
            settings = {"on": arguments.on, "feature_set": arguments.feature_set, "machine": machine.described()}
            write_json(arguments.output, {**settings, "runs": runs[1:]})


def _measure(
    engine: Engine, folder: Path, rows: int, feature_set: Literal["full", "lean"], interval: float
) -> dict[str, Any]:
    raw, dataset = folder / "raw", folder / "out" / "dataset"
    generate(raw, rows)
    settings = {"source": {"kind": "outbrain"}, "preprocess": {"feature_set": feature_set}}
    recipe = Recipe.model_validate(
        {"name": "benchmark", "model": {"kind": "wide_deep", "embedding_dim": 8}, **settings}
    )
    stages = _Stages()
    started = time.perf_counter()
    folders = {"unfinished dataset": folder / "out", "Spark's shuffles": folder / "spark"}
    with sampled(psutil.Process(), folders, interval) as seen:
        manifest = preprocessing(recipe, {None: [str(raw)]}, dataset).run(engine, stages)
    seconds = time.perf_counter() - started
    stages.finish()
    result = {
        "click_rows": rows,
        "rows": {name: split.rows for name, split in manifest.splits.items()},
        "raw_mib": folder_size(raw) // MIB,
        "dataset_mib": folder_size(dataset) // MIB,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(sum(seen.cpu_seconds.values()), 1),
        "load_average_at_the_end": os.getloadavg()[0],
        "rows_per_second": round(rows / seconds),
        "seconds_by_stage": stages.seconds,
        "largest_mib": seen.largest_mib,
    }
    print(result, flush=True)
    for made in (raw, dataset):
        shutil.rmtree(made)
    return result


class _Stages(SilentProgress):
    """How long each stage took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._current: tuple[str, float] | None = None

    def stage(self, name: str, total: int | None = None) -> None:
        self.finish()
        self._current = name, time.perf_counter()

    def finish(self) -> None:
        if self._current is not None:
            name, started = self._current
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - started, 1)
            self._current = None


if __name__ == "__main__":
    main()
