"""The options that several commands share."""

from typing import Annotated

import typer

RecipeArgument = Annotated[str, typer.Argument(help="Name of a shipped recipe (see `rayrec recipes`), or a YAML file.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override of the recipe; repeatable.", metavar="SECTION.KEY=VALUE"),
]
FOLDER = "FOLDER|URI"
DataOption = Annotated[str, typer.Option(help="Dataset folder: the output of `rayrec preprocess`.", metavar=FOLDER)]
RawInputOption = Annotated[
    list[str], typer.Option(help="Raw file, folder, glob or URI; repeatable; SPLIT=PATH where files are splits.")
]
NewOutputOption = Annotated[str, typer.Option(help="Folder to write; must not exist.", metavar=FOLDER)]
WorkersOption = Annotated[
    int | None, typer.Option(help="Worker processes (train.workers).", show_default="the recipe's")
]
TrainingWorkersOption = Annotated[
    str | None,
    typer.Option(help="Worker processes (train.workers); MIN:MAX trains elastically.", show_default="the recipe's"),
]
DeviceOption = Annotated[
    str | None, typer.Option(help="auto, cpu or cuda (train.device).", show_default="the recipe's")
]
PrecisionOption = Annotated[
    str | None,
    typer.Option(help="auto, fp32, tf32, bf16 or fp16 (train.precision).", show_default="the recipe's"),
]
AddressOption = Annotated[
    str | None,
    typer.Option(help="URL of the cluster's dashboard.", show_default="RAY_ADDRESS, else http://127.0.0.1:8265"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print only the result, as JSON.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks and debug logs.")]
