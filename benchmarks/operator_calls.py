"""What a training step asks of the processor and of a GPU: operator calls, kernels, and how long each of the two works.

    python -m benchmarks.operator_calls [--batch 512] [--steps 5] [--rows 1000] [--device cpu]

The four published recipes on batches that lie on the device, on tables of at most `--rows` rows; their number of calls
depends on neither. On a CPU one thread computes, in float32 and bfloat16. `make gpu-check` profiles steps likewise.
"""

import argparse
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import rayrec
from benchmarks.criteo_terabyte import CARDINALITIES
from jobs.command.result import text_table
from rayrec.features.schema import CategoricalFeature, InteractionColumns, NumericFeature, Schema
from rayrec.models.common.precision import PrecisionName, resolve_precision
from rayrec.training.loop.micro_batches import BatchTotals
from rayrec.training.loop.step import TrainStep
from rayrec.training.parallel.parallel_model import ParallelModel
from rayrec.training.parallel.ranks import RankContext
from tests.naive_models import random_batch

Row = dict[str, Any]
RECIPES = ("dlrm-criteo", "dcnv2-criteo", "wide-deep-outbrain-lean", "neumf-ml-20m")


def profiled(step: Callable[[], Any], steps: int, device: torch.device) -> Row:
    """Return the calls a step, the operators with most of them, and milliseconds a step; call it after steps that
    warm up.

    `busy` is the share of the time in which the GPU had a kernel or a copy to do. The profiler itself takes time of the
    processor, so compare a host's milliseconds with those of another profile alone.
    """
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as profiler:
        for _ in range(steps):
            step()
        if on_gpu:
            torch.cuda.synchronize()
    events = [
        event for event in profiler.events() if event.time_range.elapsed_us() > 0 or event.name.startswith("aten")
    ]
    calls = [event for event in events if event.device_type == DeviceType.CPU and "::" in event.name]
    outer = [event for event in calls if event.cpu_parent is None or "::" not in event.cpu_parent.name]
    names = Counter(event.name for event in calls)
    row: Row = {
        "operator calls": round(len(calls) / steps),
        "of them outermost": round(len(outer) / steps),
        "most": ", ".join(f"{name.partition('::')[2]} {round(count / steps)}" for name, count in names.most_common(4)),
    }
    host = [event.time_range for event in calls]
    row["host ms"] = round(_covered(host) / steps / 1e3, 2)
    if on_gpu:
        kernels = [event.time_range for event in events if event.device_type == DeviceType.CUDA]
        times = [*host, *kernels]
        whole = max(t.end for t in times) - min(t.start for t in times)
        row |= {"kernels": round(len(kernels) / steps), "GPU ms": round(_covered(kernels) / steps / 1e3, 2)}
        row["busy"] = round(_covered(kernels) / whole, 3)
        row["launches"] = round(sum("Launch" in event.name for event in events) / steps)
    return row


def _is_operator(name: str) -> bool:
    return "::" in name and not name.startswith("autograd::")


def _covered(ranges: list[Any]) -> float:
    """Microseconds that lie in at least one of the ranges."""
    total, end = 0.0, float("-inf")
    for span in sorted(ranges, key=lambda span: span.start):
        total += max(0.0, span.end - max(span.start, end))
        end = max(end, span.end)
    return total


def published_schema(recipe_name: str, largest: int) -> Schema:
    """Return the published columns, with tables of at most `largest` rows."""
    if recipe_name.startswith("wide-deep"):
        # Only here, as it imports the source's preprocessing.
        from tests.display_models import display_schema
        from tests.outbrain_statistics import make_constants

        return display_schema(make_constants(feature_set="lean"), largest)
    if recipe_name.startswith("neumf"):
        sizes, numeric = {"user": 138_494, "item": 26_745}, 0
    else:
        sizes, numeric = {f"C{number}": size for number, size in enumerate(CARDINALITIES["15"], 1)}, 13
    numbers = [NumericFeature(name=f"I{number}") for number in range(1, numeric + 1)]
    tables = [CategoricalFeature(name=name, cardinality=min(size, largest)) for name, size in sizes.items()]
    if numeric:
        return Schema(label="label", features=(*numbers, *tables))
    interactions = InteractionColumns(user="user", item="item")
    return Schema(label="label", group="group", features=tuple(tables), interactions=interactions)


def steps_of(
    recipe_name: str, precision: PrecisionName, *, batch: int, rows: int, context: RankContext
) -> Callable[[], Any]:
    """Return a function that trains a published recipe by one more step; needs the default process group, of
    one rank.
    """
    on_cpu = context.device.type == "cpu"
    changes: dict[str, Any] = {"train.global_batch_size": batch, "train.precision": precision}
    if on_cpu:
        changes["train.threads"] = 1  # the profiler sees those of the caller's thread alone
    if on_cpu and recipe_name.startswith("dcnv2"):  # a CPU has Adam for copies of tables alone
        changes["train.sharding.default"] = "data_parallel"
    recipe = rayrec.load_recipe(recipe_name, changes)
    schema = published_schema(recipe_name, rows)
    model = ParallelModel(recipe, schema, context)
    step = TrainStep(model, recipe.train, resolve_precision(precision, "cpu" if on_cpu else "cuda"), 1_000)
    data = random_batch(schema, batch).to(context.device)
    totals = BatchTotals(batch, None)
    numbers = iter(range(1, 1_000_000))
    return lambda: step(data, totals, next(numbers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000, help="of a table, at most")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    context = RankContext(rank=0, world_size=1, local_world_size=1, device=device)
    rows = []
    for recipe in RECIPES:
        for precision in ("fp32", "bf16"):
            step = steps_of(recipe, precision, batch=arguments.batch, rows=arguments.rows, context=context)
            for _ in range(3):
                step()
            rows.append({"recipe": recipe, "precision": precision, **profiled(step, arguments.steps, device)})
    dist.destroy_process_group()
    print(f"torch {torch.__version__}, {arguments}, load {os.getloadavg()[0]:.1f}")
    print(text_table(rows))


if __name__ == "__main__":
    main()
