"""The sharding plan as text."""

from collections.abc import Mapping
from typing import Any

from jobs.command.text_table import text_table
from rayrec.common.units import format_bytes


def plan_table(plan: Mapping[str, Any]) -> str:
    """A line a table (rows x columns, sharding, ranks, bytes), then the bytes of each rank; `plan` as in plan.json."""
    tables: dict[str, list[Mapping[str, Any]]] = {}
    for shard in plan["shards"]:
        tables.setdefault(shard["table"], []).append(shard)
    rows = [
        {
            "table": name,
            "rows": max(s["row"] + s["rows"] for s in shards),
            "dim": max(s["column"] + s["columns"] for s in shards),
            "sharding": shards[0]["sharding"],
            "ranks": _ranges(sorted({s["rank"] for s in shards})),
            "bytes": format_bytes(sum(s["bytes"] for s in shards)),
        }
        for name, shards in tables.items()
    ]
    ranks = [{"rank": rank, "bytes": format_bytes(size)} for rank, size in enumerate(plan["bytes_by_rank"])]
    return f"{text_table(rows)}\n\n{text_table(ranks)}"


def estimate_table(estimate: Mapping[str, Any]) -> str:
    """What a step should cost: samples/s, milliseconds, bytes sent and memory of the busiest rank."""
    milliseconds = ", ".join(f"{name} {1000 * seconds:.2f}" for name, seconds in estimate["seconds"].items())
    sent = ", ".join(f"{name} {format_bytes(size)}" for name, size in estimate["sent_bytes"].items())
    return (
        f"estimate for {estimate['hardware']}, {estimate['precision']}, batches of {estimate['global_batch_size']:,} "
        f"(docs/scaling.md says how good it is):\n"
        f"  {estimate['samples_per_second']:,.0f} samples/s\n"
        f"  milliseconds a step: {milliseconds}\n"
        f"  sent by the busiest rank in a step: {sent}\n"
        f"  memory of the fullest rank: {format_bytes(max(estimate['memory_by_rank']))}"
    )


def _ranges(ranks: list[int]) -> str:
    """[0, 1, 2, 5] -> '0-2,5'."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
