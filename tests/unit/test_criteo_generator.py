"""Generated Criteo rows: the layout, the stated truth against independent computations, days that drift."""

import gzip
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from rayrec.common.errors import UserError
from rayrec.common.progress import Progress, SilentProgress
from rayrec.sources.criteo import generator
from rayrec.sources.criteo.config import CATEGORICAL, LABEL, NUMERIC
from rayrec.sources.criteo.generator import PAIRS, CriteoTruth, criteo_rows
from rayrec.sources.generated_files import TRUTH_FILE, GeneratorOptions, TruthAccumulator
from rayrec.sources.synthetic import BASE_RATE, CHUNK_ROWS, Drawn, Labelled

COLUMNS = [LABEL, *NUMERIC, *CATEGORICAL]


def generate(output: Path, rows: int, progress: Progress | None = None, **options: Any) -> CriteoTruth:
    return generator.generate(output, GeneratorOptions(rows, **options), progress or SilentProgress())


def read(path: Path, columns: list[str] | None = None) -> pd.DataFrame:
    types = dict.fromkeys(CATEGORICAL, str)
    return pd.read_csv(
        path, sep="\t", names=COLUMNS, usecols=columns, dtype=types, keep_default_na=False, na_values=[""]
    )


@pytest.fixture(scope="module")
def drawn() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, true probabilities and the click model's terms of 80,000 rows."""
    source, rows = criteo_rows(seed=3), 5 * CHUNK_ROWS
    chunks = list(source.chunks(rows))
    labels = np.concatenate([c.rows.column(LABEL).to_numpy() for c in chunks])
    terms = [source.terms(source.draw(number, part)) for number, part in enumerate(np.split(np.arange(rows), 5))]
    return labels, np.concatenate([c.probability for c in chunks]), np.concatenate(terms)


def test_layout(tmp_path: Path) -> None:
    rows = CHUNK_ROWS + 1_000
    generate(tmp_path / "data", rows, seed=1)
    lines = (tmp_path / "data" / "criteo.tsv").read_text().splitlines()
    assert len(lines) == rows
    assert {line.count("\t") for line in lines} == {39}
    frame = read(tmp_path / "data" / "criteo.tsv")
    assert set(frame[LABEL]) == {0, 1}
    for column in NUMERIC:
        present = frame[column].dropna()
        assert (present == present.round()).all()
        assert present.min() >= (-2 if column == "I2" else 0)
    assert {-1, -2} < set(frame["I2"])
    for column in CATEGORICAL:
        assert pd.Series(frame[column].dropna().unique()).str.fullmatch("[0-9a-f]{8}").all()
    missing = frame.isna().mean()
    assert missing["I12"] == pytest.approx(0.76, abs=0.02)
    assert missing["C22"] == pytest.approx(0.76, abs=0.02)
    assert missing[["I2", "C1", LABEL]].tolist() == [0, 0, 0]


class Recorder:
    """Notes the progress that it is told of."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int | None]] = []
        self.rows = 0

    def stage(self, name: str, total: int | None = None) -> None:
        self.stages.append((name, total))

    def advance(self, rows: int) -> None:
        self.rows += rows


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, CriteoTruth]:
    """Return the label and two columns of 50,000 rows in three files, and their truth."""
    folder, recorder = tmp_path_factory.mktemp("days") / "data", Recorder()
    truth = generate(folder, 50_000, seed=5, days=3, progress=recorder)
    assert (recorder.stages, recorder.rows) == ([("generate", 50_000)], 50_000)
    assert truth == CriteoTruth.model_validate_json((folder / TRUTH_FILE).read_bytes())
    frames = [read(folder / file.path, [LABEL, "C2", "C9"]) for file in truth.files]
    assert [len(f) for f in frames] == [f.rows for f in truth.files] == [16_666, 16_667, 16_667]
    return pd.concat(frames), truth


def test_stated_truth_is_that_of_the_probabilities(days: tuple[pd.DataFrame, CriteoTruth]) -> None:
    frame, truth = days
    probability = np.concatenate([c.probability for c in criteo_rows(seed=5).chunks(len(frame))])
    labels = frame[LABEL].to_numpy()
    stated = [(truth, slice(None)), (truth.files[0], slice(0, 16_666)), (truth.files[2], slice(33_333, None))]
    for part, where in stated:
        label, p = labels[where], probability[where]
        assert part.positives == label.sum()
        assert part.best_auc_error < 1e-5
        assert part.best_auc == pytest.approx(roc_auc_score(label, p), abs=part.best_auc_error)
        assert part.best_log_loss == pytest.approx(log_loss(label, p), rel=1e-12)
        entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p)).mean()
        assert part.expected_log_loss == pytest.approx(entropy, rel=1e-12)
    assert truth.best_auc == pytest.approx(truth.expected_auc, abs=0.01)


def test_expected_auc_is_the_mean_over_labels() -> None:
    rng = np.random.default_rng(0)
    probability = np.sort(rng.beta(1, 3, 3_000))
    labels = rng.random((150, 3_000)) < probability
    negatives_below = np.cumsum(~labels, axis=1)
    aucs = (labels * negatives_below).sum(axis=1) / (labels.sum(axis=1) * negatives_below[:, -1])
    assert aucs[0] == pytest.approx(roc_auc_score(labels[0], probability))
    accumulator = TruthAccumulator()
    accumulator.add(probability, rng.random(3_000) < probability)
    standard_error = np.std(aucs) / np.sqrt(len(aucs))
    assert accumulator.result().expected_auc == pytest.approx(np.mean(aucs), abs=4 * standard_error)


def test_one_label_only_has_no_auc() -> None:
    accumulator = TruthAccumulator()
    accumulator.add(np.array([0.2, 0.4]), np.array([False, False]))
    assert accumulator.result().best_auc is None


def test_labels_carry_the_signal_that_the_truth_states(drawn: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    """A logistic regression on the model's terms comes close to the best AUC on rows that it has not seen."""
    labels, probability, terms = drawn
    terms = (terms - terms.mean(axis=0)) / terms.std(axis=0)
    train, test = slice(0, 60_000), slice(60_000, None)
    best = roc_auc_score(labels[test], probability[test])

    def auc(columns: slice) -> float:
        fitted = LogisticRegression(max_iter=200).fit(terms[train, columns], labels[train])
        return roc_auc_score(labels[test], fitted.decision_function(terms[test, columns]))

    assert auc(slice(None)) == pytest.approx(best, abs=0.003)
    # The pairs and the main effects both matter.
    assert auc(slice(0, -len(PAIRS))) < best - 0.01
    assert auc(slice(0, len(NUMERIC))) < best - 0.05


def test_rows_depend_on_seed_and_position_alone(tmp_path: Path) -> None:
    more, fewer = 2 * CHUNK_ROWS + 300, CHUNK_ROWS + 7
    generate(tmp_path / "more", more, seed=2)
    generate(tmp_path / "days", more, seed=2, days=4, compress=True)
    generate(tmp_path / "fewer", fewer, seed=2)
    generate(tmp_path / "other", fewer, seed=4)
    lines = (tmp_path / "more" / "criteo.tsv").read_bytes().splitlines(keepends=True)
    days = [tmp_path / "days" / f"day_{i}.gz" for i in range(4)]
    assert b"".join(gzip.decompress(day.read_bytes()) for day in days) == b"".join(lines)
    assert (tmp_path / "fewer" / "criteo.tsv").read_bytes() == b"".join(lines[:fewer])
    assert (tmp_path / "other" / "criteo.tsv").read_bytes() != b"".join(lines[:fewer])


def test_rows_are_those_of_earlier_releases(tmp_path: Path) -> None:
    generate(tmp_path / "data", 1_000)
    content = (tmp_path / "data" / "criteo.tsv").read_bytes()
    assert hashlib.sha256(content).hexdigest() == "2e6274bddddc56d5b88a68dde9dead2c37b1c2f53ac7aa1e5918911807d41c49"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": 5, "days": 6}, "days: 6"),
        ({"rows": 5, "days": 0}, "days: 0"),
        ({"rows": 5000, "days": 3000, "drift": 1.0}, "days: 3000; with drift 1 give at most 2550, or a smaller drift"),
    ],
)
def test_arguments_out_of_range_are_named(tmp_path: Path, arguments: dict, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        generate(tmp_path / "data", **arguments)
    assert list(tmp_path.iterdir()) == []


DAYS, ROWS_OF_A_DAY = 7, CHUNK_ROWS


@pytest.fixture(scope="module")
def drifting() -> list[list[Labelled]]:
    """Return the rows of each day of a drifting log."""
    return [list(criteo_rows(seed=7, day=day, drift=1.0).chunks(ROWS_OF_A_DAY)) for day in range(DAYS)]


@pytest.fixture(scope="module")
def drifting_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CriteoTruth]:
    """Return the folder of those days, and what is stated of them."""
    folder = tmp_path_factory.mktemp("drifting") / "data"
    return folder, generate(folder, DAYS * ROWS_OF_A_DAY, seed=7, days=DAYS, drift=1.0)


def test_a_day_depends_on_the_seed_its_number_and_the_drift_alone(
    tmp_path: Path, drifting: list[list[Labelled]], drifting_files: tuple[Path, CriteoTruth]
) -> None:
    folder, _ = drifting_files
    generate(tmp_path / "shorter", 2 * 1_000, seed=7, days=2, drift=1.0)
    generate(tmp_path / "steadier", 2 * 1_000, seed=7, days=2, drift=0.5)
    generate(tmp_path / "one", ROWS_OF_A_DAY, seed=7)
    files = [(folder / f"day_{day}").read_bytes() for day in range(3)]
    assert files[0] == (tmp_path / "one" / "criteo.tsv").read_bytes()
    assert len({file.splitlines()[0] for file in files}) == 3
    for day in range(2):
        assert files[day].startswith((tmp_path / "shorter" / f"day_{day}").read_bytes())
    assert not files[1].startswith((tmp_path / "steadier" / "day_1").read_bytes())
    frame = read(folder / "day_2", ["C3"])
    assert frame["C3"].fillna("").tolist() == [
        value or "" for chunk in drifting[2] for value in chunk.rows.column("C3").to_pylist()
    ]


def test_every_day_brings_values_that_no_earlier_day_had() -> None:
    large, small = ("C3", "C4", "C12", "C16", "C21", "C24"), {"C6": 24, "C9": 3, "C20": 4}
    days = [drawn_columns(day) for day in range(DAYS)]
    for column in (*large, *small):
        seen = set[str]()
        for day, columns in enumerate(days):
            values = columns[column].written[column].to_numpy(zero_copy_only=False)
            is_new = columns[column].is_new
            is_new = np.zeros(len(values), np.bool_) if is_new is None else is_new
            assert seen.isdisjoint(values[is_new])
            assert (0.002 < is_new.mean() < 0.2) == (column in large and day > 0)
            seen |= set(values) - {None}
        assert len(seen) <= small.get(column, len(seen))


def drawn_columns(day: int) -> dict[str, Drawn]:
    """Return the columns of the first rows of a day."""
    source = criteo_rows(seed=7, day=day, drift=1.0)
    drawn = source.draw(0, np.arange(CHUNK_ROWS))
    return {column.name: part for column, part in zip(source.columns, drawn, strict=True)}


def test_each_day_states_its_own_truth(
    drifting: list[list[Labelled]], drifting_files: tuple[Path, CriteoTruth]
) -> None:
    folder, truth = drifting_files
    assert [file.path for file in truth.files] == [f"day_{day}" for day in range(DAYS)]
    for file, chunks in zip(truth.files, drifting, strict=True):
        label = read(folder / file.path, [LABEL])[LABEL].to_numpy()
        probability = np.concatenate([chunk.probability for chunk in chunks])
        assert file.best_auc == pytest.approx(roc_auc_score(label, probability), abs=file.best_auc_error)
        assert file.best_log_loss == pytest.approx(log_loss(label, probability), rel=1e-12)
        present = sum(chunk.rows.column(name).is_valid().sum().as_py() for chunk in chunks for name in CATEGORICAL)
        assert file.new_values == sum(chunk.new_values for chunk in chunks) / present
        assert 0.78 < file.expected_auc < 0.82
        assert probability.mean() == pytest.approx(BASE_RATE, abs=0.01)
