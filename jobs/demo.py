"""`rayrec demo`: the whole way from raw logs to an answered HTTP request, each step as the command that does it."""

import importlib
import json
import shlex
import shutil
import socket
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import PositiveInt

from jobs.entry_point import Job, build_request, describe_result, execute, main
from jobs.generated import GENERATED
from jobs.request import Request
from jobs.result import RESULT_FILE, Result
from rayrec.common.errors import UserError
from rayrec.common.files import require_absent
from rayrec.common.progress import Progress
from rayrec.storage.location import LocalPath

WORKERS = 2


# Recipe and source of each model.
_SHOWN = {
    "dlrm": ("dlrm-criteo-debug", "criteo"),
    "dcnv2": ("dcnv2-criteo-debug", "criteo"),
    "neumf": ("neumf-ml-1m-debug", "movielens"),
    "wide_deep": ("wide-deep-outbrain-debug", "outbrain"),
}


class DemoRequest(Request):
    """What the demo makes, and where."""

    model: Literal["dlrm", "dcnv2", "neumf", "wide_deep"] = "dlrm"
    output: LocalPath = Path("demo")
    """Folder for all that the demo makes; that of an earlier demo is replaced."""
    rows: PositiveInt = 100_000
    """Rows to generate."""


def run(request: DemoRequest, progress: Progress) -> Result:
    """Run every step in one Ray session; `metrics` are the evaluation's, `details` the request and its answer."""
    from cluster.ray_session import ray_session

    folder = request.output
    _replace_earlier_demo(folder)
    recipe, source = _SHOWN[request.model]
    data = GENERATED[source]
    raw, dataset, trained, model = (folder / name for name in ("raw", "dataset", "run", "model"))
    # Command, its arguments, its options: fields of the command's request.
    steps: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("generate", {"source": source}, {"rows": request.rows, "output": raw}),
        ("preprocess", {"recipe": recipe}, {"input": (str(raw / data.file),), "output": dataset}),
        ("train", {"recipe": recipe}, {"data": dataset, "output": trained, "workers": WORKERS}),
        ("evaluate", {"source": trained}, {"data": dataset, "split": data.evaluated}),
        ("export", {"run": trained}, {"output": model}),
    ]
    results: dict[str, Result] = {}
    progress.stage("start Ray")
    with ray_session():
        progress.finish()
        for command, arguments, options in steps:
            progress.message(f"\n$ {as_command(command, arguments, options)}")
            job = importlib.import_module(f"jobs.{command}").JOB
            results[command] = execute(job, build_request(job.request, {**arguments, **options}), progress)
            progress.message(describe_result(results[command]))
        exchange = _serve_one_request(model, raw, progress)
    reached = results["evaluate"].metrics
    verdict = _verdict(data.evaluated, reached[data.evaluated], results["generate"].details)
    progress.message(f"\n{verdict}")
    return Result(command="demo", output=folder, rows=request.rows, metrics=reached, details=exchange)


def _verdict(split: str, reached: dict[str, float | None], generated: dict[str, Any]) -> str:
    """What the model reached, beside what it could at best or would by chance."""
    truth = generated.get("truth", {})
    if "best_auc" in truth:
        best = truth["best_auc"]
        return f"AUC of the {split} split: {reached['auc']:.4f}; the generator's clicks allow {best:.4f} at best."
    if "held_out" in truth:
        best, chance = truth["held_out"]["best"], truth["held_out"]["random"]
        return (
            f"MAP@12 of the {split} split: {reached['map@12']:.4f}; the generator's clicks allow about {best:.4f} at "
            f"best, ads in random order give about {chance:.4f}."
        )
    rows, lists = reached["rows"], reached["groups"]
    assert rows and lists
    chance = 10 * lists / rows
    return f"HR@10 of the {split} split: {reached['hr@10']:.4f}; candidates in random order give {chance:.4f}."


def as_command(command: str, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """The command line of a step."""
    words = ["rayrec", command, *map(str, arguments.values())]
    for name, value in options.items():
        for item in value if isinstance(value, tuple) else (value,):
            words += [f"--{name.replace('_', '-')}", str(item)]
    return shlex.join(words)


def _serve_one_request(model: Path, raw: Path, progress: Progress) -> dict[str, Any]:
    """Serve the model folder, post one request of raw features, and stop."""
    from jobs.serve import ServeRequest, serving

    port = _free_port()
    progress.message(f"\n$ {as_command('serve', {'model': model}, {'port': port})}")
    verb, body = _example_request(model, raw)
    with serving(ServeRequest(model=(model,), port=port), progress) as url:
        endpoint = f"{url}/v1/models/{model.name}:{verb}"
        progress.finish()
        progress.message(f"\n$ curl -s {endpoint} -d {shlex.quote(json.dumps(body))}")
        request = urllib.request.Request(endpoint, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.loads(response.read())
        progress.message(json.dumps(answer))
    return {"request": body, "answer": answer}


def _example_request(model: Path, raw: Path) -> tuple[str, dict[str, Any]]:
    """The method that suits a model, and a body for it."""
    from rayrec.features.schema import Schema
    from rayrec.inference.example_row import example_row
    from rayrec.inference.ranker import can_rank

    if can_rank(model):
        return "rank", _first_display(raw)
    schema = Schema.load(model)
    example = example_row(schema, model)
    if schema.interactions is not None:
        return "recommend", {"user": example[schema.interactions.user], "k": 5}
    return "predict", {"instances": [example]}


def _first_display(raw: Path) -> dict[str, Any]:
    """The first display of `clicks_test.csv`: its event as the context, its ads."""
    import pyarrow.compute as pc
    from pyarrow import csv

    shown = csv.read_csv(raw / "clicks_test.csv")
    display = shown["display_id"][0]
    ads = shown.filter(pc.equal(shown["display_id"], display))["ad_id"].to_pylist()
    events = csv.read_csv(raw / "events.csv", convert_options=csv.ConvertOptions(null_values=["\\N", ""]))
    (event,) = events.filter(pc.equal(events["display_id"], display)).drop_columns("display_id").to_pylist()
    return {"context": event, "ads": ads}


def _replace_earlier_demo(folder: Path) -> None:
    """Make `folder` empty and mark it as a demo's. Raises UserError where something else is in it."""
    if (folder / RESULT_FILE).is_file():
        if Result.load(folder).command != "demo":
            raise UserError(f"{folder}: holds the output of another command; give another --output, or remove it first")
        shutil.rmtree(folder)
    require_absent(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # Were the demo stopped at any moment, the next one still finds whose folder it is.
    Result(command="demo", status="interrupted", output=folder, error="did not finish").save(folder)


def _free_port() -> int:
    """8000 where it is free, else any."""
    for wanted in (8000, 0):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", wanted))
            except OSError:
                continue
            port: int = probe.getsockname()[1]
            return port
    raise UserError("no TCP port is free on 127.0.0.1")


JOB = Job("demo", DemoRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(JOB))
