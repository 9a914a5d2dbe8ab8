"""`rayrec demo`: the whole way from raw logs to an answered HTTP request, each step as the command that does it."""

import json
import shlex
import shutil
import socket
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import PositiveInt

from jobs.command.command_line import main
from jobs.command.request import Request
from jobs.command.result import RESULT_FILE, Result, describe_result
from jobs.command.runner import Command, build_request, execute, load_command
from rayrec.common.errors import UserError
from rayrec.common.files import require_absent
from rayrec.common.progress import Progress
from rayrec.storage.location import LocalPath

WORKERS = 2


# Recipe and source of each model.
_SHOWN = {
    "dlrm": ("dlrm-criteo-debug", "criteo"),
    "dcnv2": ("dcnv2-criteo-debug", "criteo"),
    "neumf": ("neumf-ml-1m-debug", "interactions"),
    "wide_deep": ("wide-deep-outbrain-debug", "outbrain"),
}


class DemoRequest(Request):
    """Generate data, preprocess, train on two workers, evaluate, export, serve one request."""

    positional: ClassVar[tuple[str, ...]] = ("model",)

    model: Literal["dlrm", "dcnv2", "neumf", "wide_deep"] = "dlrm"
    """Kind of model."""
    output: LocalPath = Path("demo")
    """Folder for everything that the demo makes; the folder of an earlier demo is replaced."""
    rows: PositiveInt = 100_000
    """Rows to generate."""


def run(request: DemoRequest, progress: Progress) -> Result:
    """Run every step in one Ray session; `metrics` are the evaluation's, `details` the request and its answer."""
    from cluster.ray_session import ray_session
    from rayrec.sources.registry import source_of

    folder = request.output
    _replace_earlier_demo(folder)
    recipe, source = _SHOWN[request.model]
    described = source_of(source)
    data = described.generated
    assert data is not None, "demos are of sources with a generator"
    raw, dataset, trained, model = (folder / name for name in ("raw", "dataset", "run", "model"))
    # Command, its arguments, its options: fields of the command's request.
    steps: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("generate", {"source": source}, {"rows": request.rows, "output": raw}),
        ("preprocess", {"recipe": recipe}, {"input": (str(raw / data.path),), "output": dataset}),
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
            step = load_command(command)
            results[command] = execute(step, build_request(step.request, {**arguments, **options}), progress)
            progress.message(describe_result(results[command]))
        exchange = _serve_one_request(model, raw, progress)
    reached = results["evaluate"].metrics
    verdict = described.describe_quality(reached[data.evaluated], results["generate"].details)
    progress.message(f"\n{verdict}")
    return Result(command="demo", output=folder, rows=request.rows, metrics=reached, details=exchange)


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
    from rayrec.inference.folder.example_row import example_row
    from rayrec.inference.folder.model_folder import CONFIG_FILE
    from rayrec.recipes import load_recipe
    from rayrec.sources.registry import source_of

    to_rank = source_of(load_recipe(model / CONFIG_FILE).source.kind).example_request(raw)
    if to_rank is not None:
        return "rank", to_rank
    schema = Schema.load(model)
    example = example_row(schema, model)
    if schema.interactions is not None:
        return "recommend", {"user": example[schema.interactions.user], "k": 5}
    return "predict", {"instances": [example]}


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


COMMAND = Command("demo", DemoRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
