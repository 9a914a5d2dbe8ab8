"""How often a row group is decoded in an epoch, by the number of workers: each for itself, and shared as training does.

    python -m benchmarks.read_amplification --output benchmarks/results/read_amplification.json

Nothing is read: the plans of all ranks are made and counted, for splits of files of 20 row groups of 32,768 rows, of
which the last has a third.
"""

import argparse
from pathlib import Path
from typing import Any

from rayrec.common.machine import Machine
from rayrec.ingest.dataset import PartInfo
from rayrec.ingest.order import BatchOrder, row_groups_of
from rayrec.store.files import write_json

_ROWS = 32_768
_ROW_GROUPS = (40, 400, 1_600)
_WORKERS = (1, 2, 3, 8, 16, 24, 32, 64, 100, 128, 256, 384, 512, 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    machine = Machine()
    rows = []
    for row_groups in _ROW_GROUPS:
        for workers in _WORKERS:
            rows.append({"row_groups": row_groups, "workers": workers, **_decoded(row_groups, workers)})
            print(rows[-1], flush=True)
    report = {"rows_per_row_group": _ROWS, "read_streams": BatchOrder.read_streams, "runs": rows}
    write_json(arguments.output, {"machine": machine.described(), **report})


def _decoded(row_groups: int, workers: int) -> dict[str, Any]:
    of_part = (*(_ROWS,) * 19, _ROWS // 3)
    part = PartInfo(path="part.parquet", rows=sum(of_part), row_groups=of_part, bytes=0, sha256="")
    groups = row_groups_of([part] * (row_groups // 20))
    alone = shared = most = 0
    for rank in range(workers):
        order = BatchOrder(row_groups=groups, global_batch_size=65_536, world_size=workers, rank=rank)
        alone += len(order.needs)
        own = sum(need.decoder == rank for need in order.needs)
        shared, most = shared + own, max(most, own)
    return {"each_for_itself": alone / len(groups), "shared": shared / len(groups), "most_of_one_worker": most}


if __name__ == "__main__":
    main()
