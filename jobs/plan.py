"""`rayrec plan`: shows a sharding plan and what a step should cost, without training."""

from typing import TYPE_CHECKING

from pydantic import PositiveInt

from jobs.command.command_line import main
from jobs.command.request import RecipeRequest
from jobs.command.result import Result
from jobs.command.runner import Command
from rayrec.common.errors import ConfigError
from rayrec.common.progress import Progress
from rayrec.storage.location import Folder
from rayrec.training.hardware import AcceleratorName

if TYPE_CHECKING:
    from rayrec.config import TrainConfig
    from rayrec.models.common.ranking import RankingModel
    from rayrec.training.sharding import TablePlan


class PlanRequest(RecipeRequest):
    """Show how the tables would be sharded, without training."""

    data: Folder
    """Dataset folder, whose schema has the sizes of the tables."""
    workers: PositiveInt = 1
    """Workers to plan for."""
    workers_per_node: PositiveInt | None = None
    """Workers on one machine, by default all of them."""
    memory_per_worker: str = "80GB"
    """Memory of one worker for tables, such as 80GB or 64GiB."""
    hardware: AcceleratorName | None = None
    """Kind of GPU on which to estimate a training step, by default none."""


def run(request: PlanRequest, progress: Progress) -> Result:
    """Plan; `details` holds what training writes to plan.json, and with `hardware` an `estimate`."""
    from rayrec.common.units import parse_bytes
    from rayrec.ingest.dataset import Dataset

    recipe = request.load_recipe()
    dataset = Dataset.open(request.data)
    local = request.workers_per_node or request.workers
    if request.workers % local:
        raise ConfigError(f"--workers-per-node: {request.workers} workers are no multiple of {local}")
    memory = parse_bytes(request.memory_per_worker)
    # Imported after the checks: a mistake is answered at once, not when torch has been loaded.
    from rayrec.models.registry import build_model
    from rayrec.training.sharding import plan_tables

    model = build_model(recipe.model, dataset.schema, device="meta")
    plan = plan_tables(
        model.tables,
        recipe.train,
        world_size=request.workers,
        local_world_size=local,
        memory_per_worker=memory,
        batch_size=max(1, recipe.train.global_batch_size // request.workers),
    )
    details = plan.as_json()
    if request.hardware is not None:
        details["estimate"] = _estimate(request.hardware, recipe.train, model, plan, local)
    return Result(command="plan", details=details)


def _estimate(
    hardware: AcceleratorName, train: "TrainConfig", model: "RankingModel", plan: "TablePlan", workers_per_node: int
) -> dict[str, object]:
    from rayrec.training.cost import estimate_step
    from rayrec.training.hardware import ACCELERATORS

    precision = "bf16" if train.precision == "auto" else train.precision
    batch = train.global_batch_size
    estimate = estimate_step(
        ACCELERATORS[hardware], precision, model=model, plan=plan, batch=batch, workers_per_node=workers_per_node
    )
    return {"hardware": hardware, "precision": precision, "global_batch_size": batch, **estimate.as_json()}


def describe(result: Result) -> str:
    """The plan as a table: sharding, ranks and bytes of each embedding table; then bytes by rank; then the estimate."""
    from jobs.plan_table import estimate_table, plan_table

    estimate = result.details.get("estimate")
    return plan_table(result.details) + (f"\n\n{estimate_table(estimate)}" if estimate is not None else "")


COMMAND = Command("plan", PlanRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
