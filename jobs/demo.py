"""`rayrec demo`: the whole way from raw logs to an answered HTTP request, each step as the command that does it."""

import json
import shlex
import shutil
import urllib.request
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, PositiveInt

from jobs.command import (
    RESULT_FILE,
    Command,
    Positional,
    Request,
    Result,
    as_arguments,
    build_request,
    describe_result,
    execute,
    load_command,
    main,
)
from jobs.command.execution import PlacedRequest
from rayrec.common.errors import ConfigError
from rayrec.common.files import require_absent
from rayrec.common.plugins import MODELS
from rayrec.common.ports import free_port
from rayrec.common.progress import Progress
from rayrec.recipes import Recipe, load_recipe
from rayrec.storage.location import LocalPath

WORKERS = 2


class DemoRequest(PlacedRequest):
    """Generate data, preprocess, train on two workers, evaluate, export, serve one request."""

    model: Annotated[str, AfterValidator(MODELS.known), Positional("|".join(MODELS.packages))] = "dlrm"
    """Kind of model."""
    output: LocalPath = Path("demo")
    """Folder for everything that the demo makes; the folder of an earlier demo is replaced."""
    rows: PositiveInt = 100_000
    """Rows to generate."""


def run(request: DemoRequest, progress: Progress) -> Result:
    """Run every step, in one Ray session unless in this process.

    `metrics` are the evaluation's, `details` the request and its answer.
    """
    from cluster.ray_session import ray_session
    from rayrec.sources.registry import source_of

    name, recipe = _debug_recipe(request.model)
    source = source_of(recipe.source.kind)
    data = source.generated
    if data is None:
        raise ConfigError(f"recipe '{name}': source '{recipe.source.kind}' has no generator; choose another model")
    folder = request.output
    _replace_earlier_demo(folder)
    raw, dataset, trained, model = (folder / name for name in ("raw", "dataset", "run", "model"))
    on, workers = request.on, 1 if request.on == "process" else WORKERS
    steps: dict[str, dict[str, Any]] = {
        "generate": {"source": recipe.source.kind, "rows": request.rows, "output": raw},
        "preprocess": {"recipe": name, "input": raw / data.path, "output": dataset, "on": on},
        "train": {"recipe": name, "data": dataset, "output": trained, "workers": workers, "on": on},
        "evaluate": {"source": trained, "data": dataset, "split": data.evaluated, "on": on},
        "export": {"run": trained, "output": model},
    }
    results: dict[str, Result] = {}
    with nullcontext() if on == "process" else ray_session(progress=progress):
        progress.finish()
        for step, values in steps.items():
            command = load_command(step)
            step_request = build_request(command.request, values)
            progress.message(f"\n$ {_line(step, step_request)}")
            results[step] = execute(command, step_request, progress)
            progress.message(describe_result(results[step]))
        exchange = _serve_one_request(model, source.example_request(raw), progress)
    metrics = results["evaluate"].metrics
    progress.message(f"\n{source.describe_quality(metrics[data.evaluated], results['generate'].details)}")
    return Result(command="demo", output=folder, rows=request.rows, metrics=metrics, details=exchange)


def _debug_recipe(model: str) -> tuple[str, Recipe]:
    """The recipe of a kind of model that trains in seconds."""
    for name in MODELS.texts(model, ".yaml", "recipes"):
        if name.endswith("-debug"):
            return name, load_recipe(name)
    raise ConfigError(f"model '{model}': has no recipe whose name ends in -debug; choose another one")


def _line(command: str, request: Request) -> str:
    return shlex.join(["rayrec", command, *as_arguments(request)])


def _serve_one_request(model: Path, to_rank: dict[str, Any] | None, progress: Progress) -> dict[str, Any]:
    """Serve the model folder, post one request of raw features (or `to_rank`), and stop."""
    from jobs.serve import ServeRequest, curl_line, endpoint_of, serving

    request = ServeRequest(model=(str(model),), port=free_port())
    progress.message(f"\n$ {_line('serve', request)}")
    verb, content = ("rank", to_rank) if to_rank is not None else _example_request(model)
    with serving(request, progress) as url:
        endpoint, body = endpoint_of(url, model.name, verb), json.dumps(content)
        progress.finish()
        progress.message(f"\n$ {curl_line(endpoint, body)}")
        post = urllib.request.Request(endpoint, body.encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(post, timeout=60) as response:
            answer = json.loads(response.read())
        progress.message(json.dumps(answer))
    return {"request": content, "answer": answer}


def _example_request(model: Path) -> tuple[str, dict[str, Any]]:
    """The method that suits a model, and a body for it."""
    from rayrec.features.schema import Schema
    from rayrec.inference.folder.examples import example_row

    schema, example = Schema.load(model), example_row(model)
    if schema.interactions is not None:
        return "recommend", {"user": example[schema.interactions.user], "k": 5}
    return "predict", {"instances": [example]}


def _replace_earlier_demo(folder: Path) -> None:
    """Make `folder` empty and mark it as a demo's. Raises UserError if it holds something else."""
    if (folder / RESULT_FILE).is_file() and Result.load(folder).command == "demo":
        shutil.rmtree(folder)
    require_absent(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # If the demo is stopped at any moment, the next one still finds that the folder is a demo's.
    Result(command="demo", status="interrupted", output=folder, error="did not finish").save(folder)


COMMAND = Command("demo", DemoRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
