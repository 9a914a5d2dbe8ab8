"""`rayrec demo`: generate raw logs, take them through all steps to an answer over HTTP, and show each step's command.

With `--on ray` each step runs as a job on a Ray cluster of two nodes. The same steps also run without the cluster, and
the results of both are compared.
"""

import json
import shlex
import shutil
import time
import urllib.request
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, PositiveInt

from jobs.command import (
    RESULT_FILE,
    Command,
    Positional,
    Request,
    Result,
    as_arguments,
    build_request,
    describe_outcome,
    describe_result,
    execute,
    load_command,
    main,
    text_table,
)
from jobs.command.execution import PlacedRequest
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.network import free_port
from rayrec.common.plugins import MODELS
from rayrec.common.progress import Progress
from rayrec.recipes import Recipe, load_recipe
from rayrec.store.files import require_absent
from rayrec.store.paths import LocalPath

if TYPE_CHECKING:
    from rayrec.config.execution import Execution
    from rayrec.sources.source import Source

WORKERS = 2
_TRIALS = 4
_SCORE_TOLERANCE, _METRIC_TOLERANCE = 1e-6, 1e-9
"""The same weights score rows of one batch and of another to float32 rounding; metrics are sums in another order."""


class DemoRequest(PlacedRequest):
    """Generate data, train, export and serve one request."""

    model: Annotated[str, AfterValidator(MODELS.known), Positional("|".join(MODELS.packages))] = "dlrm"
    """Kind of model."""
    output: LocalPath = Path("demo")
    """Folder for all results; replaces the folder of an earlier demo."""
    rows: PositiveInt = 100_000
    """Number of rows to generate."""
    on: Literal["auto", "process", "ray"] = "auto"
    """Run all steps in this process (process), or train with Ray on this machine (auto). With ray, start a Ray cluster
    of two nodes here, run each step as a job, and compare all results with those of this machine alone."""


def run(request: DemoRequest, progress: Progress) -> Result:
    """Run every step. Return the evaluation's metrics, and the request with its answer in `details`.

    On a cluster, `details` also has `steps` (where each ran) and `compared`. Raises UserError if a result differs.
    """
    from cluster.ray_session import has_cluster, ray_session
    from jobs.serve import ServeRequest, serving
    from rayrec.sources.registry import source_of

    # A recipe of the model that trains in seconds, and the generator of its raw files.
    names = [name for name in MODELS.texts(request.model, ".yaml", "recipes") if name.endswith("-debug")]
    if not names:
        raise ConfigError(f"model '{request.model}': has no recipe whose name ends in -debug; choose another one")
    recipe = load_recipe(names[0])
    source = source_of(recipe.source.kind)
    data = source.generated
    if data is None:
        raise ConfigError(f"recipe '{names[0]}': source '{recipe.source.kind}' has no generator; choose another model")
    if request.on == "ray" and has_cluster():
        raise ConfigError("--on ray: the demo starts a cluster of its own; unset RAY_ADDRESS, or leave out --on")
    folder = request.output
    _replace_earlier_demo(folder)
    raw = folder / "raw"
    generate = {"source": recipe.source.kind, "rows": request.rows, "output": raw}
    if request.on == "ray":
        generated = _run_step("generate", generate, progress)
        evaluated, details = _both_ways(names[0], recipe, source, raw, folder.absolute(), progress)
    else:
        with nullcontext() if request.on == "process" else ray_session(progress=progress):
            progress.finish()
            generated = _run_step("generate", generate, progress)
            workers = 1 if request.on == "process" else WORKERS
            steps = _steps(names[0], raw / data.path, folder, data.evaluated, request.on, workers=workers)
            results = {step: _run_step(step, values, progress) for step, values in steps.items()}
            evaluated = results["evaluate"]
            serve = ServeRequest(model=(str(folder / "model"),), port=free_port())
            progress.message(f"\n$ {_line('serve', serve)}")
            with serving(serve, progress) as url:
                progress.finish()
                details = _ask(url, folder / "model", source.example_request(raw), progress)
    progress.message(f"\n{source.describe_quality(evaluated.metrics[data.evaluated], generated.details)}")
    return Result(
        command="demo",
        output=folder,
        rows=request.rows,
        metrics=evaluated.metrics,
        baselines=evaluated.baselines,
        details={**details, **{k: v for k, v in evaluated.details.items() if k == "drawn_negatives"}},
    )


def _steps(
    recipe: str, raw: Path, folder: Path, split: str, on: str, *, workers: int, precision: str | None = None
) -> dict[str, dict[str, Any]]:
    """Return the requests of the commands from raw files to a model in `folder`, in order."""
    dataset, trained, model = (folder / name for name in ("dataset", "run", "model"))
    return {
        "preprocess": {"recipe": recipe, "input": raw, "output": dataset, "on": on},
        "train": {
            "recipe": recipe, "data": dataset, "output": trained, "workers": workers, "precision": precision, "on": on
        },
        "evaluate": {"source": trained, "data": dataset, "split": split, "on": on},
        "export": {"run": trained, "output": model},
    }  # fmt: skip


def _line(command: str, request: Request) -> str:
    return shlex.join(["rayrec", command, *as_arguments(request)])


def _run_step(step: str, values: Mapping[str, Any], progress: Progress) -> Result:
    """Run a command in this process, as the line that is shown would."""
    command = load_command(step)
    request = build_request(command.request, values)
    progress.message(f"\n$ {_line(step, request)}")
    result = execute(command, request, progress)
    progress.message(describe_outcome(result))
    return result


def _both_ways(
    name: str, recipe: Recipe, source: "Source", raw: Path, folder: Path, progress: Progress
) -> tuple[Result, dict[str, Any]]:
    """Run the steps on this machine without a cluster, then as jobs of one, and compare what they have written.

    Return the evaluation, and the `details` of the demo's result. Raises UserError if anything differs.
    """
    from cluster.local_cluster import two_nodes
    from rayrec.inspection.equality import compare_datasets, compare_metrics, compare_scores, compare_weights
    from rayrec.training.run.folder import RunFolder

    data = source.generated
    assert data is not None
    alone, there = folder / "alone", folder / "cluster"

    def steps(place: Path, on: str) -> dict[str, dict[str, Any]]:
        both = _steps(name, raw / data.path, place, data.evaluated, on, workers=WORKERS, precision="bf16")
        one = {**both["train"], "output": place / "run-1", "workers": 1}
        if recipe.train.sharding.default == "auto":
            # The planner would choose by the nodes of the workers, and another plan adds gradients in another order.
            both["train"] |= {"set": ("train.sharding.default=row_wise",)}
        scored = {"model": place / "model", "input": place / "dataset", "output": place / "scored", "on": on}
        return {**both, "train, 1 worker": one, "predict": {**scored, "split": data.evaluated}}

    ran: list[dict[str, Any]] = []

    def note(place: str, step: str, execution: "Execution | None", seconds: float) -> None:
        """Add a step to the table of what ran where."""
        how = {} if execution is None else execution.model_dump()
        ran.append({
            "where": place,
            "step": step,
            "engine": how.get("engine", "its process"),
            "reads": how.get("reads"),
            "workers": how.get("workers"),
            "nodes": how.get("nodes"),
            "CPUs": how.get("cpus"),
            "seconds": round(seconds, 1),
        })  # fmt: skip

    # The steps on this machine alone.
    evaluations: list[Result] = []
    for step, values in steps(alone, "auto").items():
        result = _run_step(step.partition(",")[0], values, progress)
        note("this machine", step, result.execution, result.seconds)
        evaluations += [result] if step == "evaluate" else []
    # The same on the cluster, and what only a cluster shows: trials side by side, and a server.
    progress.message("")
    progress.stage("start a Ray cluster of two nodes")
    with two_nodes(folder / "logs") as head:
        progress.finish()
        for step, values in steps(there, "ray").items():
            result = _send_step(step.partition(",")[0], values, head.dashboard, progress)
            note("cluster", step, result.execution, result.seconds)
            evaluations += [result] if step == "evaluate" else []
        sweep = {"recipe": name, "data": there / "dataset", "output": there / "sweep", "trials": _TRIALS}
        sweep |= {"workers": 1, "set": ("train.epochs=1",)}
        result = _send_step("tune", sweep, head.dashboard, progress)
        trials = [RunFolder.open(run) for run in there.glob("sweep/trials/*/run")]
        note("cluster", f"tune, {len(trials)} trials", trials[0].execution, result.seconds)
        started = time.perf_counter()
        details, execution = _serve_on_cluster(there / "model", source.example_request(raw), head.dashboard, progress)
        note("cluster", "serve", execution, time.perf_counter() - started)
        progress.stage("stop the cluster")
    progress.finish()
    # What both have written is the same.
    evaluated, evaluated_there = evaluations
    compared = [
        compare_datasets(alone / "dataset", there / "dataset", RESULT_FILE),
        compare_weights(alone / "run-1", there / "run-1", "1 worker"),
        compare_weights(alone / "run", there / "run", f"{WORKERS} workers"),
        compare_metrics(evaluated.metrics, evaluated_there.metrics, _METRIC_TOLERANCE),
        compare_scores(alone / "scored" / "scores", there / "scored" / "scores", _SCORE_TOLERANCE),
    ]
    found = [
        {"this machine and the cluster": each.what, "compared": each.how, "differs": len(each.differences)}
        for each in compared
    ]
    progress.message(f"\n{text_table(ran)}\n\n{text_table(found)}")
    for each in compared:
        if each.differences:
            first = ", ".join(each.differences[:3])
            raise UserError(f"{each.what}: {len(each.differences)} differ on the cluster, the first: {first}")
    return evaluated_there, {**details, "steps": ran, "compared": found}


class _LatestLine(Progress):
    """Shows the latest line of a job's log as a note."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def message(self, text: str) -> None:
        self._progress.note(text)


def _send_step(step: str, values: Mapping[str, Any], dashboard: str, progress: Progress) -> Result:
    """Run a command as a job of the cluster, to its end; the result has the seconds from here."""
    from jobs.submit import COMMAND, SubmitRequest

    words = (step, *as_arguments(build_request(load_command(step).request, values)), "--json")
    request = SubmitRequest(command=words, address=dashboard)
    progress.message(f"\n$ {_line('submit', request)}")
    progress.stage(f"{step} on the cluster")
    submitted = execute(COMMAND, request, _LatestLine(progress))
    progress.finish()
    result = Result.model_validate(submitted.details["result"]).model_copy(update={"seconds": submitted.seconds})
    progress.message(describe_outcome(result))
    return result


def _serve_on_cluster(
    model: Path, to_rank: dict[str, Any] | None, dashboard: str, progress: Progress
) -> tuple[dict[str, Any], "Execution"]:
    """Serve the model folder by a job of the cluster and post one request; the job ends with the cluster."""
    from cluster.job_client import JobClient
    from cluster.ray_serve import serving
    from jobs.serve import ServeRequest
    from jobs.submit import COMMAND, SubmitRequest

    serve = ServeRequest(model=(str(model),), port=free_port())
    request = SubmitRequest(command=("serve", *as_arguments(serve)), address=dashboard, no_wait=True)
    progress.message(f"\n$ {_line('submit', request)}")
    progress.stage("serve on the cluster")
    job = execute(COMMAND, request, _LatestLine(progress)).details["job"]
    client = JobClient(dashboard)
    while True:
        with suppress(OSError, HTTPException):
            urllib.request.urlopen(f"{serve.listener.url}/healthz", timeout=5).close()
            break
        found = client.details(job)
        if found is None or found.status.is_terminal():
            raise UserError(f"serve on the cluster: {client.logs(job).strip().splitlines()[-1]}")
        time.sleep(0.5)
    progress.finish()
    return _ask(serve.listener.url, model, to_rank, progress), serving(dashboard)


def _ask(url: str, model: Path, to_rank: dict[str, Any] | None, progress: Progress) -> dict[str, Any]:
    """Post one request to a server of the model, `to_rank` or one that suits it; return the request and the answer."""
    from jobs.serve import curl_line, endpoint_of
    from rayrec.features.schema import Schema
    from rayrec.inference.export.examples import example_row

    verb, content = "rank", to_rank
    if content is None:
        schema, example = Schema.load(model), example_row(model)
        verb, content = "predict", {"instances": [example]}
        if schema.interactions is not None:
            verb, content = "recommend", {"user": example[schema.interactions.user], "k": 5}
    endpoint, body = endpoint_of(url, model.name, verb), json.dumps(content)
    progress.message(f"\n$ {curl_line(endpoint, body)}")
    post = urllib.request.Request(endpoint, body.encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(post, timeout=60) as response:
        answer = json.loads(response.read())
    progress.message(json.dumps(answer))
    return {"request": content, "answer": answer}


def _replace_earlier_demo(folder: Path) -> None:
    """Make `folder` empty and mark it as a demo's. Raises UserError if it holds something else."""
    if (folder / RESULT_FILE).is_file() and Result.load(folder).command == "demo":
        shutil.rmtree(folder)
    require_absent(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # If the demo is stopped at any moment, the next one still finds that the folder is a demo's.
    Result(command="demo", status="interrupted", output=folder, error="did not finish").save(folder)


def describe(result: Result) -> str:
    """Return the outcome, and commands to continue with."""
    assert isinstance(result.output, Path)
    place = result.output / "cluster" if "compared" in result.details else result.output
    return "\n".join([
        describe_result(result),
        "",
        f"Next: rayrec report {place / 'run'} --output report",
        f"      rayrec serve {place / 'model'}",
        "      rayrec inspect YOUR_FILE --label COLUMN --output mine.yaml",
    ])  # fmt: skip


COMMAND = Command("demo", DemoRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
