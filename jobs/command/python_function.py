"""The Python function of a command, made from its request."""

import inspect
import textwrap
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from jobs.command.fields import RequestField, fields_of
from jobs.command.result import Result
from jobs.command.runner import Command, build_request, execute
from rayrec.common.console import console_progress
from rayrec.common.progress import SilentProgress


def python_function(command: Command[Any]) -> Callable[..., Result]:
    """Return a function with a parameter for each field, which runs the command and returns its result.

    Positional and required fields, and those annotated `ByPosition`, may be given by position. Errors that the user can
    fix are `rayrec.common.errors.UserError`, in one line.
    """
    fields = fields_of(command.request)
    progress_parameter = inspect.Parameter("progress", inspect.Parameter.KEYWORD_ONLY, default=True, annotation=bool)
    signature = inspect.Signature([*map(_parameter, fields), progress_parameter], return_annotation=Result)

    def call(*args: Any, **kwargs: Any) -> Result:
        values = signature.bind(*args, **kwargs).arguments
        shown = values.pop("progress", True)
        with TemporaryDirectory(prefix="rayrec-frame-") as folder:
            given = {name: _as_file(value, folder, name) for name, value in values.items() if value is not None}
            request = build_request(command.request, given)
            with console_progress() if shown else nullcontext(SilentProgress()) as progress:
                return execute(command, request, progress)

    call.__name__ = call.__qualname__ = command.name
    call.__doc__ = docstring(command)
    # What `help` shows first: names and defaults; the types are in api.pyi.
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    call.__signature__ = signature.replace(parameters=plain)  # type: ignore[attr-defined]
    return call


def _as_file(value: Any, folder: str, name: str) -> Any:
    """Return the path of a data frame's rows, which are written for the time of the call; other values as they are."""
    if hasattr(value, "collect_schema") and hasattr(value, "collect"):
        value = value.collect()  # a lazy frame of polars
    if not hasattr(value, "__arrow_c_stream__"):
        return value
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = f"{folder}/{name}.parquet"
    pq.write_table(pa.table(value), path)
    return path


def docstring(command: Command[Any]) -> str:
    """Return the docstring of the command's function: what it does, and what each parameter is."""
    texts = [f"{field.name}: {field.help}" for field in fields_of(command.request)]
    texts.append("progress: Show progress on stderr.")
    indented = partial(textwrap.wrap, width=116, initial_indent=" " * 4, subsequent_indent=" " * 8)
    lines = [line for text in texts for line in indented(text)]
    return "\n".join([command.listed.text, "", "Args:", *lines])


def _parameter(field: RequestField) -> inspect.Parameter:
    return inspect.Parameter(
        field.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD if field.is_by_position else inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if field.is_required else field.default,
        annotation=field.type,
    )
