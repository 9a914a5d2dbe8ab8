"""The sharding plan as text."""

from collections.abc import Mapping
from typing import Any


def plan_table(plan: Mapping[str, Any]) -> str:
    """A line a table (rows x columns, sharding, ranks, bytes), then the bytes of each rank; `plan` as in plan.json."""
    from rayrec.common.units import format_bytes

    lines = [("table", "rows", "dim", "sharding", "ranks", "bytes")]
    tables: dict[str, list[Mapping[str, Any]]] = {}
    for shard in plan["shards"]:
        tables.setdefault(shard["table"], []).append(shard)
    for name, shards in tables.items():
        rows = max(s["row"] + s["rows"] for s in shards)
        dim = max(s["column"] + s["columns"] for s in shards)
        ranks = _ranges(sorted({s["rank"] for s in shards}))
        size = format_bytes(sum(s["bytes"] for s in shards))
        lines.append((name, f"{rows:,}", str(dim), shards[0]["sharding"], ranks, size))
    widths = [max(len(line[i]) for line in lines) for i in range(6)]
    right = {1, 2, 5}
    text = [
        "  ".join(cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(line, widths)))
        for line in lines
    ]
    text += [f"rank {rank}: {format_bytes(size)}" for rank, size in enumerate(plan["bytes_by_rank"])]
    return "\n".join(line.rstrip() for line in text)


def _ranges(ranks: list[int]) -> str:
    """[0, 1, 2, 5] -> '0-2,5'."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
