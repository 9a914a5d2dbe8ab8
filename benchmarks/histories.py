"""What the past of each row costs: `rayrec preprocess` with a history and without, beside the same by hand in DuckDB.

    python -m benchmarks.histories --rows 1000000 --output FILE

A generated log of 50,000 users; with `--skewed`, half of all events are of one of them. The history has the count, the
label rate, the age and the last 20 items. By hand these are two windows, an ASOF join and a gather of pointers in NumPy
by an expert who knows of ties and leaks; what is written there is not encoded. Each is a process of its own, in turn,
`--times` times; the least time counts, and the most memory that the processes have for themselves (USS).
"""

import argparse
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.process_tree import MIB, folder_size, run_sampled
from benchmarks.result_rows import ResultRows
from rayrec.store.files import remove

USERS, ITEMS, LAST, SMOOTHING = 50_000, 2_000, 20, 5
_BY_HAND = f"""
create table events as select user_id, ts, click, item_id,
    row_number() over (order by user_id, ts, click, item_id) as place,
    row_number() over by_user as n, sum(click) over by_user as clicks
    from '{{log}}' window by_user as (partition by user_id order by ts, click, item_id rows unbounded preceding);
create table moments as select user_id, ts, max(place) as place, max(n) as n, max(clicks) as clicks
    from events group by all;
create table means as select minute, sum(sum(click)) over w / sum(count(*)) over w as mean
    from (select click, time_bucket(interval '1 minute', ts) + interval '1 minute' as minute from '{{log}}')
    group by minute window w as (order by minute);
create table found as select l.*, coalesce(m.n, 0) as n, m.place, date_diff('microsecond', m.ts, l.ts) / 864e8 as age,
    case when a.mean is null then m.clicks / m.n
    else (coalesce(m.clicks, 0) + {SMOOTHING} * a.mean) / (coalesce(m.n, 0) + {SMOOTHING}) end as rate
    from '{{log}}' l asof left join moments m on l.user_id = m.user_id and l.ts > m.ts
    asof left join means a on l.ts >= a.minute;
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--skewed", action="store_true", help="half of all events are of one user")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--folder", type=Path, required=True, help="for all files")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--by-hand", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.by_hand is not None:
        _by_hand(arguments.by_hand, arguments.output)
        return
    results = ResultRows(arguments.output, keys=("rows", "skewed"), printed=("rows", "skewed", "seconds", "mib"))
    for rows in arguments.rows:
        if not results.has(rows=rows, skewed=arguments.skewed):
            results.add(_measure(arguments.folder, rows, skewed=arguments.skewed, times=arguments.times))


def _measure(folder: Path, rows: int, *, skewed: bool, times: int) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    log, output = folder / "log.parquet", folder / "output"
    _write_log(log, rows, skewed=skewed)
    commands = {}
    for name, history in (("without", False), ("with", True)):
        recipe = folder / f"{name}.yaml"
        recipe.write_text(yaml.safe_dump(_recipe(history=history), sort_keys=False))
        commands[name] = ["rayrec.cli", "preprocess", str(recipe), "--input", str(log), "--output", str(output)]
    commands["by hand"] = [
        "benchmarks.histories", "--by-hand", str(log), "--folder", str(folder), "--output", str(output)
    ]  # fmt: skip
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    memory, disk = dict.fromkeys(commands, 0), dict[str, int]()
    for _ in range(times):
        for name, command in commands.items():
            remove(output)
            began = time.perf_counter()
            seen = run_sampled(command)
            seconds[name].append(round(time.perf_counter() - began, 2))
            memory[name] = max(memory[name], seen.largest_mib["all processes"])
            disk[name] = (folder_size(output) if output.is_dir() else output.stat().st_size) // MIB
    least = {name: min(of_command) for name, of_command in seconds.items()}
    return {
        "rows": rows,
        "skewed": skewed,
        "seconds": least,
        "seconds_of_all": seconds,
        "history_per_hand": round((least["with"] - least["without"]) / least["by hand"], 2),
        "mib": memory,
        "disk_mib": disk,
    }


def _write_log(path: Path, rows: int, *, skewed: bool) -> None:
    random = np.random.default_rng(0)
    users = random.integers(0, USERS, rows)
    if skewed:
        users[random.random(rows) < 0.5] = 0
    moments = np.sort(random.integers(0, 30 * 86_400, rows)) * 1_000_000 + 1_700_000_000_000_000
    columns = {
        "ts": pa.array(moments).cast(pa.timestamp("us", "UTC")),
        "user_id": users,
        "item_id": (ITEMS * random.random(rows) ** 3).astype(np.int64),
        "click": random.integers(0, 2, rows),
    }
    pq.write_table(pa.table(columns), path, row_group_size=131_072)


def _recipe(*, history: bool) -> dict[str, Any]:
    last = {"op": "last", "column": "item_id", "length": LAST}
    take = ["count", "age", {"op": "rate", "smoothing": SMOOTHING}, last]
    source = {
        "kind": "table",
        "label": "click",
        "time": "ts",
        "features": [{"kind": "categorical", "columns": ["user_id", "item_id"], "min_count": 1}],
    }
    return {
        "source": source | ({"histories": {"user": {"by": "user_id", "take": take}}} if history else {}),
        "preprocess": {"split": {"kind": "time", "test": 0.1}},
        "model": {"kind": "dcnv2", "embedding_dim": 8},
    }


def _by_hand(log: Path, output: Path) -> None:
    with duckdb.connect() as database:
        database.execute(_BY_HAND.format(log=log))
        found = database.sql("from found").to_arrow_table()
        items = database.sql("select item_id from events order by place").fetchnumpy()["item_id"]
    sizes = np.minimum(found["n"].to_numpy(), LAST)
    first = found["place"].fill_null(0).to_numpy() - sizes
    elements = np.arange(sizes.sum()) + np.repeat(first - (np.cumsum(sizes) - sizes), sizes)
    lists = pa.LargeListArray.from_arrays(np.concatenate([[0], np.cumsum(sizes)]), items[elements])
    pq.write_table(found.append_column("last", lists), output)


if __name__ == "__main__":
    main()
