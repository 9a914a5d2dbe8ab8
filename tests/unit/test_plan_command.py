"""What `rayrec plan` shows."""

from pathlib import Path

import pytest

from jobs.plan import PlanRequest, describe, run
from rayrec.common.progress import SilentProgress
from tests.builders import make_dataset


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan") / "data"
    make_dataset(folder, 20, categorical=2, cardinalities=(1_000_000, 100))
    return folder


def test_tables_that_the_gpu_has_no_room_for(data: Path) -> None:
    request = PlanRequest(recipe="dlrm-criteo-debug", data=data)
    fits = describe(run(request, SilentProgress()))
    assert "host bytes" not in fits and "uvm" not in fits
    result = run(
        request.model_copy(update={"memory_per_worker": "40MB", "host_memory_per_worker": "1GB"}), SilentProgress()
    )
    (large, small) = result.details["shards"]
    assert (large["kernel"], small["kernel"]) == ("fused_uvm_caching", "fused")
    assert result.details["bytes_by_rank"] == [large["bytes"] + small["bytes"]]
    assert result.details["host_bytes_by_rank"] == [large["host_bytes"]] == [5 * large["bytes"]]
    table, by_rank = (lines.splitlines() for lines in describe(result).split("\n\n"))
    (row,) = (line for line in table if line.startswith("C1 "))
    assert row.split()[:5] == ["C1", "1,000,000", "16", "table_wise", "fused_uvm_caching"]
    assert by_rank[0].endswith("host bytes")
