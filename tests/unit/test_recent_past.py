"""A model folder has the past that later rows ask for; older rows are refused."""

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from rayrec.common.errors import UserError
from rayrec.features.lookups import Lookups
from rayrec.features.raw_columns import STATISTICS_FOLDER
from rayrec.inference.export import with_recent_past, write_statistics
from rayrec.inference.raw_rows import RawRows
from rayrec.ingest.dataset import Dataset
from tests.unit.test_past import completed, make_log

SPLIT = {"kind": "time", "test": 0.3}


@pytest.fixture(scope="module")
def log() -> pd.DataFrame:
    return make_log(900)


@pytest.fixture(scope="module")
def dataset(log: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("recent") / "log"
    completed(log, folder, split=SPLIT)
    return Dataset.open(folder / "dataset")


def test_rows_of_the_held_out_time_are_told_what_all_events_tell(
    log: pd.DataFrame, dataset: Dataset, tmp_path: Path
) -> None:
    schema = with_recent_past(dataset.schema, dataset)
    write_statistics(schema, dataset.folder / STATISTICS_FOLDER, tmp_path / STATISTICS_FOLDER)
    times = pd.to_datetime(log["ts"], unit="s", utc=True)
    raw = pa.RecordBatch.from_pydict({"user": log["user"], "item": log["item"], "ts": pa.array(times)})
    whole, recent = (
        Lookups(given, folder).complete(raw).to_pandas()
        for given, folder in ((dataset.schema, dataset.folder), (schema, tmp_path))
    )
    first = dataset.manifest.times and dataset.manifest.times.held_out
    assert first == log.ts.iloc[-int(0.3 * len(log)) :].min()
    is_held_out = log.ts >= first
    pd.testing.assert_frame_equal(whole[is_held_out], recent[is_held_out])
    # A delta begins where its base does.
    assert with_recent_past(dataset.schema, dataset, dataset.schema) == dataset.schema
    assert with_recent_past(dataset.schema, dataset, schema) == schema
    sizes = [_bytes_of(folder / STATISTICS_FOLDER) for folder in (dataset.folder, tmp_path)]
    assert sizes[1] < 0.7 * sizes[0]


def _bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_rows_before_it_are_refused_unless_they_bring_all_that_is_looked_up(dataset: Dataset) -> None:
    schema = with_recent_past(dataset.schema, dataset)
    assert dataset.manifest.times is not None and dataset.manifest.times.held_out is not None
    rows, first = RawRows(schema), int(dataset.manifest.times.held_out)
    early, lists = {"user": "1", "item": "2", "ts": first - 3_600}, {"user_last_item": ["1"]}
    known = dict.fromkeys(schema.looked_up, 1.0) | lists
    rows.from_rows([{"user": "1", "ts": first}, {"user": "1"}, early | known])
    message = r"row 1, 'ts': 2023-11-\d\dT\d\d:\d\d:\d\dZ is too old; the model knows what was before 2023-11-\d\dT"
    for given in ([{"user": "1"}, early], [early | known, early | known | {"user_count": None}]):
        with pytest.raises(UserError, match=message):
            rows.from_rows(given)
        with pytest.raises(UserError, match=message):
            rows.from_batch(pa.RecordBatch.from_pandas(pd.DataFrame(given)))


def test_without_a_split_by_time_all_is_kept(log: pd.DataFrame, tmp_path: Path) -> None:
    completed(log, tmp_path / "log", split={"kind": "hash", "test": 0.2})
    dataset = Dataset.open(tmp_path / "log" / "dataset")
    assert with_recent_past(dataset.schema, dataset) == dataset.schema
    write_statistics(dataset.schema, dataset.folder / STATISTICS_FOLDER, tmp_path / STATISTICS_FOLDER)
    assert _bytes_of(tmp_path / STATISTICS_FOLDER) == _bytes_of(dataset.folder / STATISTICS_FOLDER)
    RawRows(dataset.schema).from_rows([{"user": "1", "ts": 0}])
