"""The first rows of a split, or of raw files, give what a split or a file with these rows alone gives."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from jobs.evaluate import EvaluateRequest
from jobs.evaluate import run as evaluate
from jobs.predict import PredictRequest
from jobs.predict import run as predict
from jobs.run import RunRequest
from jobs.train import TrainRequest
from jobs.train import run as train
from rayrec.common.errors import ConfigError
from rayrec.common.progress import SilentProgress
from rayrec.config.train import IngestConfig, NegativesConfig, TrainConfig
from rayrec.inference.batch import prediction
from rayrec.inference.predictor import load_model
from rayrec.ingest.batches import InMemorySplit, ResidentSplit
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.loader import open_batches
from rayrec.recipes import dump_recipe
from rayrec.training.loop.splits import SplitReader
from rayrec.training.parallel.ranks import RankContext
from tests.builders import make_dataset, make_rows, make_schema, write_dataset
from tests.model_folders import make_model_folder, make_raw_rows
from tests.training_runs import recipe, weights_of
from tests.unit.test_sampled_loader import SCHEMA as INTERACTIONS

LAYOUT: dict[str, Any] = {"rows_per_part": 70, "rows_per_row_group": 20}
"""Parts of row groups of 20, 20, 20 and 10 rows."""
SCHEMA = make_schema(numeric=2, categorical=2, multi_hot=2, weighted=("M2",), group=True, weight=True)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return make_rows(SCHEMA, 303, 4)


def _written(folder: Path, rows: pa.Table, split: str = "train") -> Dataset:
    return write_dataset(folder, SCHEMA, {split: rows}, **LAYOUT)


def _tensors(dataset: Dataset, way: str, **options: Any) -> list[torch.Tensor]:
    config, store = IngestConfig(read_streams=3, in_memory=way != "streamed"), None
    if way == "on the device":
        store = ResidentSplit(InMemorySplit.read(dataset, "train"), dataset.schema, torch.device("cpu"))
    with open_batches(dataset, "train", config, store=store, global_batch_size=16, drop_last=False, **options) as found:
        return [
            tensor
            for batch in found
            for tensor in (batch.dense, batch.label, batch.weight, batch.group, *batch.sparse.to_dict())
            if isinstance(tensor, torch.Tensor)
        ] + [ids for batch in found for ids in (batch.sparse.values(), batch.sparse.lengths(), batch.sparse.weights())]


@pytest.mark.parametrize("way", ["streamed", "in memory", "on the device"])
@pytest.mark.parametrize("most", [1, 20, 57, 70, 93, 280, 302, 303, 5_000])
def test_batches(tmp_path: Path, table: pa.Table, way: str, most: int) -> None:
    whole, part = _written(tmp_path / "whole", table), _written(tmp_path / "part", table.slice(0, most))
    cut = whole.head("train", most)
    assert cut.split("train").rows == part.split("train").rows == min(most, 303)
    for options in ({"shuffle": "none"}, {"shuffle": "rows", "seed": 5, "epoch": 2, "rank": 1, "world_size": 2}):
        found, expected = _tensors(cut, way, **options), _tensors(part, way, **options)
        assert len(found) == len(expected) > 0
        assert all(one.equal(other) for one, other in zip(found, expected, strict=True))


def test_whole_groups_end_with_the_part(tmp_path: Path) -> None:
    """Of the group that the end of the part cuts, its first rows are there."""
    sizes: dict[str, Any] = {"group_sizes": (7, 2, 5, 12, 1), "rows_per_row_group": 40}
    dataset = make_dataset(tmp_path / "data", 400, **sizes).head("train", 131)
    every = pq.read_table(tmp_path / "data/train")
    for in_memory in (False, True):
        config = IngestConfig(in_memory=in_memory)
        options: dict[str, Any] = {"global_batch_size": 32, "drop_last": False, "whole_groups": True, "seed": 3}
        rows: list[tuple[int, float]] = []
        with open_batches(dataset, "train", config, **options) as batches:
            for batch in batches:
                assert batch.group is not None
                filled = batch.weight > 0
                rows += zip(batch.group[filled].tolist(), batch.dense[filled, 0].tolist(), strict=True)
        first = every.slice(0, 131)
        assert sorted(rows) == sorted(zip(first["group"].to_pylist(), first["I1"].to_pylist(), strict=True))


def test_samples_of_the_first_positives_know_them_all(tmp_path: Path) -> None:
    """No negative is a positive of the rows that are left out."""
    pairs = [(user, item) for item in range(1, 16) for user in range(1, 5)]
    users, items = zip(*pairs, strict=True)
    rows = pa.table({
        "item": pa.array(items, pa.int32()), "user": pa.array(users, pa.int32()),
        "label": pa.array([1.0] * len(pairs), pa.float32()), "group": pa.array(users, pa.int64()),
    })  # fmt: skip
    dataset = write_dataset(tmp_path / "data", INTERACTIONS, {"train": rows}, rows_per_row_group=7)
    place = RankContext(rank=0, world_size=1, local_world_size=1, device=torch.device("cpu"))
    reader = SplitReader(dataset, IngestConfig(in_memory=True), place, NegativesConfig(per_positive=2), train_rows=18)
    with reader.open("train", global_batch_size=9, drop_last=False, seed=1) as batches:
        samples = [row for batch in batches for row in zip(*(
            column.tolist() for column in (batch.sparse["user"].values(), batch.sparse["item"].values(), batch.label)
        ), strict=True)]  # fmt: skip
    positives = [(user, item) for user, item, label in samples if label == 1.0]
    assert sorted(positives) == sorted(pairs[:18])
    assert {item for _, item, label in samples if label == 0.0} <= set(range(16, 21)) and len(samples) == 54


@pytest.mark.parametrize(("rows", "samples"), [(None, 100), (64, 64), (100, 100), (101, 100)])
def test_an_epoch_of_a_part(rows: int | None, samples: int) -> None:
    assert TrainConfig(rows=rows).samples_per_epoch(100) == samples


def test_training_and_evaluation(tmp_path: Path) -> None:
    splits = {"train": 500, "validation": 90, "test": 90}
    whole = make_dataset(tmp_path / "whole", splits, rows_per_part=200, rows_per_row_group=64)
    tables = {name: pq.read_table(tmp_path / "whole" / name) for name in splits}
    first = {**tables, "train": tables["train"].slice(0, 333), "test": tables["test"].slice(0, 41)}
    write_dataset(tmp_path / "part", whole.schema, first, rows_per_part=200, rows_per_row_group=64)
    trained = recipe(epochs=2, rows=333, evaluations_per_epoch=1)
    (tmp_path / "of_part.yaml").write_text(dump_recipe(trained))
    (tmp_path / "of_all.yaml").write_text(dump_recipe(recipe(epochs=2, evaluations_per_epoch=1)))

    def of(name: str, data: str) -> Any:
        request = TrainRequest(recipe=str(tmp_path / name), data=tmp_path / data, output=tmp_path / f"run-{data}")
        return train(request, SilentProgress())

    found, expected = of("of_part.yaml", "whole"), of("of_all.yaml", "part")
    assert found.rows == expected.rows == 2 * (333 - 333 % 64)
    assert found.metrics["validation"] == expected.metrics["validation"]
    assert found.details["part"] == {"rows": 333, "of": 500} and "part" not in expected.details
    assert found.details["notes"] == ["only the first 333 of 500 rows of split 'train' were used"]
    assert found.details["evaluation_rows_per_second"] > 0
    ours, theirs = (weights_of(tmp_path / f"run-{data}", 10) for data in ("whole", "part"))
    assert all(value.equal(theirs[name]) for name, value in ours.items())

    request = TrainRequest(
        recipe=str(tmp_path / "of_all.yaml"), data=tmp_path / "whole", output=tmp_path / "run-whole", resume=True
    )
    with pytest.raises(ConfigError, match=r"--resume cannot change train\.rows from 333 to None; set it back"):
        train(request, SilentProgress())

    one = evaluate(EvaluateRequest(source=tmp_path / "run-part", data=tmp_path / "part"), SilentProgress())
    cut = EvaluateRequest(source=tmp_path / "run-part", data=tmp_path / "whole", rows=41)
    other = evaluate(cut, SilentProgress())
    assert other.metrics == one.metrics and other.rows == one.rows == 41
    assert other.details["part"] == {"rows": 41, "of": 90} and "part" not in one.details
    assert other.details["notes"] == ["only the first 41 of 90 rows of split 'test' were used"]
    assert other.details["rows_per_second"] > 0
    every = evaluate(cut.model_copy(update={"rows": 4_000}), SilentProgress())
    assert every.rows == 90 and "part" not in every.details


def test_predictions_of_a_split(tmp_path: Path) -> None:
    make_model_folder(tmp_path / "model")
    schema = load_model(tmp_path / "model").schema
    write_dataset(
        tmp_path / "data", schema, {"test": make_rows(schema, 150, 2)}, rows_per_part=60, rows_per_row_group=25
    )

    def scores(name: str, rows: int | None) -> tuple[Any, pa.Table]:
        request = PredictRequest(
            model=tmp_path / "model", input=str(tmp_path / "data"), output=tmp_path / name, rows=rows
        )
        return predict(request, SilentProgress()), pq.read_table(tmp_path / name / "scores")

    whole, expected = scores("all", None)
    part, found = scores("first", 71)
    assert found.equals(expected.slice(0, 71))
    assert part.rows == 71 and part.details["part"] == {"rows": 71, "of": 150} and part.details["rows_per_second"] > 0
    assert whole.rows == 150 and "part" not in whole.details


def test_predictions_of_raw_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files of several chunks; bad rows count among the first ones, a header does not."""
    monkeypatch.setattr(prediction, "_CHUNK_BYTES", 1_000)
    make_model_folder(tmp_path / "model", numeric=13, categorical=26)
    schema = load_model(tmp_path / "model").schema
    lines = []
    for row in make_raw_rows(schema, 40, 3):
        cells = ["" if row.get(f.name) is None else str(row[f.name]) for f in schema.features]
        lines.append("\t".join(["1", *(cell.removesuffix(".0").partition(".")[0] for cell in cells)]))
    lines[3] = "1\t2"
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/day_0").write_text("\n".join(lines[:25]) + "\n")
    (tmp_path / "raw/day_1").write_text("\n".join(lines[25:]) + "\n")

    def scores(rows: int | None) -> tuple[Any, list[tuple[str, int, float]]]:
        output = tmp_path / f"first-{rows}"
        request = PredictRequest(
            model=tmp_path / "model", input=str(tmp_path / "raw"), output=output, raw=True, rows=rows,
            max_rejected_fraction=1.0,
        )  # fmt: skip
        result, found = predict(request, SilentProgress()), pq.read_table(output / "scores")
        return result, list(zip(*(found[name].to_pylist() for name in ("file", "line", "score")), strict=True))

    every, expected = scores(None)
    assert every.rows == 39 and "part" not in every.details
    for most, scored, lost in ((3, 3, 0), (4, 3, 1), (25, 24, 1), (29, 28, 1), (40, 39, 1), (900, 39, 1)):
        result, found = scores(most)
        assert [row[:2] for row in found] == [row[:2] for row in expected[:scored]], most
        assert [row[2] for row in found] == pytest.approx([row[2] for row in expected[:scored]], abs=1e-6)
        assert sum(result.details["rejected"].values()) == lost, most
        assert result.details.get("part") == (None if most == 900 else {"rows": most})


def test_what_has_no_part() -> None:
    with pytest.raises(ConfigError, match=r"^--rows: --top-k recommends to every user"):
        PredictRequest(model=Path("m"), output=Path("o"), top_k=3, rows=5).check()
    files = {"recipe": "dlrm-criteo-debug", "input": ("raw",), "output": Path("o")}
    with pytest.raises(ConfigError, match=r"^--refit: trains on all rows, and train.rows leaves some out"):
        RunRequest(**files, set=("train.rows=9",), refit=True).check()
