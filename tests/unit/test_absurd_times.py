"""Times that databases write where there is none are missing values, or said with counts."""

from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from rayrec.inspection.table.column_forms import profile_column
from rayrec.inspection.table.columns import ColumnProfile

ROWS, ABSURD = 900, 63


def _profile(absurd: datetime | str, form: str) -> ColumnProfile:
    times = [datetime(2023, 11, 5) + timedelta(hours=9 * n) for n in range(ROWS - ABSURD)]
    if form == "timestamp":
        return profile_column("until", pa.chunked_array([[*times, *[absurd] * ABSURD]]), delimited=False)
    texts = [time.strftime(form) for time in times]
    last = absurd if isinstance(absurd, str) else absurd.strftime(form).zfill(len(texts[0]))
    return profile_column("until", pa.chunked_array([[*texts, *[last] * ABSURD]]), delimited=True)


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%d.%m.%Y", "%Y-%m-%dT%H:%M:%SZ"])
@pytest.mark.parametrize("absurd", [datetime(1970, 1, 1), datetime(9999, 12, 31), datetime(1900, 1, 1)])
def test_absurd_times_in_texts_are_missing(absurd: datetime, form: str) -> None:
    column = _profile(absurd, form)
    assert column.form == "time" and column.null_words == (absurd.strftime(form),)
    assert (column.codes < 0).sum() == ABSURD and f"{ABSURD} rows" in column.notes[-1]
    assert np.nanmax(column.row_seconds) < datetime(2025, 1, 1).timestamp()


@pytest.mark.parametrize("absurd", ["0000-00-00 00:00:00", "0001-01-01 00:00:00"])
def test_zero_dates_are_missing(absurd: str) -> None:
    assert _profile(absurd, "%Y-%m-%d %H:%M:%S").null_words == (absurd,)


@pytest.mark.parametrize("absurd", [datetime(1, 1, 1), datetime(1970, 1, 1), datetime(9999, 12, 31)])
def test_absurd_times_with_types_are_said(absurd: datetime) -> None:
    (note,) = _profile(absurd, "timestamp").notes
    assert f"{ABSURD} rows of '{absurd.isoformat(' ')}'" in note


def test_births_and_times_of_many_years_stay() -> None:
    births = [f"{1925 + n % 90}-0{1 + n % 9}-1{n % 7}" for n in range(ROWS)]
    old = [f"{1971 + n % 50}-0{1 + n % 9}-1{n % 7}" for n in range(ROWS)] + ["1970-01-01"]
    for texts in (births, old):
        column = profile_column("born", pa.chunked_array([texts]), delimited=True)
        assert column.form == "time" and not column.null_words and column.missing_share == 0
