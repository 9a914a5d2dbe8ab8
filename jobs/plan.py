"""`rayrec plan`: shows a sharding plan without training."""

from pydantic import PositiveInt

from jobs.command import Command, RecipeRequest, Result, main, text_table
from rayrec.common.errors import ConfigError
from rayrec.common.progress import Progress
from rayrec.common.text import format_bytes, parse_bytes
from rayrec.store.paths import Folder


class PlanRequest(RecipeRequest):
    data: Folder
    """Dataset folder, for the sizes of the tables."""
    workers: PositiveInt = 1
    """Number of workers to plan for."""
    workers_per_node: PositiveInt | None = None
    """Number of workers per machine; by default all."""
    memory_per_worker: str = "80GB"
    """Memory for tables per worker, such as 80GB or 64GiB."""
    host_memory_per_worker: str = "0GB"
    """Host memory per worker for tables that do not fit its GPU, such as 200GB."""


def run(request: PlanRequest, progress: Progress) -> Result:
    """Plan; `details` holds what training writes to plan.json."""
    from rayrec.ingest.dataset import Dataset

    recipe = request.load_recipe()
    dataset = Dataset.open(request.data)
    local = request.workers_per_node or request.workers
    if request.workers % local:
        raise ConfigError(f"--workers-per-node: {request.workers} workers are not a multiple of {local}")
    memory, host_memory = parse_bytes(request.memory_per_worker), parse_bytes(request.host_memory_per_worker)
    # Imported after the checks: a mistake is answered at once, not when torch has been loaded.
    from rayrec.models.registry import build_model
    from rayrec.training.parallel.sharding_plan import plan_sharding
    from rayrec.training.run.preflight import require_parts

    model = build_model(recipe.model, dataset.schema, device="meta")
    require_parts(recipe.train, model)
    train = recipe.train.with_batch_of(dataset.split("train").rows, request.workers)
    plan = plan_sharding(
        model.tables,
        train,
        world_size=request.workers,
        local_world_size=local,
        memory_per_worker=memory,
        host_memory_per_worker=host_memory,
        batch_size=max(1, train.global_batch_size // request.workers),
    )
    return Result(command="plan", details=plan.as_json())


def describe(result: Result) -> str:
    """Return the plan: sharding, kernel, ranks and bytes of each table; then the bytes by rank."""
    plan = result.details
    sizes, host_sizes = plan["bytes_by_rank"], plan["host_bytes_by_rank"]
    uses_hosts = any(host_sizes)
    tables = []
    for name in dict.fromkeys(shard["table"] for shard in plan["shards"]):
        shards = [shard for shard in plan["shards"] if shard["table"] == name]
        ranks = sorted({shard["rank"] for shard in shards})
        tables.append({
            "table": name,
            "rows": max(s["row"] + s["rows"] for s in shards),
            "dim": max(s["column"] + s["columns"] for s in shards),
            "sharding": shards[0]["sharding"],
            "kernel": shards[0]["kernel"],
            "ranks": "all" if len(ranks) == len(sizes) else ",".join(map(str, ranks)),
            "bytes": format_bytes(sum(s["bytes"] for s in shards)),
            **({"host bytes": format_bytes(sum(s["host_bytes"] for s in shards))} if uses_hosts else {}),
        })  # fmt: skip
    by_rank = [
        {"rank": rank, "bytes": format_bytes(size), **({"host bytes": format_bytes(host_size)} if uses_hosts else {})}
        for rank, (size, host_size) in enumerate(zip(sizes, host_sizes, strict=True))
    ]
    return f"{text_table(tables)}\n\n{text_table(by_rank)}"


COMMAND = Command("plan", PlanRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
