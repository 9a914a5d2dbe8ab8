"""The cost model of `rayrec plan --hardware`: how far off published figures it is, and what it says of Criteo Terabyte.

    python -m benchmarks.scaling --output benchmarks/results/scaling.json

Computes in seconds and runs nothing on a GPU. The published figures are NVIDIA's, of DLRM and DCNv2 on A100s
(DeepLearningExamples, TensorFlow2/Recommendation/DLRM_and_DCNv2), which train the same networks in batches of 65,536.
Preprocessing is scaled up from what was measured on two cores (benchmarks/results/preprocess_time.json).
"""

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

from jobs.command.result import text_table
from rayrec.common.errors import UserError
from rayrec.common.machine import Machine
from rayrec.config import TrainConfig
from rayrec.config.optimizers import EmbeddingOptimizerConfig
from rayrec.features.feature_kinds import CategoricalFeature, NumericFeature
from rayrec.features.schema import Schema
from rayrec.models.dcnv2.config import DCNv2Config
from rayrec.models.dlrm.config import DLRMConfig
from rayrec.models.registry import build_model
from rayrec.store.files import write_json
from rayrec.training.parallel.accelerators import ACCELERATORS, AcceleratorName, ArithmeticName
from rayrec.training.parallel.sharding_plan import plan_sharding
from rayrec.training.parallel.step_cost import StepCost

MEASURED = Path(__file__).parent / "results" / "preprocess_time.json"
BATCH = 65_536
WIDTH = 128
GPUS_OF_A_MACHINE = 8
TRAIN_ROWS = 4_195_197_692
"""Of days 0 to 22, as NVIDIA's scripts count them."""
RAW_ROWS = 4_373_472_329
"""Of all 24 days."""
# Ids that a feature of the 24 days has: of those seen 15 times or more (NVIDIA), and without a limit (MLPerf's DLRM).
CARDINALITIES = {
    "15": (
        7912889, 33823, 17139, 7339, 20046, 4, 7105, 1382, 63, 5554114, 582469, 245828, 11, 2209, 10667, 104, 4, 968,
        15, 8165896, 2675940, 7156453, 302516, 12022, 97, 35,
    ),
    "none": (
        227605432, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 130229467, 3067956, 405282, 10, 2209, 11938, 155, 4,
        976, 14, 292775614, 40790948, 187188510, 590152, 12973, 108, 36,
    ),
}  # fmt: skip
MODELS: dict[str, DLRMConfig | DCNv2Config] = {"dlrm": DLRMConfig(), "dcnv2": DCNv2Config()}
# Model, GPUs, frequency limit, precision, samples/s, whether a constant was chosen by it. Of the limit 3, which NVIDIA
# used on 8 A100s, the sizes of single tables are not published: these take the tables of 15, sharded alike.
PUBLISHED: list[tuple[str, int, str, ArithmeticName, float, bool]] = [
    ("dlrm", 1, "15", "tf32", 2.84e6, True),
    ("dlrm", 1, "15", "fp16", 4.55e6, True),
    ("dlrm", 8, "15", "tf32", 10.9e6, True),
    ("dlrm", 8, "15", "fp16", 13.8e6, True),
    ("dlrm", 8, "none", "tf32", 9.76e6, False),
    ("dlrm", 8, "none", "fp16", 11.5e6, False),
    ("dcnv2", 1, "15", "tf32", 0.689e6, False),
    ("dcnv2", 1, "15", "fp16", 1.37e6, False),
    ("dcnv2", 8, "15", "tf32", 3.81e6, False),
    ("dcnv2", 8, "15", "fp16", 5.75e6, False),
]
"""NVIDIA's figures, of A100s."""
OWN: list[tuple[str, int, str, ArithmeticName, float, bool]] = [
    ("dlrm", 1, "15", "tf32", 6.63e6, False),
    ("dlrm", 1, "15", "bf16", 6.98e6, False),
    ("dcnv2", 1, "15", "tf32", 1.32e6, False),
    ("dcnv2", 1, "15", "bf16", 2.58e6, False),
]
"""rayrec's, of an H100 (results/gpu_check.json: steps alone)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    output: Path = parser.parse_args().output
    checks = [check("a100", *row) for row in PUBLISHED] + [check("h100", *row) for row in OWN]
    accelerators: tuple[AcceleratorName, ...] = ("a100", "h200")
    terabyte = [
        _terabyte(model, limit, accelerator, gpus)
        for model, limit, accelerator, gpus in itertools.product(MODELS, CARDINALITIES, accelerators, (1, 8, 64))
    ]
    preprocessing = [_preprocessing(cores) for cores in (16, 128, 1024)]
    report = {"checks": checks, "criteo_terabyte": terabyte, "preprocessing": preprocessing}
    write_json(output, {"machine": Machine().described(), **report})
    for table in (checks, terabyte, preprocessing):
        print(text_table(table), end="\n\n")


def check(
    gpu: AcceleratorName, model: str, gpus: int, limit: str, precision: ArithmeticName, measured: float, chosen: bool
) -> dict[str, Any]:
    """Return a measured figure beside the estimate."""
    cost = _cost(model, limit, gpu, gpus)
    estimate = BATCH / sum(cost.seconds(ACCELERATORS[gpu], precision).values())
    return {
        "model": model,
        "gpu": gpu,
        "gpus": gpus,
        "frequency_limit": limit,
        "precision": precision,
        "measured_samples_per_second": measured,
        "estimated": round(estimate),
        "error": round(estimate / measured - 1, 3),
        "used_for_the_constants": chosen,
    }


def _terabyte(model: str, limit: str, accelerator: AcceleratorName, gpus: int) -> dict[str, Any]:
    row: dict[str, Any] = {"model": model, "frequency_limit": limit, "gpu": accelerator, "gpus": gpus}
    try:
        cost = _cost(model, limit, accelerator, gpus)
    except UserError as error:
        return {**row, "fits": False, "why": str(error)}
    sent, seconds = cost.sent, cost.seconds(ACCELERATORS[accelerator], "bf16")
    step = sum(seconds.values())
    return {
        **row,
        "fits": True,
        "memory_of_fullest_rank_gb": round(max(cost.memory_by_rank) / 1e9, 1),
        "all_to_all_mb_a_step": round((sent.ids + sent.pooled + sent.gradients) / 1e6, 1),
        "all_reduce_mb_a_step": round(sent.all_reduce / 1e6, 1),
        "step_ms": round(1000 * step, 2),
        "communication_share": round(seconds["communication"] / step, 2),
        "million_samples_per_second": round(BATCH / step / 1e6, 2),
        "minutes_an_epoch": round(TRAIN_ROWS / BATCH * step / 60, 1),
    }


def _preprocessing(cores: int) -> dict[str, Any]:
    by_core = json.loads(MEASURED.read_text())["rows_added_per_second_and_core"]["after on ray"]
    return {
        "cores": cores,
        "rows_per_second_and_core": by_core,
        "hours": round(RAW_ROWS / by_core / cores / 3600, 2),
    }


def _cost(model: str, limit: str, accelerator: AcceleratorName, gpus: int) -> StepCost:
    """Return the cost under SGD, the published optimizer, which keeps nothing beside a table."""
    built = build_model(MODELS[model], _schema(limit), "meta")
    local = min(gpus, GPUS_OF_A_MACHINE)
    plan = plan_sharding(
        built.tables,
        TrainConfig(
            global_batch_size=BATCH, workers=gpus, embedding_optimizer=EmbeddingOptimizerConfig(kind="sgd", lr=24.0)
        ),
        world_size=gpus,
        local_world_size=local,
        memory_per_worker=int(ACCELERATORS[accelerator].memory),
        batch_size=BATCH // gpus,
    )
    return StepCost.of(built, plan, BATCH, workers_per_node=local)


def _schema(limit: str) -> Schema:
    """Return Criteo's columns; an id more a table, for what is missing or rare."""
    return Schema(
        label="label",
        features=(
            *(NumericFeature(name=f"I{i + 1}") for i in range(13)),
            *(CategoricalFeature(name=f"C{i + 1}", cardinality=n + 1) for i, n in enumerate(CARDINALITIES[limit])),
        ),
    )


if __name__ == "__main__":
    main()
