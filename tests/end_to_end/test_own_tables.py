"""Real tables from the raw file to HTTP: inspected, trained as the recipe stands, one score on every way."""

import gzip
import json
import shlex
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from jobs.serve import ServeRequest, serving
from rayrec.common.machine import free_port
from rayrec.common.progress import SilentProgress
from rayrec.inference.predictor import Predictor, load_model
from rayrec.ingest.dataset import Dataset
from tests.dataset_cells import read_rows
from tests.end_to_end.conftest import Finished

pytestmark = pytest.mark.minutes
FILES = ("--set", "preprocess.split={kind: files}", "--set", "train.evaluation_split=test")


def cut(
    lines: list[str], folder: Path, name: str, header: str | None = None, list_of: Callable[[str], str] | None = None
) -> list[str]:
    """Write every fifth line, or list, to FOLDER/test-NAME and the others to FOLDER/train-NAME; returns the first."""
    keys = list(map(list_of, lines)) if list_of else lines
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    test = [line for line, key in zip(lines, keys, strict=True) if numbers[key] % 5 == 0]
    train = [line for line, key in zip(lines, keys, strict=True) if numbers[key] % 5]
    for split, chosen in (("train", train), ("test", test)):
        (folder / f"{split}-{name}").write_text("\n".join([*([header] if header else []), *chosen]) + "\n")
    return test


def run(rayrec: Callable[..., Finished], *arguments: str | Path, folder: Path) -> dict[str, Any]:
    done = rayrec(*arguments, "--json", folder=folder)
    assert done.code == 0, f"rayrec {' '.join(map(str, arguments))}:\n{done.err}"
    return done.result


def scores_of(output: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    table = pq.read_table(output / "scores")
    return table["score"].to_numpy(), table["label"].to_numpy()


def check_same_bits(dataset: Dataset, predictor: Predictor, rows: list[dict[str, Any]]) -> None:
    """Each row of a request becomes what preprocessing made of it, in any order of the rows."""
    names = [feature.name for feature in dataset.schema.features]
    written = read_rows(dataset, "test", names).select(names).to_pylist()
    encoded = predictor.encode(predictor.raw_rows.from_rows(rows)).select(names).to_pylist()
    assert sorted(map(repr, encoded)) == sorted(map(repr, written))


def check_every_way(
    rayrec: Callable[..., Finished], folder: Path, recipe: str, rows: list[dict[str, Any]], *, are_lists: bool = False
) -> float:
    """Train on train-*, and score test-*, whose `rows` a client would send so, on every way; returns the AUC."""
    train, test = sorted(folder.glob("train-*"))[0], sorted(folder.glob("test-*"))[0]
    inputs = ["--input", f"train={train}", "--input", f"test={test}"]
    trained = run(rayrec, "run", recipe, *inputs, *FILES, "--output", "out", folder=folder)
    run(rayrec, "predict", "out/model", "--input", test, "--raw", "--output", "raw", folder=folder)
    run(rayrec, "predict", "out/run", "--input", "out/dataset", "--output", "encoded", folder=folder)
    raw, labels = scores_of(folder / "raw")
    encoded, encoded_labels = scores_of(folder / "encoded")
    assert len(raw) == len(rows)
    check_same_bits(Dataset.open(folder / "out" / "dataset"), load_model(folder / "out" / "model"), rows)
    if are_lists:  # preprocessing puts the rows of a list together, and the lists in an order of its own
        order, encoded_order = np.lexsort((raw, labels)), np.lexsort((encoded, encoded_labels))
        assert labels[order].tolist() == encoded_labels[encoded_order].tolist()
        np.testing.assert_allclose(encoded[encoded_order], raw[order], atol=1e-6, rtol=0)
    else:
        assert labels.tolist() == encoded_labels.tolist()
        np.testing.assert_allclose(encoded, raw, atol=1e-6, rtol=0)
    with serving(ServeRequest(model=(folder / "out" / "model",), port=free_port()), SilentProgress()) as url:
        body = json.dumps({"instances": rows[:2000]}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/models/model:predict", body)) as answer:
            http = np.array(json.load(answer)["predictions"])
    np.testing.assert_allclose(http, raw[:2000], atol=1e-6, rtol=0)
    auc = roc_auc_score(labels, raw)
    assert trained["metrics"]["test"]["auc"] == pytest.approx(auc, abs=1e-6)
    return float(auc)


SAMPLES = {
    # file; separator; the label that `rayrec inspect` is told; whether there is a header; columns ignored; least AUC
    "avazu": ("avazu-9k/train.csv.gz", ",", "click", True, {"id", "hour"}, 0.66),
    "criteo": ("criteo-kaggle-8k/train.tsv.gz", "\t", "c1", False, set(), 0.7),
    "few rows": ("criteo-kaggle-200/criteo_sample.txt", ",", "label", True, None, 0.0),
    "lists": ("outbrain-10k/sample_train_dat.csv", ",", "clicked", True, {"day"}, 0.58),
    "ratings": ("ml-latest-small/ratings.csv.gz", ",", "rating >= 4", True, set(), 0.7),
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_recipe_that_nobody_edited(
    rayrec_alone: Callable[..., Finished], ray_cluster: str, shared_data: Path, tmp_path: Path, sample: str
) -> None:
    """As users do first: on one machine without a cluster, but for the server."""
    file, separator, label, has_header, ignored, least_auc = SAMPLES[sample]
    content = (shared_data / file).read_bytes()
    lines = (gzip.decompress(content) if file.endswith(".gz") else content).decode().splitlines()
    header = lines.pop(0) if has_header else None
    lines = lines[:20_000]
    names = header.split(separator) if header else [f"c{number}" for number in range(1, 41)]
    group = names.index("display_id") if sample == "lists" else None
    list_of = None if group is None else lambda line: line.split(separator)[group]
    tested = cut(lines, tmp_path, f"log{Path(file.removesuffix('.gz')).suffix}", header, list_of)
    train = next(path.name for path in tmp_path.glob("train-*"))
    run(rayrec_alone, "inspect", train, "--label", label, "--output", "mine.yaml", folder=tmp_path)
    source = yaml.safe_load((tmp_path / "mine.yaml").read_text())["source"]
    assert ignored is None or set(source.get("ignore", [])) == ignored
    assert source.get("group") == ("display_id" if sample == "lists" else None)
    kinds = {rule["columns"]: rule["kind"] for rule in reversed(source["features"])}
    rows = []
    for line in tested:
        values = {name: value for name, value in zip(names, line.split(separator), strict=True) if name in kinds}
        rows.append(
            {n: (float(v) if v else None) if kinds[n] in ("numeric", "buckets") else v for n, v in values.items()}
        )
    assert check_every_way(rayrec_alone, tmp_path, "mine.yaml", rows, are_lists=group is not None) > least_auc


def test_side_tables_and_rates(
    rayrec: Callable[..., Finished], no_spark: None, shared_data: Path, tmp_path: Path
) -> None:
    """A request sends ids alone; attributes of users and movies, and rates, are looked up."""
    data = shared_data / "ml-100k"
    lines = gzip.decompress((data / "u.data.gz").read_bytes()).decode().splitlines()[:20_000]
    tested = cut(lines, tmp_path, "ratings.tsv")
    recipe = {
        "source": {
            "kind": "table",
            "header": ["user", "item", "rating", "time"],
            "label": {"column": "rating", "at_least": 4},
            "ignore": ["users_zip_code:token", "items_movie_title:token_seq"],
            "features": [
                {"columns": ["user", "item"], "kind": "categorical", "min_count": 2},
                {"columns": "time", "kind": "timestamp", "format": "s", "derive": ["hour", "weekday"]},
                {"columns": "users_age:token", "name": "age", "kind": "buckets", "quantiles": 8},
                {"columns": "users_gender:token", "name": "gender", "kind": "categorical"},
                {"columns": "users_occupation:token", "name": "occupation", "kind": "categorical"},
                {
                    "columns": "items_release_year:token", "name": "year", "kind": "numeric",
                    "transforms": ["standardize"],
                },
                {"columns": "items_class:token_seq", "name": "genres", "kind": "list", "separator": " "},
                {"kind": "cross", "of": ["gender", "occupation"], "buckets": 100},
            ],
            "tables": {
                "users": {"path": str(data / "ml-100k.user"), "key": "user_id:token", "on": "user"},
                "items": {"path": str(data / "ml-100k.item"), "key": "item_id:token", "on": "item"},
            },
            "rates": [{"keys": "item"}, {"keys": ["user"]}],
        },
        "preprocess": {"split": {"kind": "files"}, "frequency_limit": 2, "layout": {"rows_per_row_group": 1024}},
        "model": {"kind": "wide_deep", "embedding_dim": 4, "mlp": [16]},
        "train": {"global_batch_size": 256, "epochs": 2, "embedding_optimizer": {"kind": "adagrad", "lr": 0.05},
                  "dense_optimizer": {"kind": "adagrad", "lr": 0.05}, "ingest": {"in_memory": True}},
    }  # fmt: skip
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    rows = []
    for line in tested:
        user, item, _, time = line.split("\t")
        rows.append({"user": user, "item": int(item), "time": int(time)})
    assert check_every_way(rayrec, tmp_path, "mine.yaml", rows) > 0.7


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_names_and_values_that_a_shell_or_a_page_would_take_for_its_own(
    rayrec_alone: Callable[..., Finished], tmp_path: Path, ending: str
) -> None:
    marks = [
        "'",
        '"',
        "\\",
        " # ",
        ": ",
        "%s",
        "{0}",
        "[red]",
        "\n",
        "\x1b[2J",
        "$(id)",
        "`",
        "|",
        "<img src=x>",
        "&amp;",
    ]
    random = np.random.default_rng(1)
    table = {f"a{mark}b": [f"{marks[i]}{i}" for i in random.integers(0, 15, 500)] for mark in marks}
    likes = [0.8 if "#" in value else 0.3 for value in table["a|b"]]
    table["click"] = (random.random(500) < likes).astype(int).tolist()
    folder = tmp_path / """it's "a" [bold] $folder"""
    folder.mkdir()
    frame = pd.DataFrame(table)
    if ending == "csv":
        frame.to_csv(folder / "t 1.csv", index=False)
    elif ending == "jsonl":
        frame.to_json(folder / "t 1.jsonl", orient="records", lines=True)
    else:
        frame.to_parquet(folder / "t 1.parquet")
    found = rayrec_alone("inspect", f"t 1.{ending}", "--label", "click", "--output", "it's.yaml", folder=folder)
    words = shlex.split(next(line for line in found.out.splitlines() if line.startswith("    rayrec run")))
    said = [
        found,
        rayrec_alone(*words[1:-1], "o'[x]", folder=folder),
        rayrec_alone("explain", "o'[x]/model", "--data", "o'[x]/dataset", "--output", "why", folder=folder),
        rayrec_alone("report", "o'[x]/run", "--output", "report", folder=folder),
        rayrec_alone("predict", "o'[x]/model", "--input", words[4], "--raw", "--output", "scores", folder=folder),
    ]
    for one in said:
        assert one.code == 0, one.err
        assert (one.out + one.err).replace("\n", "").isprintable()
    written = [*folder.glob("*/report.html"), folder / "o'[x]" / "model" / "MODEL_CARD.md"]
    assert len(written) == 3 and not any("<img src=x>" in path.read_text() for path in written)
    rows = frame.drop(columns="click")
    np.testing.assert_array_equal(load_model(folder / "o'[x]/model").predict(rows), scores_of(folder / "scores")[0])
