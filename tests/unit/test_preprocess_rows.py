"""Raw Criteo files -> dataset folder, against independent computations."""

import gzip
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayrec.features.vocabulary import content_hash
from rayrec.ingest.dataset import Dataset
from rayrec.preprocessing import extract, segments
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.sources.criteo.config import CriteoSourceConfig
from rayrec.sources.registry import preprocessing
from tests.builders import make_recipe

NUMERIC = [f"I{i}" for i in range(1, 14)]
CATEGORICAL = [f"C{i}" for i in range(1, 27)]
COLUMNS = ["label", *NUMERIC, *CATEGORICAL]
Inputs = Mapping[str | None, Sequence[str]]
Run = Callable[..., Dataset]
AS_THEY_ARE = [{"columns": "I*", "kind": "numeric"}, {"columns": "C*", "kind": "categorical"}]
"""Rules without logarithms."""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Preprocess into a new folder."""

    def call(inputs: Inputs, name: str = "dataset", rules: Any = None, **config: Any) -> Dataset:
        source = CriteoSourceConfig() if rules is None else CriteoSourceConfig(features=rules)
        recipe = make_recipe(source=source, preprocess={"kind": "rows", **config})
        preprocessing(recipe, inputs, tmp_path / name).run(EmbeddedEngine(2))
        return Dataset.open(tmp_path / name)

    return call


@pytest.fixture
def real(shared_data: Path) -> Inputs:
    folder = shared_data / "criteo-kaggle-8k"
    return {"train": [str(folder / "train.tsv.gz")], "test": [str(folder / "dev.tsv")]}


# --- an independent computation of the same rules, in pandas


def read_text(path: str | Path) -> pd.DataFrame:
    return pd.read_csv(path, sep="\t", header=None, names=COLUMNS, dtype=str, keep_default_na=False, na_values=[""])


def vocabulary_by_pandas(values: pd.Series, limit: int) -> dict[str, int]:
    counts = values.dropna().value_counts()
    counts = counts[counts >= limit]
    ranked = sorted(counts.items(), key=lambda item: (-item[1], str(item[0]).encode()))
    return {str(value): place for place, (value, _) in enumerate(ranked, start=1)}


def encode_by_pandas(
    frame: pd.DataFrame,
    fitted_on: pd.DataFrame,
    limit: Callable[[str], int],
    log: bool = True,
    table_size: int | None = None,
) -> pd.DataFrame:
    result = {"label": frame["label"].astype(np.float32)}
    for name in NUMERIC:
        x = frame[name].astype(np.float64)
        if log:
            x = np.log((x + 3.0).where(x + 3.0 > 0))
        result[name] = x.fillna(0.0).astype(np.float32)
    for name in CATEGORICAL:
        ids = vocabulary_by_pandas(fitted_on[name], limit(name))
        column = frame[name].map(ids).fillna(0).astype(np.int64)
        if table_size is not None and len(ids) + 1 > table_size:
            column = column.where(column == 0, 1 + (column - 1) % (table_size - 1))
        result[name] = column.astype(np.int32)
    return pd.DataFrame(result)


def read_split(dataset: Dataset, split: str) -> pd.DataFrame:
    parts = dataset.manifest.splits[split].parts
    return pa.concat_tables([pq.read_table(dataset.folder / part.path) for part in parts]).to_pandas()


def by_row(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sort_values(list(frame.columns), kind="stable").reset_index(drop=True)


RULES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # config; arguments of the pandas computation
    "one limit": ({"frequency_limit": 3}, {"limit": lambda _: 3}),
    "limits by column, capped, no log": (
        {
            "frequency_limit": 2,
            "rules": [
                {"columns": "I*", "kind": "numeric"},
                {"columns": "C3", "kind": "categorical", "min_count": 1},
                {"columns": "C20", "kind": "categorical", "min_count": 1000},
                {"columns": "C*", "kind": "categorical"},
            ],
            "max_table_size": 100,
        },
        {"limit": lambda c: {"C3": 1, "C20": 1000}.get(c, 2), "log": False, "table_size": 100},
    ),
}


@pytest.mark.parametrize("case", RULES)
def test_real_rows_equal_pandas_cell_by_cell(case: str, run: Run, real: Inputs) -> None:
    config, arguments = RULES[case]
    dataset = run(real, split={"kind": "files"}, order="input", **config)

    raw = {split: read_text(paths[0]) for split, paths in real.items()}
    assert {split: len(frame) for split, frame in raw.items()} == {"train": 7200, "test": 409}
    for split, frame in raw.items():
        expected = encode_by_pandas(frame, raw["train"], **arguments)
        found = read_split(dataset, split)[expected.columns]
        pd.testing.assert_frame_equal(found, expected, check_exact=True)
        assert dataset.manifest.splits[split].positives == expected["label"].sum()
        types = pq.read_schema(dataset.folder / dataset.manifest.splits[split].parts[0].path).types
        assert types == [pa.float32()] * 14 + [pa.int32()] * 26
    sizes = {f.name: f.cardinality for f in dataset.schema.categorical}
    assert all(found[name].max() < sizes[name] for name in CATEGORICAL)
    for feature in dataset.schema.categorical:
        listed = list(vocabulary_by_pandas(raw["train"][feature.name], arguments["limit"](feature.name)))
        assert feature.transforms[0].content_hash == f"{content_hash(pa.array(listed, pa.string()), 1):016x}"
    assert dataset.manifest.rejected == {}
    assert not list(dataset.folder.glob(".*"))


def test_total_random_moves_the_rows_of_train_alone(run: Run, real: Inputs) -> None:
    shuffled = run(real, "shuffled", split={"kind": "files"}, seed=3)
    ordered = run(real, "ordered", split={"kind": "files"}, order="input")
    pd.testing.assert_frame_equal(read_split(shuffled, "test"), read_split(ordered, "test"))
    a, b = read_split(shuffled, "train"), read_split(ordered, "train")
    pd.testing.assert_frame_equal(by_row(a), by_row(b))
    assert (a["label"].to_numpy() != b["label"].to_numpy()).mean() > 0.2


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """6,000 rows whose categories have long tails, one value without ASCII among them."""
    rng = np.random.default_rng(7)
    columns: dict[str, Any] = {"label": rng.integers(0, 2, 6_000).astype(str)}
    for name in NUMERIC:
        numbers = rng.integers(-3, 50, 6_000).astype(str).astype(object)
        columns[name] = np.where(rng.random(6_000) < 0.2, "", numbers)
    for index, name in enumerate(CATEGORICAL):
        ranks = np.minimum(rng.pareto(0.4, 6_000), 10_000).astype(int)
        values = np.array([f"{rank * 2654435761 % 2**32:08x}" if rank else "zw\u00f6lf" for rank in ranks], object)
        columns[name] = np.where(rng.random(6_000) < 0.05 * (index % 4), "", values)
    path = tmp_path_factory.mktemp("skewed") / "rows.tsv"
    pd.DataFrame(columns).to_csv(path, sep="\t", header=False, index=False)
    return path


def contents(dataset: Dataset) -> dict[str, Any]:
    """Return all that a reader of the dataset can see, but for the settings that it was made with."""
    files = {p: p.read_bytes() for p in dataset.folder.rglob("*.parquet")}
    return {
        "files": {p.relative_to(dataset.folder).as_posix(): data for p, data in files.items()},
        "schema": dataset.schema,
        "splits": dataset.manifest.splits,
    }


def test_same_files_whatever_the_tasks(run: Run, skewed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"frequency_limit": 2, "layout": {"rows_per_row_group": 128}, "split": {"kind": "hash", "test": 0.2}}
    inputs = {None: [str(skewed)]}
    usual = run(inputs, "usual", **config)
    monkeypatch.setattr(segments, "SEGMENT_ROWS", 700)
    monkeypatch.setattr(extract, "_LEAST_CHUNK_BYTES", 100_000)
    other = run(inputs, "other", **config)
    assert len(usual.manifest.splits["train"].parts) == 5
    for part in usual.manifest.splits["train"].parts[:-1]:
        assert part.rows == 8 * 128 and set(part.row_groups) == {128}
    assert contents(other) == contents(usual)


def line(day: int, number: int) -> str:
    """Return a row that says where it comes from: I1 the day, I2 its line."""
    return "\t".join([str(number % 2), str(day), str(number), *["5"] * 11, *[f"{number % 7:08x}"] * 26])


BAD_LINES = {
    "wrong column count": b"1\t2\t3",
    "label other than 0 or 1": b"2" + line(0, 0).encode()[1:],
    "not a number": line(0, 0).replace("\t5\t", "\t5,5\t", 1).encode(),
    "invalid UTF-8": line(0, 0).encode()[:-1] + b"\xff",
}


@pytest.fixture
def days(tmp_path: Path) -> Path:
    """Terabyte layout: 4 days of 200, 201, 202 and 203 lines, day_2 gzip; day_3 has bad lines in both of its halves."""
    folder = tmp_path / "days"
    folder.mkdir()
    for day in range(4):
        rows = [line(day, number).encode() for number in range(1, 201 + day)]
        if day == 3:
            for number, bad in zip([5, 50, 101, 103], BAD_LINES.values(), strict=True):
                rows[number - 1] = bad
        text = b"\r\n".join(rows) if day == 1 else b"\n".join(rows) + b"\n"
        (folder / f"day_{day}").write_bytes(text)
    (folder / "day_2.gz").write_bytes(gzip.compress((folder / "day_2").read_bytes()))
    (folder / "day_2").unlink()
    return folder


def origins(dataset: Dataset, split: str) -> list[tuple[int, int]]:
    frame = read_split(dataset, split)
    return [(int(day), int(number)) for day, number in zip(frame["I1"], frame["I2"], strict=True)]


BAD_NUMBERS = {5, 50, 101, 103}


def test_days(run: Run, days: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract, "_LEAST_CHUNK_BYTES", 5_000)
    dataset = run(
        {None: [str(days)]},
        split={"kind": "day", "held_out_day": 3},
        order="day_random",
        rules=AS_THEY_ARE,
        max_rejected_fraction=0.1,
    )
    # 203 lines, bad ones counted: the first 102 are test.
    assert origins(dataset, "test") == [(3, n) for n in range(1, 103) if n not in BAD_NUMBERS]
    assert origins(dataset, "validation") == [(3, n) for n in range(103, 204) if n not in BAD_NUMBERS]
    train = origins(dataset, "train")
    expected = [(day, n) for day in range(3) for n in range(1, 201 + day)]
    assert [day for day, _ in train] == [day for day, _ in expected]
    assert train != expected and sorted(train) == expected

    rejected = pq.read_table(dataset.folder / "rejected").to_pylist()
    assert [(row["file"], row["line"], row["reason"]) for row in rejected] == [
        (str(days / "day_3"), number, reason) for number, reason in zip(sorted(BAD_NUMBERS), BAD_LINES, strict=True)
    ]
    assert [row["text"] for row in rejected] == [b.decode("utf-8", "backslashreplace") for b in BAD_LINES.values()]
    assert dataset.manifest.rejected == dict.fromkeys(BAD_LINES, 1)
    assert [Path(s.path).name for s in dataset.manifest.sources] == ["day_0", "day_1", "day_2.gz", "day_3"]


def test_fractions_in_the_order_of_the_files(run: Run, days: Path) -> None:
    dataset = run(
        {None: [str(days / "day_1"), str(days / "day_0")]},
        split={"kind": "fraction", "validation": 0.1, "test": 0.2},
        order="input",
        rules=AS_THEY_ARE,
    )
    # Days tell the order, whatever that of the command line.
    expected = [(0, n) for n in range(1, 201)] + [(1, n) for n in range(1, 202)]
    assert origins(dataset, "train") == expected[:281]
    assert origins(dataset, "validation") == expected[281:321]
    assert origins(dataset, "test") == expected[321:]


def test_hash_puts_a_row_into_the_same_split_whatever_the_files(run: Run, days: Path) -> None:
    config = {"split": {"kind": "hash", "validation": 0.2, "test": 0.3}, "rules": AS_THEY_ARE, "order": "input"}
    both = run({None: [str(days / "day_0"), str(days / "day_1")]}, "both", **config)
    alone = run({None: [str(days / "day_1")]}, "alone", **config)
    reseeded = run({None: [str(days / "day_1")]}, "reseeded", seed=1, **config)
    for split, share in {"train": 0.5, "validation": 0.2, "test": 0.3}.items():
        rows = origins(both, split)
        assert [row for row in rows if row[0] == 1] == origins(alone, split)
        assert origins(reseeded, split) != origins(alone, split)
        assert abs(len(rows) / 401 - share) < 0.08


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_long_gzip_gives_several_files_and_the_same_dataset(
    run: Run, skewed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / f"{skewed.name}.gz"
    packed.write_bytes(gzip.compress(skewed.read_bytes()))
    config = {"split": {"kind": "fraction", "test": 0.2}, "layout": {"rows_per_row_group": 128}}
    plain = run({None: [str(skewed)]}, "plain", **config)
    monkeypatch.setattr(extract, "_ROWS_PER_FILE", 1_000)
    cut = run({None: [str(packed)]}, "cut", **config)
    assert contents(cut) == contents(plain)


def test_two_rows(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, "rows.tsv", f"{line(0, 1)}\n{line(0, 2)}")
    dataset = run({None: [str(path)]}, split={"kind": "fraction", "test": 0.0}, frequency_limit=0)
    assert {name: split.rows for name, split in dataset.manifest.splits.items()} == {"train": 2}
