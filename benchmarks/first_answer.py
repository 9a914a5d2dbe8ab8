"""Seconds from a raw file to the first answer over HTTP, by the commands that a user types.

    python -m benchmarks.first_answer --data FOLDER --output benchmarks/results/first_answer.json [--only NAME ...]

FOLDER has the public samples in sub-folders (see `LOGS`). For each: `rayrec inspect`, `rayrec run` of the recipe that
it wrote, `rayrec serve`, and one request with the first row of the file. Each command starts its own Ray and ends it,
as on a laptop.
"""

import argparse
import csv
import gzip
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rayrec.common.machine import Machine, free_port
from rayrec.config.validation import parse_yaml
from rayrec.store.files import write_json
from tests.environments import environment_without_cluster

PROGRAM = Path(sys.executable).with_name("rayrec")


@dataclass(frozen=True)
class Log:
    file: str
    label: str
    """What `--label` is given."""
    source: str | None = None
    """Lines of the recipe that take the place of its `features`, where a person adds side tables."""


_MOVIELENS_SOURCE = """
  tables:
    users: {path: "{folder}/ml-100k.user", key: "user_id:token", on: c1}
    items: {path: "{folder}/ml-100k.item", key: "item_id:token", on: c2}
  features:
    - {columns: [c1, c2], kind: categorical}
    - {columns: "users_age:token", name: age, kind: buckets, quantiles: 8}
    - {columns: "users_gender:token", name: gender, kind: categorical}
    - {columns: "users_occupation:token", name: occupation, kind: categorical}
    - {columns: "items_class:token_seq", name: genres, kind: list, separator: " "}
  ignore: [c4, "users_zip_code:token", "items_movie_title:token_seq", "items_release_year:token"]
"""

LOGS = {
    "avazu-9k": Log("avazu-9k/train.csv.gz", "click"),
    "criteo-kaggle-8k": Log("criteo-kaggle-8k/train.tsv.gz", "c1"),
    "criteo-kaggle-200": Log("criteo-kaggle-200/criteo_sample.txt", "label"),
    "ml-100k": Log("ml-100k/u.data.gz", "c3 >= 4"),
    "ml-100k with side tables": Log("ml-100k/u.data.gz", "c3 >= 4", _MOVIELENS_SOURCE),
    "ml-latest-small": Log("ml-latest-small/ratings.csv.gz", "rating >= 4"),
    "outbrain-10k": Log("outbrain-10k/sample_train_dat.csv", "clicked"),
}


def first_row(path: Path, source: dict[str, Any]) -> dict[str, Any]:
    """Return the first row as a request has it: the columns that features are made of, numbers as such."""
    kinds: dict[str, str] = {}
    for rule in source["features"]:
        columns = rule["columns"] if isinstance(rule["columns"], list) else [rule["columns"]]
        kinds = {**dict.fromkeys(columns, rule["kind"]), **kinds}
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        first = [next(lines), next(lines)]
        separator = source.get("separator", "\t" if "\t" in first[0] else ",")
        rows = csv.reader(first, delimiter=separator)
        names = source.get("header") or next(rows)
        values = {name: value for name, value in zip(names, next(rows), strict=True) if name in kinds}
    are_numbers = {name for name, kind in kinds.items() if kind in ("numeric", "buckets")}
    return {n: (float(v) if v else None) if n in are_numbers else v for n, v in values.items()}


def first_answer(log: Log, data: Path, folder: Path) -> dict[str, Any]:
    """Return the seconds of each part, the AUC of the test split and the answer."""
    environment = environment_without_cluster()
    path, recipe, port = data / log.file, folder / "mine.yaml", free_port()

    def run(*arguments: object) -> float:
        start = time.monotonic()
        subprocess.run([PROGRAM, *map(str, arguments)], check=True, env=environment, stdout=subprocess.DEVNULL)
        return round(time.monotonic() - start, 1)

    seconds = {"inspect": run("inspect", path, "--label", log.label, "--output", recipe)}
    content = parse_yaml(recipe.read_text())
    if log.source is not None:
        added = parse_yaml(log.source.replace("{folder}", str(path.parent)))
        content["source"] = {**content["source"], **added, "time": None}
        content["preprocess"]["split"] = {"kind": "hash", "validation": 0.1, "test": 0.1}
        recipe.write_text(yaml.safe_dump(content, sort_keys=False))
    seconds["run"] = run("run", recipe, "--input", path, "--output", folder / "out")
    start = time.monotonic()
    body = json.dumps({"instances": [first_row(path, content["source"])]}).encode()
    server = subprocess.Popen(
        [PROGRAM, "serve", str(folder / "out" / "model"), "--port", str(port)],
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    try:
        answer = _ask(f"http://127.0.0.1:{port}/v1/models/model:predict", body, server)
        seconds["serve and first answer"] = round(time.monotonic() - start, 1)
    finally:
        server.terminate()
        server.wait()
    seconds["all"] = round(sum(seconds.values()), 1)
    auc = json.loads((folder / "out" / "result.json").read_text())["metrics"]["test"]["auc"]
    return {"seconds": seconds, "test_auc": auc, "answer": answer}


def _ask(url: str, body: bytes, server: "subprocess.Popen[bytes]") -> Any:
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code not in (404, 503):  # while it starts
                raise SystemExit(f"{url}: {error.code} {error.read().decode()}") from None
        except OSError:
            if server.poll() is not None:
                raise SystemExit("rayrec serve ended before it answered") from None
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(LOGS))
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    machine = Machine()
    report = {}
    for name in options.only:
        with tempfile.TemporaryDirectory(prefix="rayrec-first-") as folder:
            report[name] = first_answer(LOGS[name], options.data.resolve(), Path(folder))
        print(name, report[name]["seconds"], flush=True)
        write_json(options.output, {"machine": machine.described(), **report})


if __name__ == "__main__":
    main()
