"""Importance, partial dependence and the parts of a score equal what follows from their definitions."""

from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics import log_loss, roc_auc_score

from rayrec.common.errors import UserError
from rayrec.common.progress import SilentProgress
from rayrec.config.evaluate import EvaluateConfig, RankingConfig
from rayrec.config.sequences import DINSequence, MeanSequence
from rayrec.inference.examples import write_reference_rows
from rayrec.inference.explanation import Explainer, explainer_of, load_explainer
from rayrec.inference.folder.facts import REFERENCE_ROWS_FILE
from rayrec.inference.importance import (
    LabelledRows,
    MetricsOfBlocks,
    estimate,
    partial_dependence,
    permutation_importance,
    permuted_features,
    with_columns,
)
from rayrec.inference.predictor import Predictor, load_model
from rayrec.metrics.ranking import RankingMetrics
from rayrec.models.dlrm.config import DLRMConfig
from tests.builders import make_dataset, make_recipe, make_schema, with_history, write_dataset
from tests.model_folders import finish, make_model_folder, make_raw_rows, make_recommender_folder, write_table_model
from tests.table_schema import SCHEMA, WORDS

ROWS = 400


@pytest.fixture(scope="module")
def raw() -> list[dict[str, Any]]:
    """Rows of every kind of feature, with values that are missing and unlisted."""
    rng = np.random.default_rng(3)

    def words(most: int) -> list[str]:
        return [str(word) for word in rng.choice([*WORDS, "unseen"], rng.integers(0, most))]

    rows = []
    for _ in range(ROWS):
        texts = words(4)
        row = {
            "number": round(float(rng.normal(1, 3)), 3),
            "integer": int(rng.integers(0, 60)),
            "text": str(rng.choice([*WORDS, "unseen"])),
            "time": f"2024-0{rng.integers(1, 9)}-1{rng.integers(0, 9)}T{rng.integers(10, 23)}:30:00",
            "seconds": int(rng.integers(1_600_000_000, 1_700_000_000)),
            "texts": texts,
            "weights": rng.exponential(size=len(texts)).round(2).tolist(),
            "integers": rng.integers(0, 50, rng.integers(0, 4)).tolist(),
            "numbers": rng.normal(size=3).round(2).tolist(),
        }
        rows.append({name: value for name, value in row.items() if name == "weights" or rng.random() > 0.05})
    return [row if "texts" in row else {**row, "weights": None} for row in rows]


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    """A model of every kind of feature, with crosses, shared tables, vectors and weighted lists."""
    folder = tmp_path_factory.mktemp("explained") / "model"
    write_table_model(folder)
    return load_model(folder)


@pytest.fixture(scope="module")
def rows(predictor: Predictor, raw: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> LabelledRows:
    encoded = predictor.encode(predictor.columns_of(raw))
    drawn = np.random.default_rng(5).random(ROWS) < predictor.predict_encoded(encoded)
    table = pa.Table.from_batches([encoded]).append_column("label", pa.array(drawn.astype(np.float32)))
    dataset = write_dataset(tmp_path_factory.mktemp("explained") / "data", SCHEMA, {"test": table})
    return LabelledRows.read(dataset, "test", ROWS)


def shuffled(rows: LabelledRows, name: str) -> pa.Array:
    order = np.random.default_rng(7).permutation(len(rows))
    return rows.features.column(name).take(pa.array(order))


def test_a_cross_follows_its_inputs(predictor: Predictor, raw: list[dict[str, Any]], rows: LabelledRows) -> None:
    texts = [{**row, "text": raw[-1 - place].get("text")} for place, row in enumerate(raw)]
    expected = predictor.encode(predictor.columns_of(texts))
    changed = with_columns(SCHEMA, rows.features, {"unlisted": expected.column("unlisted")})
    assert changed.column("cross").equals(expected.column("cross"))
    assert not changed.column("cross").equals(rows.features.column("cross"))
    assert changed.column("hashed").equals(rows.features.column("hashed")), "reads the same text, and stays"
    own = shuffled(rows, "cross")
    changed = with_columns(SCHEMA, rows.features, {"unlisted": expected.column("unlisted"), "cross": own})
    assert changed.column("cross").equals(own)


def test_importance_is_what_metrics_lose(predictor: Predictor, rows: LabelledRows) -> None:
    permuted = {name: (name,) for name in ("n0", "vector", "listed", "unlisted", "cross", "tags", "weighed")}
    permuted["both"] = ("listed", "tags")
    found = permutation_importance(predictor, rows, permuted, 2, SilentProgress())
    labels = rows.labels.numpy()

    def metrics(features: pa.RecordBatch) -> NDArray[np.float64]:
        scores = predictor.predict_encoded(features)
        return np.array([roc_auc_score(labels, scores), log_loss(labels, scores.astype(np.float64))])

    before = metrics(rows.features)
    assert list(found.metrics) == ["auc", "log_loss"]
    np.testing.assert_allclose(list(found.metrics.values()), before, rtol=1e-6)
    expected = {}
    for name, features in permuted.items():
        losses = []
        for seed in range(10):
            order = pa.array(np.random.default_rng(seed).permutation(ROWS))
            columns = {feature: rows.features.column(feature).take(order) for feature in features}
            losses.append((before - metrics(with_columns(SCHEMA, rows.features, columns))) * [1, -1])
        expected[name] = np.mean(losses, axis=0), np.std(losses, axis=0)
    for name, (mean, deviation) in expected.items():
        values = np.array([found.worse_by[name][metric].value for metric in ("auc", "log_loss")])
        assert (np.abs(values - mean) < 4 * deviation / np.sqrt(2)).all(), name
    alone = permutation_importance(predictor, rows, {"tags": ("tags",)}, 2, SilentProgress())
    assert alone.worse_by["tags"] == found.worse_by["tags"], "whatever else is measured"


def test_a_feature_without_values_is_not_important(predictor: Predictor, rows: LabelledRows) -> None:
    """Its permutation changes nothing, not even by rounding."""
    one = with_columns(SCHEMA, rows.features, {"listed": pa.array(np.ones(ROWS, np.int32))})
    same = LabelledRows(one, rows.labels, rows.weights, None, None)
    (change,) = permutation_importance(predictor, same, {"a": ("listed",)}, 2, SilentProgress()).worse_by.values()
    assert {(found.value, found.lower, found.upper) for found in change.values()} == {(0.0, 0.0, 0.0)}


def test_ranking_metrics_are_those_of_whole_groups(tmp_path: Path) -> None:
    make_model_folder(tmp_path / "model")
    ranking = RankingConfig(k=(3,), metrics=("ndcg", "map"))
    predictor = load_model(tmp_path / "model")
    predictor.recipe = make_recipe(evaluate=EvaluateConfig(ranking=ranking))
    dataset = make_dataset(tmp_path / "data", {"test": 700}, cardinalities=(16, 34, 47, 60), group_sizes=(3, 5, 9))
    rows = LabelledRows.read(dataset, "test", 1_000)
    found = permutation_importance(predictor, rows, {"C1": ("C1",)}, 1, SilentProgress())
    assert list(found.metrics) == ["auc", "log_loss", "ndcg@3", "map@3"]
    direct = RankingMetrics(ranking)
    assert rows.groups is not None
    logits = torch.from_numpy(predictor.logits_encoded(rows.features))
    direct.update(logits, rows.labels, rows.groups, rows.weights)
    for name, value in direct.compute().items():
        assert name == "groups" or found.metrics[name] == pytest.approx(value, abs=1e-12)
    ends = np.flatnonzero(np.diff(rows.groups.numpy())) + 1
    assert {block.start for block in rows.blocks} <= {0, *ends.tolist()}
    assert [block.stop for block in rows.blocks] == [*(block.start for block in rows.blocks[1:]), len(rows)]


def test_all_items_are_not_ranked_anew(tmp_path: Path) -> None:
    make_recommender_folder(tmp_path / "model")
    predictor = load_model(tmp_path / "model")
    predictor.recipe = make_recipe(evaluate=EvaluateConfig(ranking=RankingConfig(candidates="all")))
    rng = np.random.default_rng(0)
    users = np.sort(rng.integers(0, 31, 300))
    columns = {"user": users.astype(np.int32), "item": rng.integers(0, 51, 300).astype(np.int32)}
    table = pa.table({**columns, "label": rng.integers(0, 2, 300).astype(np.float32)})
    rows = LabelledRows.read(write_dataset(tmp_path / "data", predictor.schema, {"test": table}), "test", 300)
    assert rows.items is not None and rows.items.tolist() == columns["item"].tolist()
    assert MetricsOfBlocks(rows, predictor.recipe.evaluate).names == ("auc", "log_loss")


def test_intervals_hold_the_truth() -> None:
    """Of 200 samples of rows with a known AUC, about 95 % of the intervals have it inside."""
    rng = np.random.default_rng(11)
    truth, inside = 0.76024993, 0  # that two normal numbers, a unit apart in the mean, stand in this order
    for _ in range(200):
        labels = rng.random(600) < 0.3
        logits = (rng.standard_normal(600) + labels).astype(np.float32)
        rows = LabelledRows(
            pa.RecordBatch.from_pydict({"x": logits}), torch.from_numpy(labels).float(), torch.ones(600), None, None
        )
        values = MetricsOfBlocks(rows, EvaluateConfig())(logits)[:, 0]
        found = estimate(values[0], values[1:])
        assert found.lower is not None and found.upper is not None
        inside += found.lower < truth < found.upper
    assert 0.9 < inside / 200 < 0.99


def test_rows_of_a_dataset(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "data", {"test": 3_000}, group=True, weight=True)
    rows = LabelledRows.read(dataset, "test", 500)
    assert 384 <= len(rows) <= 512 and rows.groups is None, "where groups end is not known, and some rows are left out"
    assert LabelledRows.read(dataset, "test", 3_000).groups is not None
    drawn = LabelledRows.read(dataset, "test", 3_000).drawn(100)
    assert (len(drawn), drawn.features.num_rows, len(drawn.weights)) == (100, 100, 100)
    scores = drawn.features.column("I1").to_numpy()
    assert drawn.mean(scores).value == pytest.approx(np.average(scores, weights=drawn.weights.numpy()))
    few = LabelledRows.read(dataset, "test", 3_000).drawn(15)
    assert (few.mean(few.features.column("I1").to_numpy()).lower, len(few.blocks)) == (None, 0)
    with pytest.raises(UserError, match="no rows in split 'validation'; it has test"):
        LabelledRows.read(dataset, "validation", 10)
    table = pq.read_table(dataset.folder / "test" / "part-00000.parquet")
    same = table.set_column(table.column_names.index("label"), "label", pa.array(np.ones(len(table), np.float32)))
    with pytest.raises(UserError, match="all 1,000 rows taken from split 'test' have the same label; take more"):
        LabelledRows.read(write_dataset(tmp_path / "ones", dataset.schema, {"test": same}), "test", 5_000)


def test_partial_dependence_is_the_mean_of_changed_rows(
    predictor: Predictor, raw: list[dict[str, Any]], rows: LabelledRows
) -> None:
    """Raw rows that are given the raw value, and encoded, have the same mean score."""
    number, listed, tags = partial_dependence(predictor, rows, ["n5", "city", "tags"], SilentProgress())
    assert (number.is_number, listed.is_number, tags.is_number) == (True, False, False)
    for point in listed.points:
        city = {"missing or not listed": None}.get(point.name, point.name)
        changed = [{**row, "users_city": city, "text": row.get("text")} for row in raw]
        if city is not None:
            assert point.score.value == pytest.approx(float(predictor.predict(changed).mean()), abs=1e-6)
    assert sum(point.share for point in listed.points) == pytest.approx(1.0)
    for point in tags.points:
        column = pa.array([[int(point.encoded)]] * ROWS, pa.list_(pa.int32()))
        expected = predictor.predict_encoded(with_columns(SCHEMA, rows.features, {"tags": column})).mean()
        assert point.score.value == pytest.approx(float(expected), abs=1e-6)
    shares = [point.share for point in number.points]
    assert len(shares) == 20 and shares == sorted(shares) and shares[-1] == 1.0
    for point in number.points[::6]:
        column = pa.array(np.full(ROWS, point.encoded, np.float32))
        expected = predictor.predict_encoded(with_columns(SCHEMA, rows.features, {"n5": column})).mean()
        assert point.score.value == pytest.approx(float(expected), abs=1e-6)


def exact_parts(explainer: Explainer, reference: pa.RecordBatch, row: pa.RecordBatch) -> dict[str, float]:
    """Shapley values from the scores of every set of features (Shapley 1953)."""
    names, schema = list(explainer.parts), explainer.predictor.schema
    values = {}
    for number in range(2 ** len(names)):
        taken = {name for place, name in enumerate(names) if number >> place & 1}
        columns = {name: pa.concat_arrays([row.column(name)] * reference.num_rows) for name in taken}
        logits = explainer.predictor.logits_encoded(with_columns(schema, reference, columns))
        values[frozenset(taken)] = float(logits.astype(np.float64).mean())
    count = len(names)
    return {
        name: sum(
            (values[taken | {name}] - value) / (count * comb(count - 1, len(taken)))
            for taken, value in values.items()
            if name not in taken
        )
        for name in names
    }


@pytest.mark.parametrize(("model", "error"), [("wide", 1e-6), ("dlrm", 0.15), ("dcnv2", 0.15), ("wide_deep", 0.15)])
def test_parts_are_shapley_values(tmp_path: Path, model: str, error: float) -> None:
    """Exactly for a sum of features, and else as near as 128 orders come."""
    make_model_folder(tmp_path / "model", model=model, numeric=2, categorical=3, multi_hot=1)
    predictor = load_model(tmp_path / "model")
    encoded = predictor.encode(predictor.columns_of(make_raw_rows(predictor.schema, 70)))
    write_reference_rows(predictor, encoded.slice(0, 64))
    finish(predictor.folder)
    explainer = load_explainer(tmp_path / "model")
    for place in range(64, 70):
        row = encoded.slice(place, 1)
        *_, found = explainer.explaining(row)
        assert found is not None
        expected = exact_parts(explainer, encoded.slice(0, 64), row)
        assert list(found.parts) == list(expected)
        scale = max(map(abs, expected.values()))
        np.testing.assert_allclose(list(found.parts.values()), list(expected.values()), rtol=0, atol=error * scale)
        assert found.base + sum(found.parts.values()) == pytest.approx(found.logit, abs=1e-9)
        assert found.score == pytest.approx(float(predictor.predict_encoded(row)[0]), abs=1e-6)


def test_two_features_get_exact_parts_from_any_model(tmp_path: Path) -> None:
    make_recommender_folder(tmp_path / "model")
    explainer = load_explainer(tmp_path / "model")
    reference = pq.read_table(tmp_path / "model" / REFERENCE_ROWS_FILE).to_batches()[0]
    row = explainer.predictor.encode(explainer.predictor.columns_of([{"user": "u-3", "item": "i-9"}]))
    *_, found = explainer.explaining(row)
    assert found is not None and found.parts == pytest.approx(exact_parts(explainer, reference, row), abs=1e-6)


def test_parts_add_up_with_every_kind_of_feature(predictor: Predictor, raw: list[dict[str, Any]]) -> None:
    explainer = explainer_of(predictor)
    assert explainer is not None
    assert "cross" not in explainer.parts and {"vector", "weighed", "city"} <= set(explainer.parts)
    found = explainer.explain(raw[:5])
    scores = predictor.predict(raw[:5]).astype(np.float64)
    for one, score in zip(found, scores, strict=True):
        assert one.base == explainer.base
        assert one.base + sum(one.parts.values()) == pytest.approx(one.logit, abs=1e-9)
        assert one.logit == pytest.approx(np.log(score / (1 - score)), abs=1e-4)
    assert explainer.explain(raw[4:5]) == [found[4]], "whatever rows are beside it"


def test_a_score_beyond_numbers_has_no_parts(tmp_path: Path) -> None:
    make_model_folder(tmp_path / "model")
    table = pq.read_table(tmp_path / "model" / REFERENCE_ROWS_FILE)
    huge = table.set_column(0, table.schema.field(0), pa.array(np.full(len(table), 3e38, np.float32)))
    explainer = load_explainer(tmp_path / "model")
    steps = explainer.explaining(huge.combine_chunks().to_batches()[0].slice(0, 1), 3)
    with pytest.raises(UserError, match="row 3: its values are so large that the score is not a number"):
        list(steps)


BAD_FILES = {
    "absent": (None, r"has no reference_rows.parquet; export the model from a dataset with rows"),
    "damaged": (b"PAR1", r"reference_rows.parquet: damaged .*; export the model again"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_reference_rows_that_are_not_there(tmp_path: Path, case: str) -> None:
    make_model_folder(tmp_path / "model")
    content, message = BAD_FILES[case]
    path = tmp_path / "model" / REFERENCE_ROWS_FILE
    path.unlink() if content is None else path.write_bytes(content)
    finish(tmp_path / "model")
    with pytest.raises(UserError, match=message):
        load_explainer(tmp_path / "model")


def test_reference_rows_of_another_model(tmp_path: Path) -> None:
    make_model_folder(tmp_path / "model")
    make_model_folder(tmp_path / "other", numeric=2)
    content = (tmp_path / "other" / REFERENCE_ROWS_FILE).read_bytes()
    (tmp_path / "model" / REFERENCE_ROWS_FILE).write_bytes(content)
    finish(tmp_path / "model")
    with pytest.raises(UserError, match=r"its columns are not those of schema\.json; export the model again"):
        load_explainer(tmp_path / "model")


def test_reference_rows_are_drawn_from_all_over(tmp_path: Path) -> None:
    make_model_folder(tmp_path / "model")
    predictor = load_model(tmp_path / "model")
    rows = predictor.encode(predictor.columns_of(make_raw_rows(predictor.schema, 6_400)))
    numbered = rows.set_column(0, rows.schema.field(0), pa.array(np.arange(6_400, dtype=np.float32)))
    write_reference_rows(predictor, numbered)
    places = pq.read_table(tmp_path / "model" / REFERENCE_ROWS_FILE)[0].to_numpy()
    assert len(set(places)) == 64 and (np.diff(places) > 0).all()
    assert np.bincount((places // 1_600).astype(int)).min() >= 8


def test_lists_of_a_history_move_together() -> None:
    """Their values belong to each other; what is pooled, and a history of one list, moves by itself."""
    lists = make_schema(1, 2, 3, cardinalities=(11, 23), shared={"M1": "C1", "M2": "C2"})
    schema = with_history(with_history(lists, "seen", {"M1": "C1", "M2": "C2"}), "other", {"M3": "C1"})
    read = DLRMConfig(sequences={"seen": DINSequence(), "other": MeanSequence()})
    alone = {name: (name,) for name in ("I1", "C1", "C2", "M3")}
    assert permuted_features(read, schema) == alone | {"M1 + M2": ("M1", "M2")}
    assert permuted_features(DLRMConfig(), schema) == alone | {"M1": ("M1",), "M2": ("M2",)}
