"""The sharding plan as text."""

from collections.abc import Mapping
from typing import Any

from jobs.text_table import text_table
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


def _ranges(ranks: list[int]) -> str:
    """[0, 1, 2, 5] -> '0-2,5'."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
