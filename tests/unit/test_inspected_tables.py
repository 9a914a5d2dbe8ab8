"""What `rayrec inspect` writes for untidy tables runs: preprocessing takes it unedited and leaves out the same rows."""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.inspect import InspectRequest, describe
from jobs.inspect import run as command
from rayrec.common.errors import UserError
from rayrec.common.progress import SilentProgress
from rayrec.inspection.table.decisions import Decision
from rayrec.inspection.table.inspected_table import InspectedTable, inspect_table
from rayrec.models.registry import build_model
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.recipes import load_recipe
from rayrec.sources.registry import preprocessing

ROWS = 600
START = np.datetime64("2024-03-01T00:00:00")
RNG = np.random.default_rng(5)


def every(number: int, odd: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """The values with one of `odd` in every so many rows."""
    return [odd[i // number % len(odd)] if i % number == number - 1 else v for i, v in enumerate(values)]


AMOUNTS = [round(v, 2) for v in RNG.lognormal(2, 1, ROWS).tolist()]
WHOLE = RNG.integers(1, 200, ROWS).tolist()
WORDS = RNG.choice(["red", "green", "blue"], ROWS).tolist()
TIMES = (START + np.arange(ROWS) * np.timedelta64(3_601, "s")).astype(str).tolist()
EPOCHS = [1_709_251_200 + 3_601 * i for i in range(ROWS)]

UNTIDY: dict[str, list[Any]] = {
    "numbers with words": every(7, ["unknown", "NA"], AMOUNTS),
    "numbers with a wrong one": every(400, ["12 or so"], AMOUNTS),
    "numbers with too many wrong ones": every(9, ["12 or so", "5-6", "n. a. 7", "8?"], AMOUNTS),
    "numbers with infinity": every(50, ["inf"], AMOUNTS),
    "numbers and none": every(3, [None], AMOUNTS),
    "numbers with blanks": [f" {v} " for v in AMOUNTS],
    "sentinels": every(5, [99_999_999], WHOLE),
    "minus one": every(3, [-1], WHOLE),
    "one value": ["only"] * ROWS,
    "nothing": [None] * ROWS,
    "floats that are whole": [float(v) for v in WHOLE],
    "integers beyond 64 bits": [f"{10**20 + v}" for v in WHOLE],
    "leading zeros": [f"{v:05d}" for v in WHOLE],
    "words of two spellings": every(2, ["True", "false"], ["true", "False"] * (ROWS // 2)),
    "thousands": [f"{v * 37:,}" for v in WHOLE],
    "decimal comma": [str(v).replace(".", ",") for v in AMOUNTS],
    "price": [f"€{v}" for v in AMOUNTS],
    "share": [f"{v} %" for v in WHOLE],
    "time": TIMES,
    "time with a wrong one": every(500, ["soon"], TIMES),
    "time with many wrong ones": every(10, [f"soon{i}" for i in range(60)], TIMES),
    "time of two zones": [f"{t}{'Z' if i % 2 else '+02:00'}" for i, t in enumerate(TIMES)],
    "time with noon": [np.datetime64(t).item().strftime("%d/%m/%Y %I:%M %p") for t in TIMES],
    "time_s": [v - 7.75 for v in EPOCHS],
    "time_ms and none": every(20, [None], [v * 1_000 for v in EPOCHS]),
    "lists": ["|".join(WORDS[i : i + 1 + i % 3]) for i in range(ROWS)],
    "vectors": [f"{v};0.5;{v / 2}" for v in AMOUNTS],
    "vectors of two lengths": every(40, ["1.5;2.5"], [f"{v};0.5;{v / 2}" for v in AMOUNTS]),
    "rare words": every(2, [f"word{i}" for i in range(300)], WORDS),
    "type": WORDS,
}
TYPED: dict[str, pa.Array] = {
    "binary": pa.array([w.encode() for w in WORDS], pa.binary()),
    "no UTF-8": pa.array(every(10, [b"\xff"], [w.encode() for w in WORDS])),
    "views": pa.array(WORDS, pa.string_view()),
    "large texts": pa.array(WORDS, pa.large_string()),
    "dictionary": pa.array(WORDS).dictionary_encode(),
    "booleans": pa.array([v % 2 == 0 if v % 5 else None for v in WHOLE]),
    "decimals": pa.array([Decimal(v) / 4 for v in WHOLE]),
    "small floats": pa.array(AMOUNTS, pa.float32()),
    "unsigned": pa.array(WHOLE, pa.uint8()),
    "times beyond all calendars": pa.array([(v + 30) * 10**16 for v in WHOLE], pa.timestamp("us")),
    "integers of 64 bits": pa.array([2**63 + v for v in WHOLE], pa.uint64()),
    "dates": pa.array(TIMES).cast(pa.timestamp("s")).cast(pa.date32()),
    "times of a zone": pa.array(TIMES).cast(pa.timestamp("s")).cast(pa.timestamp("ns", "Europe/Vienna")),
    "times of day": pa.array([v * 60 for v in WHOLE], pa.time32("s")),
    "durations": pa.array(WHOLE, pa.duration("s")),
    "epoch_float": pa.array([None if i % 10 == 0 else float(v) for i, v in enumerate(EPOCHS)]),
    "list": pa.array([[w] * (v % 3) for w, v in zip(WORDS, WHOLE, strict=True)]),
    "fixed lists": pa.array([[v, v + 1] for v in WHOLE], pa.list_(pa.int64(), 2)),
    "lists of bytes": pa.array([[w.encode()] * (1 + v % 2) for w, v in zip(WORDS, WHOLE, strict=True)]),
    "lists of whole floats": pa.array([[float(v)] * (v % 3) for v in WHOLE]),
    "vector": pa.array([[v, 0.5] for v in AMOUNTS]),
    "objects": pa.array([{"a": v} for v in WHOLE]),
    "lists of objects": pa.array([[{"a": v}] for v in WHOLE]),
}


def write_csv(path: Path, columns: dict[str, list[Any]]) -> None:
    """Fields in quotes where they have a comma."""
    rows = [list(columns), *map(list, zip(*columns.values(), strict=True))]
    shown = [["" if v is None else f'"{v}"' if "," in str(v) else str(v) for v in row] for row in rows]
    path.write_text("".join(",".join(row) + "\n" for row in shown))


def write_json(path: Path, columns: dict[str, list[Any]]) -> None:
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def write_parquet(path: Path, columns: dict[str, Any]) -> None:
    """Columns of one type as such, others as text."""
    arrays = {}
    for name, values in columns.items():
        kinds = {type(v) for v in values if v is not None}
        is_one = isinstance(values, pa.Array) or len(kinds) < 2
        arrays[name] = pa.array(values if is_one else [None if v is None else str(v) for v in values])
    pq.write_table(pa.table(arrays), path)


WRITERS: dict[str, Callable[[Path, dict[str, Any]], None]] = {
    "csv": write_csv,
    "jsonl": write_json,
    "pq": write_parquet,
}
CLICKS = [int(v) for v in RNG.random(ROWS) < 0.3]
LABELS: dict[str, list[Any]] = {
    "numbers": CLICKS,
    "blanks": [f" {v}" for v in CLICKS],
    "floats": [float(v) for v in CLICKS],
    "words": [("no", "Yes")[v] for v in CLICKS],
    "some missing": every(4, [None, "NA", ""], list(map(str, CLICKS))),
    "one wrong": every(500, ["2"], CLICKS),
}


def run(
    folder: Path, suffix: str, columns: dict[str, Any], label: Sequence[Any] = CLICKS, **options: Any
) -> InspectedTable:
    """Inspect a table and preprocess it with what was written; both leave out the same rows."""
    path = folder / f"table.{suffix}"
    WRITERS[suffix](path, {**columns, "click": label})
    found = inspect_table([str(path)], "click", options.pop("model", "wide_deep"), 100_000, "rayrec inspect", **options)
    assert found.can_run
    (folder / "recipe.yaml").write_text(found.recipe)
    recipe = load_recipe(folder / "recipe.yaml")
    manifest = preprocessing(recipe, {None: [str(path)]}, folder / "dataset").run(EmbeddedEngine(1))
    assert manifest.rejected == found.left_out.reasons
    assert sum(split.rows for split in manifest.splits.values()) == found.left_out.rows
    return found


def decisions(found: InspectedTable) -> dict[str, Decision]:
    return {decision.column.name: decision for decision in found.decisions}


IGNORED = {"one value", "nothing", "time with many wrong ones"}


@pytest.mark.parametrize("suffix", WRITERS)
def test_untidy_columns_together(suffix: str, tmp_path: Path) -> None:
    found = decisions(run(tmp_path, suffix, UNTIDY))
    assert found["numbers with words"].kind == found["numbers with a wrong one"].kind == "numeric"
    assert {name for name, decision in found.items() if decision.role == "ignored"} == IGNORED


@pytest.mark.parametrize("name", UNTIDY)
def test_an_untidy_column_alone(name: str, tmp_path: Path) -> None:
    if name in IGNORED:
        with pytest.raises(UserError, match="no column can be a feature"):
            run(tmp_path, "csv", {name: UNTIDY[name]})
        return
    run(tmp_path, "csv", {name: UNTIDY[name]})


@pytest.mark.parametrize("suffix", WRITERS)
def test_times_as_programs_write_them(suffix: str, tmp_path: Path) -> None:
    times = [np.datetime64(t).item() for t in TIMES]
    columns: dict[str, list[Any]] = {
        "iso": [t.strftime("%Y-%m-%d %H:%M:%S,250") for t in times],
        "iso in its basic form": [t.strftime("%Y%m%dT%H%M%SZ") for t in times],
        "%a, %d %b %Y %H:%M:%S GMT": [t.strftime("%a, %d %b %Y %H:%M:%S GMT") for t in times],
        "%d/%b/%Y:%H:%M:%S %z": [t.strftime("%d/%b/%Y:%H:%M:%S +0200") for t in times],
        "%a %b %d %H:%M:%S %Y": [t.ctime() for t in times],
        "%Y/%m/%d": [t.strftime("%Y/%m/%d") for t in times],
        "ns of a time": [v * 10**9 for v in EPOCHS],
        "us of a time": [v * 10**6 for v in EPOCHS],
        "%Y%m of a month": [int(t.strftime("%Y%m")) for t in times],
    }
    found = decisions(run(tmp_path, suffix, columns))
    formats = {name: found[name].column.time_format for name in columns}
    assert formats == {name: re.split(" of | in ", name)[0] for name in columns}


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_few_absurd_numbers_change_nothing(suffix: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    sound: dict[str, list[Any]] = {
        "price": rng.lognormal(2, 1, ROWS).round(2).tolist(),
        "change": rng.normal(size=ROWS).round(3).tolist(),
        "year": (1990 + rng.integers(0, 60, ROWS)).tolist(),
        "skewed": (-rng.lognormal(2, 2, ROWS)).round(2).tolist(),
        "gaps": every(9, [None], rng.normal(size=ROWS).round(3).tolist()),
    }
    odd = {name: list(values) for name, values in sound.items()}
    odd["price"][5], odd["price"][77], odd["change"][3], odd["year"][8] = 1e300, -1e15, 1e20, 999_999_999
    odd["skewed"][11], odd["skewed"][12], odd["gaps"][1] = -1e30, 1e12, -1e15
    weight = every(ROWS, [1e12], [1.0, 2.0] * (ROWS // 2))
    (tmp_path / "sound").mkdir()
    clean = decisions(run(tmp_path / "sound", suffix, sound))
    report = run(tmp_path, suffix, odd | {"weight": weight})
    found = decisions(report)
    assert [warning.split(",")[0] for warning in report.warnings] == [
        "weight: 1 weights such as 1e+12 outweigh all other rows; remove these rows"
    ]
    for name in sound:
        rule, expected = found[name].rules[0], clean[name].rules[0]
        bounds, *steps = rule["transforms"]
        if isinstance(steps[-1], dict) and steps[-1]["op"] == "fill":
            steps.pop()
        assert bounds["outside"] == "missing" and [s if isinstance(s, str) else s["op"] for s in steps] == [
            s if isinstance(s, str) else s["op"] for s in expected["transforms"]
        ]
        inside = [v for v in sound[name] if v is not None]
        assert bounds.get("min", -np.inf) < min(inside) and max(inside) < bounds.get("max", np.inf)
        assert all(not bounds.get("min", -1e11) <= v <= bounds.get("max", 1e11) for v in odd[name]
                   if v is not None and v not in inside)  # fmt: skip


@pytest.mark.parametrize("suffix", WRITERS)
def test_numbers_that_are_not_read_are_said(suffix: str, tmp_path: Path) -> None:
    numbers = [1_000 + 37 * i for i in range(ROWS)]
    others = str.maketrans("0123456789", "\u0660\u0661\u0662\u0663\u0664\u0665\u0666\u0667\u0668\u0669")
    columns = {
        "grouped": [f"{v:_}" for v in numbers],
        "hexadecimal": [hex(v) for v in numbers],
        "arabic": [str(v).translate(others) for v in numbers],
        "fractions": [f"{v % 97}/{v % 89 + 2}" for v in numbers],
        "powers": [f"{v / 1000} x 10^3" for v in numbers],
        "fortran": [f"{v:.4e}".replace("e", "D") for v in numbers],
    }
    found = run(tmp_path, suffix, columns | {"versions": [f"{v % 9}.{v % 7}.{v % 5}" for v in numbers]})
    assert {warning.split(":")[0] for warning in found.warnings if "write plain numbers" in warning} == columns.keys()


def test_many_spellings_of_nothing(tmp_path: Path) -> None:
    nothing = ["--", "n.a.", "unbekannt", "k.A.", "tbd", "leer", "(missing)"]
    odd = [nothing[i // 7 % 7] if i % 7 == 0 else v for i, v in enumerate(AMOUNTS)]
    times = [nothing[i // 7 % 7] if i % 7 == 3 else v for i, v in enumerate(TIMES)]
    found = decisions(run(tmp_path, "csv", {"amount": odd, "seen": times, "color": WORDS}))
    assert found["amount"].kind == "numeric" and found["seen"].column.form == "time"


def test_a_value_of_one_column_is_no_missing_value_of_another(tmp_path: Path) -> None:
    found = run(
        tmp_path, "csv", {"color": WORDS, "price": every(300, ["red"], AMOUNTS), "size": every(9, ["big"], WHOLE)}
    )
    assert "null_values:" in found.recipe and '["", big]' in found.recipe
    assert decisions(found)["price"].kind == "numeric" and found.left_out.bad == 2


@pytest.mark.parametrize("model", ["wide_deep", "dcnv2"])
def test_few_rows_of_rare_values(model: str, tmp_path: Path) -> None:
    found = run(tmp_path, "csv", {"word": [f"w{i // 2}" for i in range(40)]}, [0, 0, 0, 1] * 10, model=model)
    assert not found.warnings
    write_csv(tmp_path / "few.csv", {"word": WORDS[:20], "click": [0, 0, 0, 1] * 5})
    (said,) = inspect_table([str(tmp_path / "few.csv")], "click", model, 100, "rayrec inspect").warnings
    assert "5 rows of one kind are too few" in said


def test_names_that_others_have_or_want(tmp_path: Path) -> None:
    odd = every(9, [None], AMOUNTS)
    columns = {"a.b": odd, "a_b": odd, "a_b_range": WORDS, "seen": TIMES, "seen_hour": WORDS, "to.day": TIMES[::-1],
               "add_module": odd, "x*": WORDS, "xy": odd, "": WORDS, "\u00e9 'q' #: -": WORDS}  # fmt: skip
    run(tmp_path, "pq", columns)


def test_types_of_parquet(tmp_path: Path) -> None:
    found = decisions(run(tmp_path, "pq", TYPED))
    assert {name for name, decision in found.items() if decision.role == "ignored"} == {
        "lists of objects", "no UTF-8", "times beyond all calendars"
    }  # fmt: skip
    assert found["objects.a"].role == "feature"
    kinds = {name: found[name].kind for name in ("binary", "booleans", "decimals", "epoch_float", "lists of bytes")}
    assert kinds == {"binary": "categorical", "booleans": "categorical", "decimals": "numeric",
                     "epoch_float": "timestamp", "lists of bytes": "list"}  # fmt: skip


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("name", LABELS)
def test_labels(name: str, suffix: str, tmp_path: Path) -> None:
    found = run(tmp_path, suffix, {"color": WORDS}, LABELS[name])
    left_out = {"some missing": Counter({"no label": ROWS // 4}), "one wrong": Counter({"label other than 0 or 1": 1})}
    assert found.left_out.reasons == left_out.get(name, Counter())


@pytest.mark.parametrize("label", [[1 if v else None for v in CLICKS], every(4, [None], CLICKS)])
@pytest.mark.parametrize("suffix", WRITERS)
def test_rows_without_a_label_may_have_one_said(suffix: str, label: list[Any], tmp_path: Path) -> None:
    found = run(tmp_path, suffix, {"color": WORDS}, label, missing_label=0)
    assert not found.left_out.reasons and not found.warnings
    assert decisions(found)["click"].role == "label"


@pytest.mark.parametrize("model", ["wide_deep", "dlrm", "dcnv2"])
@pytest.mark.parametrize("columns", [{"a": AMOUNTS, "b": WHOLE}, {"a": AMOUNTS}, {"born": TIMES[::-1], "seen": TIMES}])
def test_tables_of_numbers_alone_have_categories_for_the_model(
    columns: dict[str, list[Any]], model: str, tmp_path: Path
) -> None:
    run(tmp_path, "csv", columns, model=model)
    from rayrec.ingest.dataset import Dataset

    build_model(load_recipe(tmp_path / "recipe.yaml").model, Dataset.open(tmp_path / "dataset").schema)


def test_lines_that_cannot_be_read_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("color,click\n" + "red,1\nblue,0\ngreen\nred,0\nblue,\n" * 100)
    request = InspectRequest(path=(str(path),), label="click", output=tmp_path / "recipe.yaml")
    result = command(request, SilentProgress())
    rejected = result.details["rejected"]
    assert (rejected["rows"], rejected["share"]) == (100, 0.25)
    assert rejected["reasons"] == {"wrong column count": 100, "no label": 100}
    assert [row["line"] for row in rejected["examples"]] == [4, 9, 14]
    assert result.details["next"] is None
    assert f"{path}, line 4: wrong column count" in describe(result) and "rayrec run" not in describe(result)
    path.write_text('color,click\n"dark" red,1\n"sky" blue,0\n')
    with pytest.raises(UserError, match=r"no row can be read: 2 of 2 .*line 2: unclosed double quote"):
        inspect_table([str(path)], "click", "wide_deep", 100, "rayrec inspect")


def test_of_large_files_bad_rows_are_counted_where_the_sample_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayrec.raw.sample._WHOLE_BYTES", 2**12)
    path = tmp_path / "table.csv"
    path.write_text("color,click\n" + "red,1\nblue,0\nred,0\nblue,1\nred,perhaps\n" * 40_000)
    found = inspect_table([str(path)], "click=1", "wide_deep", 500, "rayrec inspect")
    assert not found.sample.is_whole and not found.left_out.reasons
    path.write_text("color,click\n" + "red,1\nblue,0\nred,0\nblue,1\ngreen\n" * 40_000)
    found = inspect_table([str(path)], "click", "wide_deep", 500, "rayrec inspect")
    assert 0.15 < found.left_out.share < 0.25 and not found.can_run


def test_a_layout_of_a_source_is_told(tmp_path: Path) -> None:
    """Its recipes are named before a label is missed; a table beside it has no such layout."""
    line = "\t".join(["{label}", *["3", "", "-1"] * 4, "7", *["68fd1e64", ""] * 13])
    (tmp_path / "log.tsv").write_text("".join(line.format(label=i % 2) + "\n" for i in range(400)))
    rows = (f"{i % 2}\t{i % 7}\t{WORDS[i]}\n" for i in range(400))
    (tmp_path / "other.tsv").write_text("".join(["clicked\tprice\tcolour\n", *rows]))
    told = Mock(SilentProgress())
    with pytest.raises(UserError, match="--label: name the column"):
        command(InspectRequest(path=(str(tmp_path / "log.tsv"),)), told)
    assert "source.kind 'criteo'; recipes for it: dcnv2-criteo-debug, " in told.message.call_args.args[0]
    result = command(InspectRequest(path=(str(tmp_path / "other.tsv"),), label="clicked"), SilentProgress())
    assert result.details["notes"] == []
