"""`rayrec runs`: lists the runs below a folder, with what differs between their recipes and their metrics."""

import textwrap
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import TypeAdapter

from jobs.command import RESULT_FILE, Command, Positional, Request, Result, main, terminal_width, text_table
from rayrec.common.errors import UserError
from rayrec.common.progress import Progress
from rayrec.common.text import distinct_ends
from rayrec.config.evaluate import higher_is_better
from rayrec.store.paths import Folder

if TYPE_CHECKING:
    from rayrec.recipes import Recipe

_DIFFERENT = "differs in"
"""Column of the values of the recipe's keys that not all runs have."""
_SHOWN_METRICS = 2
_NO_SETTINGS: dict[str, Any] = {"name": True, "description": True, "evaluate": {"baselines"}}
"""What a recipe says about itself, and figures of other models: no run is trained differently for these."""
_Key = tuple[str, ...]
_METRICS = TypeAdapter(dict[str, dict[str, float | None]])


class RunsRequest(Request):
    folder: Annotated[Folder, Positional("FOLDER|URI")]
    """Folder with run folders anywhere below it, such as a search or several outputs of `rayrec run`."""


def run(request: RunsRequest, progress: Progress) -> Result:
    """List; `rows` is None, and `details.runs` has each run.

    A run has `name` (its path below the folder), `when`, `status` (done, unfinished, failed, interrupted or broken),
    `recipe`, `model`, `steps`, `rows`, `seconds` of training, `metrics` by split, and `settings`: its values of the
    recipe's keys in which the runs differ. Raises UserError if there is no run.
    """
    from rayrec.recipes import differing_values

    # Every run below the folder; of one that can be read also the recipe.
    found: list[dict[str, Any]] = []
    recipes: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for folder in _run_folders(request.folder):
        if _repeats_another(folder):
            continue
        name = str(folder.relative_to(request.folder)) if folder != request.folder else folder.absolute().name
        summary, recipe = _summary(folder, name)
        found.append(summary)
        if recipe is not None:
            recipes.append((summary, recipe.model_dump(mode="json", exclude=_NO_SETTINGS)))
    if not found:
        raise UserError(f"{request.folder}: no run below it; give a folder that holds outputs of `rayrec train`")
    # The keys in which the recipes differ, under the shortest names that tell them apart.
    different = differing_values([recipe for _, recipe in recipes]) if recipes else {}
    names = {key: ".".join(end) for key, end in zip(different, distinct_ends(list(different)), strict=True)}
    for place, (summary, _) in enumerate(recipes):
        summary["settings"] = {names[key]: values[place] for key, values in different.items()}
    return Result(command="runs", details={"runs": sorted(found, key=_rank)})


def _run_folders(folder: Path) -> Iterator[Path]:
    from rayrec.training.run.folder import RUN_FILE

    if (folder / RUN_FILE).is_file():
        yield folder
        return
    for child in sorted(folder.iterdir() if folder.is_dir() else ()):
        if child.is_dir() and not child.is_symlink() and not child.name.startswith("."):
            yield from _run_folders(child)


def _repeats_another(folder: Path) -> bool:
    from rayrec.training.run.folder import RunFolder

    try:
        return RunFolder.open(folder).refit_of is not None
    except (OSError, ValueError, KeyError, TypeError):  # listed as broken
        return False


def _summary(folder: Path, name: str) -> tuple[dict[str, Any], "Recipe | None"]:
    """Return what a run folder tells, and its recipe; of one that cannot be read the error alone."""
    from rayrec.ingest.dataset import judged_split
    from rayrec.inspection.runs import run_metrics
    from rayrec.training.run.folder import METRICS_FILE, RUN_FILE, RunFolder

    when = datetime.fromtimestamp((folder / RUN_FILE).stat().st_mtime)
    summary: dict[str, Any] = {"name": name, "when": when.isoformat(" ", "minutes")}
    try:
        run_folder = RunFolder.open(folder)
        recipe, reached = run_folder.recipe, run_folder.progress()
        metrics = _METRICS.validate_python(run_metrics(run_folder))
        ended = Result.load(folder).status if (folder / RESULT_FILE).is_file() else "unfinished"
        status = "done" if (folder / METRICS_FILE).is_file() else ended
    except (OSError, ValueError, KeyError, TypeError) as error:  # whatever a damaged file makes of itself
        line = " ".join(str(error).split()) or type(error).__name__
        return {**summary, "status": "broken", "error": line}, None
    summary |= {"status": status, "recipe": recipe.name, "model": recipe.model.kind}
    if reached is not None:
        rows = reached.step * recipe.train.global_batch_size
        summary |= {"steps": reached.step, "rows": rows, "seconds": reached.seconds}
    metric = recipe.train.checkpoint.keep_best or "auc"
    split = judged_split(recipe.train.evaluation_split, metrics) or recipe.train.evaluation_split
    return {**summary, "best_by": [split, metric], "metrics": metrics}, recipe


def _rank(summary: Mapping[str, Any]) -> tuple[bool, float, str]:
    """Return a sort key: runs with the best metric first, those without metrics last."""
    split, metric = summary.get("best_by", ("", "auc"))
    splits = summary.get("metrics") or {}
    value = splits.get(split, next(iter(splits.values()), {})).get(metric)
    worth = 0.0 if value is None else value if higher_is_better(metric) else -value
    return value is None, -worth, summary["name"]


def describe(result: Result) -> str:
    """Return a table of the runs that fits a terminal, and a line for each that cannot be read.

    It has two metrics of the split that a run is judged by, and below each run one line of its values of the keys in
    which the runs differ; `details` has them whole.
    """
    from rayrec.recipes import value_texts
    from rayrec.training.run.history import main_metrics

    runs = result.details["runs"]
    settings = [run["settings"] for run in runs if "settings" in run]
    texts = {key: iter(value_texts([one[key] for one in settings])) for key in (settings[0] if settings else ())}
    rows, lines = [], []
    for run in runs:
        row = {"run": run["name"], "status": run["status"]}
        # The metric that the run is ranked by comes first.
        split, best = run.get("best_by", ("", ""))
        found = main_metrics(run.get("metrics", {}).get(split, {}))
        names = sorted(found, key=lambda name: name != best)[:_SHOWN_METRICS]
        row |= {name: found[name] for name in names}
        row |= {name: run.get(name) for name in ("rows", "seconds")}
        different = ", ".join(f"{key} {next(texts[key])}" for key in run.get("settings", {}))
        # Runs of two tables differ in all of their columns.
        rows.append({**row, _DIFFERENT: textwrap.shorten(different, terminal_width() - 4, placeholder=" ...")})
        if "error" in run:
            lines.append(f"{run['name']}: {run['error']}")
    if not any(row[_DIFFERENT] for row in rows):
        rows = [{key: value for key, value in row.items() if key != _DIFFERENT} for row in rows]
    return "\n".join([text_table(rows, below=_DIFFERENT), *([""] if lines else []), *lines])


COMMAND = Command("runs", RunsRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
