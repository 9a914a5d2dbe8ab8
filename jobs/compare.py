"""`rayrec compare`: better, or lucky?"""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from jobs.command import Command, PathTexts, Positional, Request, Result, describe_result, main
from jobs.stored_model import stored_model
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import Progress
from rayrec.common.text import distinct_ends
from rayrec.store.folders import new_folder
from rayrec.store.paths import Folder, to_path


class CompareRequest(Request):
    run: Annotated[PathTexts, Positional("RUN"), Field(min_length=2)]
    """Run folder or its URI; all runs need the same held-out rows."""
    output: Folder
    """New folder for report.html and report.json."""
    split: str | None = None
    """Split of the datasets; by default the one that training evaluates on."""

    def check(self) -> None:
        folders = self.folders()
        twice = next((folder for number, folder in enumerate(folders) if folder in folders[:number]), None)
        if twice is not None:
            raise ConfigError(f"{twice}: given twice; give every run once")

    def folders(self) -> list[Path]:
        """Return the absolute folders of the runs. Raises ConfigError on a wrong URI."""
        return [to_path(run).absolute() for run in self.run]


def run(request: CompareRequest, progress: Progress) -> Result:
    """Compare; `details.differences` has each pair of recipes by metric, and its verdict."""
    from rayrec.inspection.runs import ComparedRun, compare_runs, group_by_recipe, require_same_rows
    from rayrec.pages.page import write_page
    from rayrec.pages.runs import comparison_page

    # Runs can be compared that were judged on the same rows.
    folders = request.folders()
    names = [str(Path(*end)) for end in distinct_ends([folder.parts for folder in folders])]
    runs = [ComparedRun.open(folder, name) for folder, name in zip(folders, names, strict=True)]
    split = request.split or runs[0].dataset.split_to_judge(runs[0].folder.recipe.train.evaluation_split)
    if split is None:
        raise UserError(f"{runs[0].dataset.folder}: no held-out rows with labels; preprocess with a test split")
    runs[0].dataset.labelled_split(split)
    require_same_rows(runs, split)
    # Score these rows with every run; those with the same recipe tell what another seed changes.
    figures = {"kind": "comparison", **compare_runs(group_by_recipe(runs), split, stored_model, progress)}
    progress.finish()
    with new_folder(request.output) as folder:
        write_page(folder, comparison_page(figures), figures)
    return Result(
        command="compare",
        output=request.output,
        rows=figures["rows_scored"],
        details={name: figures[name] for name in ("split", "seed_deviation", "differences")},
    )


def describe(result: Result) -> str:
    """Return the verdict on each pair of recipes, and where the page is."""
    from rayrec.pages.runs import verdict_line

    found = result.details["differences"]
    lines = [verdict_line(difference) for difference in found] or ["The runs differ only in their seeds."]
    assert result.output is not None
    return "\n".join([*lines, describe_result(result), f"  {result.output}/report.html"])


COMMAND = Command("compare", CompareRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
