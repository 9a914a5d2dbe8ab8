"""How the rows of a batch job are dealt to tasks and parts, and how lines are numbered."""

import itertools
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayrec.common.errors import UserError
from rayrec.inference.batch.pool import ROWS_PER_PART, NumberLines, new_part, part_path
from rayrec.inference.batch.scoring import ScoringTask, grouped, rows_of_parts, scoring_tasks
from rayrec.ingest.dataset import PartInfo


@given(rows=st.lists(st.integers(1, 30), max_size=40), most=st.integers(1, 60))
def test_groups_hold_all_items_in_order_and_as_many_rows_as_fit(rows: list[int], most: int) -> None:
    groups = list(grouped(rows, most))
    assert [item for group in groups for item in group] == list(range(len(rows)))
    for group in groups:
        assert len(group) == 1 or sum(rows[item] for item in group) <= most
    for group, following in itertools.pairwise(groups):
        assert sum(rows[item] for item in group) + rows[following[0]] > most


def test_parts_are_many_and_none_is_long() -> None:
    assert [rows_of_parts(rows) for rows in (0, 1, 64, 65, 6_400_000)] == [1, 1, 1, 2, 100_000]
    assert rows_of_parts(4_200_000_000) == ROWS_PER_PART


def test_tasks_of_row_groups_know_where_their_rows_begin() -> None:
    parts = [
        PartInfo(path=f"test/{name}", rows=sum(groups), row_groups=groups, bytes=0, sha256="")
        for name, groups in (("a", (10, 10, 5)), ("b", (10, 3)))
    ]
    a, b = Path("/data/test/a"), Path("/data/test/b")
    assert scoring_tasks(Path("/data"), parts, 15) == [
        ScoringTask(0, 0, ((a, 0),)),
        ScoringTask(1, 10, ((a, 1), (a, 2))),
        ScoringTask(2, 25, ((b, 0), (b, 1))),
    ]


def test_lines_of_pieces_are_numbered_through_their_file(tmp_path: Path) -> None:
    pieces = []
    for number, (lines, before) in enumerate([([1, 3], 0), ([2], 7), ([1, 2], 0)]):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"file": ["f"] * len(lines), "line": lines}), path)
        pieces.append({"source": str(path), "rows": len(lines), "before": before})
    target = part_path(tmp_path / "scores", 3)
    assert NumberLines()([{**piece, "target": str(target)} for piece in pieces]) == 5
    assert pq.read_table(target)["line"].to_pylist() == [1, 3, 9, 1, 2]
    assert target.name == "part-00003.parquet"


def test_an_output_that_a_node_does_not_see_is_named(tmp_path: Path) -> None:
    path = part_path(tmp_path / ".out.unfinished-x" / "scores", 0)
    with pytest.raises(UserError, match="not the same folder on all nodes"), new_part(path, pa.schema([])):
        pass
