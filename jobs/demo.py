"""`rayrec demo`: generate raw logs, take them through all steps to an answer over HTTP, and show each step's command.

With `--on ray` each step runs as a job on a Ray cluster of two nodes, which the demo starts.
"""

import json
import shutil
import time
import urllib.request
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

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
from jobs.command.placement import PlacedRequest
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.machine import free_port
from rayrec.common.plugins import MODELS
from rayrec.common.progress import Progress
from rayrec.common.text import shell_line
from rayrec.config.execution import SERVE
from rayrec.recipes import load_recipe
from rayrec.store.folders import OutputKind
from rayrec.store.paths import LocalPath

WORKERS = 2
_TRIALS = 4


class DemoRequest(PlacedRequest):
    model: Annotated[str, AfterValidator(MODELS.known), Positional("|".join(MODELS.packages))] = "dlrm"
    """Kind of model."""
    output: LocalPath = Path("demo")
    """Folder for all results; replaces the folder of an earlier demo."""
    rows: PositiveInt = 100_000
    """Number of rows to generate."""
    on: Literal["auto", "process", "ray"] = "auto"
    """Run all steps in this process (process), or train with Ray on this machine (auto). With ray, start a Ray cluster
    of two nodes here, and run each step as a job of it."""

    outputs: ClassVar[Mapping[str, OutputKind]] = {"output": "place"}

    def owns(self, output: Path) -> bool:
        return (output / RESULT_FILE).is_file() and Result.load(output).command == "demo"


def run(request: DemoRequest, progress: Progress) -> Result:
    """Run every step. Return the evaluation's metrics, and the request with its answer in `details`.

    On a cluster, `details.steps` also says what did each step.
    """
    from cluster.local_cluster import two_nodes
    from cluster.ray_session import has_cluster, ray_session
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
    on_cluster = request.on == "ray"
    if on_cluster and has_cluster():
        raise ConfigError("--on ray: the demo starts a cluster of its own; unset RAY_ADDRESS, or leave out --on")
    # Jobs of a cluster run in folders of their own.
    folder = request.output.absolute() if on_cluster else request.output
    if request.owns(folder):
        shutil.rmtree(folder)
    # If the demo is stopped at any moment, the next one still finds that the folder is a demo's.
    Result(command="demo", status="interrupted", output=folder, error="did not finish").save(folder)
    raw, dataset, trained, model = (folder / name for name in ("raw", "dataset", "run", "model"))
    # The commands, from raw files to a model.
    train = {"recipe": names[0], "data": dataset, "output": trained, "on": request.on}
    train["workers"] = 1 if request.on == "process" else WORKERS
    steps: dict[str, dict[str, Any]] = {
        "preprocess": {"recipe": names[0], "input": raw / data.path, "output": dataset, "on": request.on},
        "train": train,
        "evaluate": {"source": trained, "data": dataset, "split": data.evaluated, "on": request.on},
        "export": {"run": trained, "output": model},
    }
    if on_cluster:
        # The planner may give each worker whole tables, by the nodes of the workers; by rows all have a part of each.
        train["set"] = ("train.sharding.default=row_wise",) if recipe.train.sharding.default == "auto" else ()
        # What a cluster is for besides: a pool of scorers, and trials side by side.
        scores = {"model": model, "input": dataset, "split": data.evaluated, "output": folder / "scored"}
        steps["predict"] = {**scores, "on": "ray"}
        sweep = {"recipe": names[0], "data": dataset, "output": folder / "sweep", "trials": _TRIALS}
        steps["tune"] = {**sweep, "workers": 1, "set": ("train.epochs=1",)}
    # The raw files are made here, whatever runs the commands.
    generate = {"source": recipe.source.kind, "rows": request.rows, "output": raw}
    if on_cluster:
        generated = _run_step("generate", generate, progress)
        progress.stage("start a Ray cluster of two nodes")
        with two_nodes(folder / "logs") as head:
            progress.finish()
            results = {step: _send_step(step, values, head.dashboard, progress) for step, values in steps.items()}
            began = time.monotonic()
            answered = _ask_cluster(model, source.example_request(raw), head.dashboard, progress)
            seconds = time.monotonic() - began
            progress.stage("stop the cluster")
        progress.finish()
        ran = [_what_ran(step, result) for step, result in results.items()]
        # The server ends with the cluster, so its job has no result.
        ran.append({"step": "serve", "engine": SERVE, "workers": recipe.serve.replicas, "seconds": round(seconds, 1)})
        progress.message(f"\n{text_table(ran)}")
        answered["steps"] = ran
    else:
        with nullcontext() if request.on == "process" else ray_session(progress=progress):
            progress.finish()
            generated = _run_step("generate", generate, progress)
            results = {step: _run_step(step, values, progress) for step, values in steps.items()}
            answered = _ask_here(model, source.example_request(raw), progress)
    evaluated = results["evaluate"]
    progress.message(f"\n{source.describe_quality(evaluated.metrics[data.evaluated], generated.details)}")
    return Result(
        command="demo",
        output=folder,
        rows=request.rows,
        metrics=evaluated.metrics,
        baselines=evaluated.baselines,
        details={**answered, **{k: v for k, v in evaluated.details.items() if k == "drawn_negatives"}},
    )


def _line(command: str, request: Request) -> str:
    return shell_line(["rayrec", command, *as_arguments(request)])


def _run_step(step: str, values: Mapping[str, Any], progress: Progress) -> Result:
    """Run a command in this process, as the line that is shown would."""
    command = load_command(step)
    request = build_request(command.request, values)
    progress.message(f"\n$ {_line(step, request)}")
    result = execute(command, request, progress)
    progress.message(describe_outcome(result))
    return result


class _LatestLine(Progress):
    """Shows the latest line of a job's log as a note."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def message(self, text: str) -> None:
        self._progress.note(text)


def _send_step(step: str, values: Mapping[str, Any], dashboard: str, progress: Progress) -> Result:
    """Run a command as a job of the cluster, to its end; the result has the seconds from here."""
    words = (step, *as_arguments(build_request(load_command(step).request, values)), "--json")
    submitted = _submit(words, dashboard, progress)
    progress.finish()
    result = Result.model_validate(submitted.details["result"]).model_copy(update={"seconds": submitted.seconds})
    progress.message(describe_outcome(result))
    return result


def _submit(words: tuple[str, ...], dashboard: str, progress: Progress, *, no_wait: bool = False) -> Result:
    """Send a command to the cluster, as the line that is shown would."""
    from jobs.submit import COMMAND, SubmitRequest

    request = SubmitRequest(command=words, address=dashboard, no_wait=no_wait)
    progress.message(f"\n$ {_line('submit', request)}")
    progress.stage(f"{words[0]} on the cluster")
    return execute(COMMAND, request, _LatestLine(progress))


def _what_ran(step: str, result: Result) -> dict[str, Any]:
    """Return what did a step on the cluster, as a row of a table."""
    how = {} if result.execution is None else result.execution.model_dump()
    return {
        "step": step,
        "engine": how.get("engine", "its process"),
        **{name: how.get(name) for name in ("reads", "workers", "nodes")},
        "CPUs": how.get("cpus"),
        "seconds": round(result.seconds, 1),
    }


def _ask_here(model: Path, to_rank: dict[str, Any] | None, progress: Progress) -> dict[str, Any]:
    """Serve the model folder from this process and post one request."""
    from jobs.serve import ServeRequest, serving

    serve = ServeRequest(model=(str(model),), port=free_port())
    progress.message(f"\n$ {_line('serve', serve)}")
    with serving(serve, progress) as url:
        progress.finish()
        return _ask(url, model, to_rank, progress)


def _ask_cluster(model: Path, to_rank: dict[str, Any] | None, dashboard: str, progress: Progress) -> dict[str, Any]:
    """Serve the model folder by a job of the cluster and post one request; the job ends with the cluster."""
    from cluster.job_client import JobClient
    from jobs.serve import ServeRequest

    serve = ServeRequest(model=(str(model),), port=free_port())
    job = _submit(("serve", *as_arguments(serve)), dashboard, progress, no_wait=True).details["job"]
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
    return _ask(serve.listener.url, model, to_rank, progress)


def _ask(url: str, model: Path, to_rank: dict[str, Any] | None, progress: Progress) -> dict[str, Any]:
    """Post one request to a server of the model, `to_rank` or one that suits it; return the request and the answer."""
    from jobs.serve import curl_line, endpoint_of
    from rayrec.features.schema import Schema
    from rayrec.inference.examples import example_request

    verb, content = "rank", to_rank
    if content is None:
        schema = Schema.load(model)
        verb, content = example_request(model)
        if verb == "predict" and schema.interactions is not None:
            verb, content = "recommend", {"user": content["instances"][0][schema.interactions.user], "k": 5}
    endpoint, body = endpoint_of(url, model.name, verb), json.dumps(content)
    progress.message(f"\n$ {curl_line(endpoint, body)}")
    post = urllib.request.Request(endpoint, body.encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(post, timeout=60) as response:
        answer = json.loads(response.read())
    progress.message(json.dumps(answer))
    return {"request": content, "answer": answer}


def describe(result: Result) -> str:
    """Return the outcome, and commands to continue with."""
    assert isinstance(result.output, Path)
    return "\n".join([
        describe_result(result),
        "",
        f"Next: {shell_line(['rayrec', 'report', str(result.output / 'run'), '--output', 'report'])}",
        f"      {shell_line(['rayrec', 'serve', str(result.output / 'model')])}",
        "      rayrec inspect YOUR_FILE --label COLUMN --output mine.yaml",
    ])  # fmt: skip


COMMAND = Command("demo", DemoRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
