"""`rayrec inspect`: what raw files hold and a recipe for them, or how new files differ from a dataset."""

import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, PositiveInt

from jobs.command import Command, Metavar, PathTexts, Positional, Request, Result, as_arguments, main, text_table
from rayrec.common.errors import ConfigError
from rayrec.common.plugins import MODELS
from rayrec.common.progress import Progress
from rayrec.common.text import format_number, format_share, printable, shell_line
from rayrec.config.validation import is_yaml_file
from rayrec.store.folders import OutputKind, is_read_from
from rayrec.store.paths import Folder, LocalPath

_EXAMPLES_WIDTH = 30
_EXAMPLE_CHARACTERS = 200


class InspectRequest(Request):
    path: Annotated[PathTexts, Positional("PATH"), Field(min_length=1)]
    """Raw file, folder, glob or URI; several form one table."""
    label: Annotated[str, Metavar("COLUMN")] | None = None
    """Label column, or a condition such as 'rating>=4'; by default the one column named like a label. For users and
    items: the choices, by default all rows.
    """
    missing_label: Annotated[int, Metavar("0|1"), Field(ge=0, le=1)] | None = None
    """Label of rows without one; by default these rows are dropped."""
    model: Annotated[str, AfterValidator(MODELS.known), Metavar("KIND")] | None = None
    """Kind of model; by default wide_deep, or neumf for a plain table of users and items."""
    rows: PositiveInt = 100_000
    """Number of rows to sample from all files."""
    output: Annotated[LocalPath, Metavar("RECIPE.yaml")] | None = None
    """New recipe file; without it the recipe is printed."""
    page: Annotated[LocalPath, Metavar("PAGE.html")] | None = None
    """New page about the table; its figures go beside it as JSON."""
    against: Folder | None = None
    """Dataset to compare the files with; exit with 1 if they have drifted."""

    outputs: ClassVar[Mapping[str, OutputKind]] = {"output": "file", "page": "file", "figures": "file"}

    @property
    def figures(self) -> Path | None:
        """File of the page's figures."""
        return self.page and self.page.with_suffix(".json")

    def check(self) -> None:
        if self.output is not None and not is_yaml_file(self.output):
            raise ConfigError(f"--output {self.output}: a recipe file's name ends in .yaml")

        if self.page is not None and self.page.suffix != ".html":
            raise ConfigError(f"--page {self.page}: the name of a page ends in .html")
        for option, given in (("--output", self.output), ("--page", self.page)):
            if given is not None and self.against is not None:
                raise ConfigError(f"{option}: nothing is written with --against; leave it out")
        for option, value in (("--label", self.label), ("--missing-label", self.missing_label)):
            if value is not None and self.against is not None:
                raise ConfigError(f"{option}: the dataset says what the label is; leave it out with --against")


def run(request: InspectRequest, progress: Progress) -> Result:
    """Inspect; `rows` are those of the sample.

    `details.columns` has the facts and the decision of each column, `details.histories` the keys whose past the recipe
    has, with the AUC on held-out rows with and without it, `details.warnings` what to look at,
    `details.notes` the shipped recipes for files of this layout and how many held-out rows have new people or items
    (`details.known_values`),
    `details.rejected` the bad rows and others that preprocessing by this recipe leaves out where the sample was read,
    `details.recipe` the text of the recipe, `details.next` the command that trains it, None if too many rows are bad
    for it. With `against`, `details.drift` has the figures of each feature, and the
    status is `failed` if something has drifted.
    """
    if request.against is not None:
        return _compare(request, request.against, progress)
    from rayrec.inspection.profiles import table_figures
    from rayrec.inspection.table.inspected_table import inspect_table
    from rayrec.pages.page import write_page
    from rayrec.pages.profiles import inspection_page
    from rayrec.recipes import write_recipe_file

    # Told first: without a header a label cannot be found, which is an error.
    notes = _shipped_recipes_for(request.path)
    for note in notes:
        progress.message(f"note: {note}")
    # Read a sample, decide what each column becomes, write the recipe's text, and try it on the sample.
    progress.stage("read a sample")
    # The recipe says what it was written by: all that its content depends on, but for the size of the sample.
    asked = InspectRequest(
        path=request.path, label=request.label, missing_label=request.missing_label, model=request.model
    )
    command = shell_line(["rayrec", "inspect", *as_arguments(asked)])
    found = inspect_table(
        request.path, request.label, request.model, request.rows, command, missing_label=request.missing_label
    )
    progress.finish()
    if new := found.new_values:
        is_all = found.sample.rows.num_rows == found.sample.total_rows
        notes.append(new if is_all else f"{new} (of the sample's rows; among all rows perhaps fewer are new)")
        progress.message(f"note: {notes[-1]}")
    # What was found, as a program reads it; a person sees the same as a table, a page, and the recipe's comments.
    inputs = [word for path in request.path for word in ("--input", path)]
    around = next((path for path in request.path if is_read_from(path, Path("out"))), None)
    output = "out" if around is None else os.path.relpath(Path(around).absolute().parent / "out")
    training = ["rayrec", "run", str(request.output or "RECIPE.yaml"), *inputs, "--output", output]
    details: dict[str, Any] = {
        "total_rows": found.sample.total_rows,
        "columns": found.columns_as_json(),
        "logistic_regression_auc": found.regressed.auc,
        "crosses": [asdict(cross) for cross in found.regressed.crosses],
        "histories": [asdict(history) for history in found.histories],
        "known_values": {name: counts.model_dump() for name, counts in found.known_values.items()},
        "warnings": found.warnings,
        "notes": notes,
        "rejected": {
            "rows": found.left_out.bad,
            "share": found.left_out.share,
            "reasons": dict(found.left_out.reasons),
            "examples": [{**row, "text": row["text"][:_EXAMPLE_CHARACTERS]} for row in found.left_out.examples],
        },
        "recipe": found.recipe,
        "next": shell_line(training) if found.can_run else None,
    }
    if request.page is not None:
        figures = table_figures(found, ", ".join(request.path))
        write_page(request.page.parent, inspection_page(figures), figures, request.page.name)
        progress.message(f"{request.page} is written")
    if request.output is not None:
        write_recipe_file(request.output, found.recipe)
    else:
        progress.message(_overview(details))
    return Result(command="inspect", output=request.output, rows=found.sample.rows.num_rows, details=details)


def _compare(request: InspectRequest, against: Path, progress: Progress) -> Result:
    from rayrec.ingest.dataset import Dataset
    from rayrec.inspection.drift import compare

    dataset = Dataset.open(against)
    progress.stage("compare")
    drift = compare(request.path, dataset, request.rows)
    return Result(
        command="inspect",
        status="failed" if drift.verdict else "done",
        rows=drift.rows,
        details={"drift": drift.as_json()},
        error=f"drifted: {drift.verdict}" if drift.verdict else None,
    )


def _shipped_recipes_for(paths: Sequence[str]) -> list[str]:
    """Return a line on the recipes for files of this layout, if a source says that it is its own."""
    from rayrec.common.plugins import SOURCES
    from rayrec.config.validation import parse_yaml
    from rayrec.inspection.table.file_form import first_lines, first_with_rows
    from rayrec.raw.input_files import list_inputs
    from rayrec.raw.table_reader import format_of
    from rayrec.recipes import shipped_recipes
    from rayrec.sources.registry import source_of

    file = first_with_rows(list_inputs(paths))
    if format_of(file) != "delimited":
        return []
    lines = first_lines(file)
    kind = next((kind for kind in SOURCES.packages if source_of(kind).recognizes(lines)), None)
    names = [name for name, text in shipped_recipes().items() if parse_yaml(text)["source"]["kind"] == kind]
    return [f"the files have the layout of source.kind '{kind}'; recipes for it: {', '.join(names)}"] if names else []


def describe(result: Result) -> str:
    """Return the recipe, or if it was written to a file, a table of the columns, the warnings and the next command."""
    if "drift" in result.details:
        return _drift_table(result)
    if result.output is None:
        return str(result.details["recipe"]).rstrip()
    command = result.details["next"]
    following = f"; next:\n\n    {command}" if command is not None else "; fix the bad rows first"
    return f"{_overview(result.details)}\n\n{result.output} is written{following}"


def _overview(details: Mapping[str, Any]) -> str:
    rows = []
    for column in details["columns"]:
        estimate = column["distinct_estimate"]
        values = f"{column['distinct']:,}" + (f" (about {estimate:,})" if estimate > column["distinct"] else "")
        rows.append({
            "column": column["name"],
            "becomes": column["kind"],
            "missing": format_share(column["missing_share"]) if column["missing_share"] else "",
            "values": values,
            "AUC alone": max(column["auc"].values(), default=None),
            "examples": textwrap.shorten(", ".join(column["examples"]), _EXAMPLES_WIDTH, placeholder=" ..."),
            "why": column["reason"],
        })  # fmt: skip
    lines = [text_table(rows, below="why")]
    if (baseline := details["logistic_regression_auc"]) is not None:
        lines += [
            "",
            f"AUC of a logistic regression on these columns, out of fold on the sample: {format_number(baseline)}",
        ]
        for cross in details["crosses"]:
            lines.append(f"with the label rate of {' x '.join(cross['keys'])}: {format_number(cross['auc'])}")
    if details["histories"]:
        lines += ["", f"AUC on rows that the recipe holds out: {format_number(details['histories'][0]['without'])}"]
        for history in details["histories"]:
            lines.append(f"with the past of {' x '.join(history['by'])}: {format_number(history['auc'])}")
    lines += ["", *(f"warning: {printable(warning)}" for warning in details["warnings"])] if details["warnings"] else []
    return "\n".join(lines)


def _drift_table(result: Result) -> str:
    """Return the figures of each feature, those that differ most first, and the verdict."""
    from rayrec.pages.profiles import drift_rows

    drift = result.details["drift"]
    lines = [text_table(drift_rows(drift["features"])), ""] if drift["features"] else []
    lines += [f"new column, not in the dataset: {name}" for name in drift["new_columns"]]
    limit = f"a stability index above {drift['limit']:g} that chance does not explain"
    lines.append(f"{result.error or 'nothing has drifted'} ({result.rows:,} rows; drifted: {limit})")
    return "\n".join(lines)


COMMAND = Command("inspect", InspectRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
