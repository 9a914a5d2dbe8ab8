"""Show a sharding plan without training: `python -m jobs.plan --recipe NAME --data FOLDER --workers N`."""

from pathlib import Path

from pydantic import PositiveInt

from jobs.entry_point import Job, main
from jobs.request import RecipeRequest
from jobs.result import Result
from rayrec.common.errors import ConfigError
from rayrec.common.progress import Progress


class PlanRequest(RecipeRequest):
    """Show where every embedding table would lie."""

    data: Path
    """Dataset folder, whose schema has the tables' sizes."""
    workers: PositiveInt = 1
    """Workers to plan for."""
    workers_per_node: PositiveInt | None = None
    """Workers on one machine; by default all of them."""
    memory_per_worker: str = "80GB"
    """Memory of one worker, such as 80GB or 64GiB."""


def run(request: PlanRequest, progress: Progress) -> Result:
    """Plan; `details` holds what training writes to plan.json."""
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

    plan = plan_tables(
        build_model(recipe.model, dataset.schema, device="meta").tables,
        recipe.train,
        world_size=request.workers,
        local_world_size=local,
        memory_per_worker=memory,
        batch_size=max(1, recipe.train.global_batch_size // request.workers),
    )
    return Result(command="plan", details=plan.as_json())


def describe(result: Result) -> str:
    """The plan as a table: sharding, ranks and bytes of each embedding table; then bytes by rank."""
    from jobs.plan_table import plan_table

    return plan_table(result.details)


JOB = Job("plan", PlanRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(JOB))
