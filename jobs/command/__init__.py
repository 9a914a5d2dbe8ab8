"""Parts that all commands share: requests, results, the runner, the command line, the Python functions."""

from jobs.command.interface import as_arguments, main, parse_command
from jobs.command.request import (
    ByPosition,
    Metavar,
    Overrides,
    PathText,
    PathTexts,
    Positional,
    RecipeRequest,
    RecipeText,
    Request,
    TrainingRecipeRequest,
    absolute_path,
)
from jobs.command.result import RESULT_FILE, Result, describe_outcome, describe_result, terminal_width, text_table
from jobs.command.runner import Command, build_request, execute, load_command

__all__ = [
    "RESULT_FILE", "ByPosition", "Command", "Metavar", "Overrides", "PathText", "PathTexts", "Positional",
    "RecipeRequest", "RecipeText", "Request", "Result", "TrainingRecipeRequest", "absolute_path", "as_arguments",
    "build_request", "describe_outcome", "describe_result", "execute", "load_command", "main", "parse_command",
    "terminal_width",
    "text_table",
]  # fmt: skip
