"""The command line: parse, build a request, call the job, show the result.

Nothing heavy is imported before a command is known, so that `rayrec --help` answers at once.
"""

import sys
from typing import Annotated

import typer

from rayrec.cli.cluster import jobs, submit
from rayrec.cli.options import (
    FOLDER,
    DataOption,
    DebugOption,
    DeviceOption,
    JsonOption,
    NewOutputOption,
    PrecisionOption,
    RawInputOption,
    RecipeArgument,
    SetOption,
    TrainingWorkersOption,
    WorkersOption,
)
from rayrec.cli.run_job import run_job

app = typer.Typer(
    name="rayrec",
    help="From raw click logs to a served ranking model: Spark on Ray, Ray Data, Ray Train with TorchRec, Ray Serve.",
    no_args_is_help=True,
    # Plain help: importing rich's renderers takes longer than all the rest together.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """The `rayrec` program: exits with 0 done, 1 failed, 2 wrong usage or config, 130 interrupted."""
    try:
        code = app(prog_name="rayrec", standalone_mode=False)
    except typer.TyperException as error:
        message = " ".join(error.format_message().split()).removesuffix(".")
        if message:
            print(f"error: {message}; see `rayrec {_command()}--help`", file=sys.stderr)
        code = error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        print("error: interrupted", file=sys.stderr)
        code = 130
    sys.exit(code if isinstance(code, int) else 0)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"rayrec {version('rayrec')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    model: Annotated[str | None, typer.Argument(help="dlrm, dcnv2, neumf or wide_deep.", show_default="dlrm")] = None,
    output: Annotated[
        str | None, typer.Option(help="Folder for all that the demo makes.", metavar="FOLDER", show_default="demo")
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Rows to generate.", show_default="100000")] = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Generate data, preprocess, train on two workers, evaluate, export, serve one request."""
    run_job("demo", json, debug, model=model, output=output, rows=rows)


@app.command()
def doctor(json: JsonOption = False, debug: DebugOption = False) -> None:
    """Check this machine and environment, and print the fix for each thing wrong."""
    run_job("doctor", json, debug)


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this recipe instead of the list.")] = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List the shipped recipes, or print one."""
    run_job("recipes", json, debug, name=name)


@app.command()
def generate(
    source: Annotated[str, typer.Argument(help="Kind of the source: criteo, interactions or outbrain.")],
    rows: Annotated[int, typer.Option(help="Rows to write.")],
    output: NewOutputOption,
    seed: Annotated[int | None, typer.Option(help="Seed of the rows.", show_default="0")] = None,
    days: Annotated[
        int | None, typer.Option(help="Write day_0 ... as Criteo Terabyte has them.", show_default="one file")
    ] = None,
    compress: Annotated[bool, typer.Option("--compress", help="Write gzip files.")] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Write data with the real layout, drawn from a known truth."""
    run_job("generate", json, debug, source=source, rows=rows, output=output, seed=seed, days=days, compress=compress)


@app.command()
def preprocess(
    recipe: RecipeArgument,
    input: RawInputOption,
    output: NewOutputOption,
    set: SetOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Turn raw logs into a dataset folder, with Spark on Ray."""
    run_job("preprocess", json, debug, recipe=recipe, input=input, output=output, set=set)


@app.command()
def train(
    recipe: RecipeArgument,
    data: DataOption,
    output: Annotated[str, typer.Option(help="Run folder; must not exist, unless with --resume.", metavar=FOLDER)],
    workers: TrainingWorkersOption = None,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --output where it stopped.")] = False,
    set: SetOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Train a recipe's model on a dataset folder, with Ray Train and TorchRec."""
    run_job(
        "train", json, debug, recipe=recipe, data=data, output=output, workers=workers, device=device,
        precision=precision, resume=resume, set=set,
    )  # fmt: skip


@app.command()
def run(
    recipe: RecipeArgument,
    input: RawInputOption,
    output: Annotated[
        str, typer.Option(help="Folder of all stages; that of an earlier attempt is continued.", metavar=FOLDER)
    ],
    workers: TrainingWorkersOption = None,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    set: SetOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Preprocess, train, evaluate and export in one job; run again, it continues where it stopped."""
    run_job(
        "run", json, debug, recipe=recipe, input=input, output=output, workers=workers, device=device,
        precision=precision, set=set,
    )  # fmt: skip


@app.command()
def evaluate(
    source: Annotated[str, typer.Argument(metavar="RUN|MODEL", help="Run folder or model folder, or its URI.")],
    data: DataOption,
    split: Annotated[str | None, typer.Option(help="Split of the dataset.", show_default="test")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Of a run: best, latest, or a step.", show_default="best")
    ] = None,
    workers: WorkersOption = None,
    device: DeviceOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Compute exact metrics over a split, each row once."""
    run_job(
        "evaluate", json, debug, source=source, data=data, split=split, checkpoint=checkpoint, workers=workers,
        device=device,
    )  # fmt: skip


@app.command()
def predict(
    model: Annotated[str, typer.Argument(metavar="RUN|MODEL", help="Run folder or model folder, or its URI.")],
    output: NewOutputOption,
    input: Annotated[
        str | None,
        typer.Option(help="Dataset folder or URI; with --raw, raw rows (also a file or glob).", show_default=False),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="The input is raw rows, not a dataset folder.")] = False,
    split: Annotated[str | None, typer.Option(help="Split of the dataset folder.", show_default="test")] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Instead of an input: so many items for every user.", show_default=False)
    ] = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Score a file or folder, streaming; or recommend items to every user."""
    run_job(
        "predict", json, debug, model=model, input=input, output=output, raw=raw, split=split, top_k=top_k,
    )  # fmt: skip


@app.command()
def export(
    run: Annotated[str, typer.Argument(help="Run folder, or its URI.")],
    output: NewOutputOption,
    checkpoint: Annotated[str | None, typer.Option(help="best, latest, or a step.", show_default="best")] = None,
    tables: Annotated[
        str | None, typer.Option(help="Tables stored as fp32, fp16 or int8.", show_default="fp32")
    ] = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Write the model folder that serve and predict read."""
    run_job("export", json, debug, run=run, output=output, checkpoint=checkpoint, tables=tables)


@app.command()
def tune(
    recipe: RecipeArgument,
    data: DataOption,
    output: Annotated[
        str, typer.Option(help="Folder of the sweep; must not exist, unless with --resume.", metavar=FOLDER)
    ],
    trials: Annotated[int, typer.Option(help="Trials to run.")],
    space: Annotated[
        str | None, typer.Option(help="Search space, a YAML file.", show_default="that of the kind of model")
    ] = None,
    search: Annotated[str | None, typer.Option(help="optuna, random, grid or pbt.", show_default="optuna")] = None,
    scheduler: Annotated[str | None, typer.Option(help="none or asha.", show_default="none")] = None,
    metric: Annotated[
        str | None, typer.Option(help="What is searched for.", show_default="train.checkpoint.keep_best")
    ] = None,
    concurrent: Annotated[
        int | None, typer.Option(help="Trials at once.", show_default="as many as fit the cluster")
    ] = None,
    confirm: Annotated[
        int | None, typer.Option(help="Train so many of the best trials again with other seeds.", show_default="0")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the sweep in --output.")] = False,
    workers: TrainingWorkersOption = None,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    set: SetOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Search for better values of a recipe's keys, with Ray Tune."""
    run_job(
        "tune", json, debug, recipe=recipe, data=data, output=output, trials=trials, space=space, search=search,
        scheduler=scheduler, metric=metric, concurrent=concurrent, confirm=confirm, resume=resume, workers=workers,
        device=device, precision=precision, set=set,
    )  # fmt: skip


@app.command()
def plan(
    recipe: RecipeArgument,
    data: DataOption,
    workers: Annotated[int | None, typer.Option(help="Workers to plan for.", show_default="1")] = None,
    workers_per_node: Annotated[
        int | None, typer.Option(help="Workers on one machine.", show_default="all of them")
    ] = None,
    memory_per_worker: Annotated[
        str | None, typer.Option(help="Memory of one worker for tables.", show_default="80GB")
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(help="Estimate a step on a100, h100 or h200.", show_default="no estimate")
    ] = None,
    set: SetOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show how the tables would be sharded, without training."""
    run_job(
        "plan", json, debug, recipe=recipe, data=data, workers=workers, workers_per_node=workers_per_node,
        memory_per_worker=memory_per_worker, hardware=hardware, set=set,
    )  # fmt: skip


@app.command()
def serve(
    model: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Folders (or URIs) of models, versions, runs; or NAME=FOLDER."),
    ],
    port: Annotated[int | None, typer.Option(help="HTTP port.", show_default="8000")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="gRPC port; needs --host 0.0.0.0.", show_default="none")] = None,
    log_folder: Annotated[
        str | None,
        typer.Option(help="Folder for logs of JSON lines.", metavar="FOLDER", show_default="Ray Serve's logs"),
    ] = None,
    token_file: Annotated[
        str | None,
        typer.Option(help="Tokens, one a line.", metavar="FILE", show_default="those of RAYREC_SERVE_TOKENS, if any"),
    ] = None,
    tls_certificate: Annotated[
        str | None, typer.Option(help="PEM file, for HTTPS.", metavar="FILE", show_default=False)
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(help="PEM file of its key.", metavar="FILE", show_default=False)
    ] = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Answer HTTP and gRPC requests with raw features, through Ray Serve."""
    run_job(
        "serve", json, debug, model=model, port=port, host=host, grpc_port=grpc_port, log_folder=log_folder,
        token_file=token_file, tls_certificate=tls_certificate, tls_key=tls_key,
    )  # fmt: skip


@app.command()
def benchmark(
    what: Annotated[str, typer.Argument(help="train, inference, ingest or preprocess.")],
    recipe: RecipeArgument,
    data: Annotated[
        str | None, typer.Option(help="Dataset folder.", metavar=FOLDER, show_default="made from generated rows")
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Rows to generate.", show_default="200000")] = None,
    warmup_steps: Annotated[int | None, typer.Option(help="Steps that are not counted.", show_default="20")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps that are.", show_default="100")] = None,
    batch_size: Annotated[
        list[int] | None, typer.Option(help="Of inference; repeatable.", show_default="1 to 16384")
    ] = None,
    workers: TrainingWorkersOption = None,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    set: SetOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure one part on this machine."""
    run_job(
        "benchmark", json, debug, what=what, recipe=recipe, data=data, rows=rows, warmup_steps=warmup_steps,
        steps=steps, batch_size=batch_size, workers=workers, device=device, precision=precision, set=set,
    )  # fmt: skip


# Options of submit may stand anywhere on the line; what it does not know is the submitted command's.
app.command(context_settings={"ignore_unknown_options": True})(submit)
app.command()(jobs)


def _command() -> str:
    """The command that the user typed, followed by a space; empty where there is none."""
    names = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    return next((f"{argument} " for argument in sys.argv[1:] if argument in names), "")
