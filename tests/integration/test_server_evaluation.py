"""`rayrec evaluate --server`: the metrics of labelled raw rows that a server scores are those of the dataset."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.csv as csv
import pytest
import yaml

import rayrec
from jobs.command import describe_result
from jobs.serve import ServeRequest, serving
from rayrec.common.errors import UserError
from rayrec.common.machine import free_port
from rayrec.common.progress import SilentProgress
from rayrec.common.text import format_number

TOKEN = "fedcba9876543210"
RECIPE: dict[str, Any] = {
    "source": {
        "kind": "table",
        "label": {"column": "stars", "at_least": 3},
        "features": [
            {"columns": ["a", "b"], "kind": "numeric", "transforms": [{"op": "fill", "value": "mean"}, "standardize"]},
            {"columns": ["c", "d"], "kind": "categorical"},
            {"columns": "e", "kind": "list", "separator": " "},
            {"columns": "when", "kind": "timestamp"},
        ],
        "rates": [{"keys": "d"}],
    },
    "preprocess": {"split": {"kind": "files"}, "frequency_limit": 2},
    "model": {"kind": "dcnv2", "embedding_dim": 8, "bottom_mlp": [8], "top_mlp": [16]},
    "train": {
        "global_batch_size": 256,
        "device": "cpu",
        "workers": 1,
        "embedding_optimizer": {"kind": "adagrad", "lr": 0.1},
        "dense_optimizer": {"kind": "adagrad", "lr": 0.05},
    },
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe, raw files of two splits, their dataset, and a model that was trained a little."""
    base = tmp_path_factory.mktemp("evaluated")
    (base / "mine.yaml").write_text(yaml.safe_dump(RECIPE))
    recipe = str(base / "mine.yaml")
    for split, rows, seed in (("train", 6_000, 1), ("test", 3_500, 1)):
        rayrec.generate("table", rows, base / split, recipe=recipe, seed=seed, cardinality={"*": 40}, progress=False)
    inputs = [f"{split}={base / split / 'table.csv'}" for split in ("train", "test")]
    rayrec.preprocess(recipe, inputs, base / "data", progress=False)
    rayrec.train(recipe, base / "data", base / "run", on="process", progress=False)
    rayrec.export(base / "run", base / "stars", progress=False)
    (base / "tokens").write_text(f"{TOKEN}\n{TOKEN[::-1]}\n")
    return base


@pytest.fixture(scope="module")
def url(ray_cluster: str, made: Path) -> Iterator[str]:
    request = ServeRequest(model=(str(made / "stars"),), port=free_port(), token_file=made / "tokens")
    with serving(request, SilentProgress()) as address:
        yield address


def _ask(made: Path, server: str, **options: Any) -> Any:
    options = {"input": made / "test/table.csv", "token_file": made / "tokens", **options}
    return rayrec.evaluate(made / "stars", server=server, progress=False, **options)


@pytest.mark.parametrize("options", [{}, {"connections": 1, "batch_rows": 333}])
def test_the_metrics_are_those_of_the_dataset(made: Path, url: str, options: dict[str, int]) -> None:
    expected = rayrec.evaluate(made / "run", made / "data", on="process", progress=False).metrics["test"]
    result = _ask(made, url, **options)
    shown = {name: f"{value:.6g}" for name, value in result.metrics["input"].items()}
    assert shown == {name: f"{value:.6g}" for name, value in expected.items()}
    assert 0.6 < result.metrics["input"]["auc"] < 0.9 and result.rows == 3_500
    details = result.details
    assert details["versions"] == {"1": 3_500} and details["rows_per_second"] > 0
    assert set(details["latency_ms"]) == {"p50", "p95", "p99"}
    assert f"{format_number(details['rows_per_second'])} rows/s" in describe_result(result)


def test_the_address_may_name_the_model(made: Path, url: str) -> None:
    whole = _ask(made, url).metrics["input"]
    assert rayrec.evaluate(
        made / "run",
        server=f"{url}/v1/models/stars/",
        input=made / "test/table.csv",
        token_file=made / "tokens",
        progress=False,
    ).metrics["input"] == pytest.approx(whole)


def test_rows_without_a_label_are_counted_apart(made: Path, url: str, tmp_path: Path) -> None:
    lines = (made / "test/table.csv").read_text().splitlines(keepends=True)[:501]
    place = lines[0].strip().split(",").index('"stars"')
    for number in (3, 99):
        fields = lines[number].rstrip("\n").split(",")
        fields[place] = ""
        lines[number] = ",".join(fields) + "\n"
    (tmp_path / "some.csv").write_text("".join(lines))
    result = _ask(made, url, input=tmp_path / "some.csv")
    assert (result.rows, result.details["lost"]) == (498, {"no label": 2})


def test_mistakes_are_a_line(made: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = csv.read_csv(made / "test/table.csv").drop_columns("stars")
    csv.write_csv(rows, tmp_path / "unlabelled.csv")
    (tmp_path / "wrong").write_text("0123456789abcdef-other")
    gone = f"http://127.0.0.1:{free_port()}"
    cases: list[tuple[str, dict[str, Any], str]] = [
        (gone, {}, f"--server {gone}/v1/models/stars: no answer \\(.*refused.*\\); is the server running there"),
        (url, {"token_file": tmp_path / "wrong"}, "answered 401: no valid token.*; give --token-file"),
        (url, {"token_file": None}, "answered 401"),
        (f"{url}/v1/models/moons", {}, "answered 404: .*moons.*; name the model by --server"),
        (url, {"input": tmp_path / "unlabelled.csv"}, "unlabelled.csv: no column 'stars', the label"),
        (url, {"input": tmp_path / "nothing.csv"}, "nothing.csv"),
    ]
    for server, options, message in cases:
        with pytest.raises(UserError, match=message) as raised:
            _ask(made, server, **options)
        assert "\n" not in str(raised.value)
