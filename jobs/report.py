"""`rayrec report`: a page on a dataset, a run, a model or a search."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from jobs.command import RESULT_FILE, Command, Metavar, Positional, Request, Result, describe_result, main
from jobs.export import is_run_folder
from jobs.pipeline.phases import PIPELINE_FILE
from jobs.stored_model import measurable, stored_model
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import Progress
from rayrec.metrics.expectations import Expectation, flat_metrics
from rayrec.store.folders import new_folder
from rayrec.store.paths import Folder

if TYPE_CHECKING:
    from rayrec.inference.scorer import StoredModel
    from rayrec.ingest.dataset import Dataset
    from rayrec.pages.page import Page


class ReportRequest(Request):
    source: Annotated[Folder, Positional("DATASET|RUN|MODEL|SWEEP")]
    """Folder of a dataset, run, model or search, or its URI; of the output of `rayrec run`, its run/ is meant."""
    output: Folder
    """New folder for report.html and report.json."""
    against: Annotated[Folder, Metavar("DATASET")] | None = None
    """Dataset to compare a dataset with."""
    data: Annotated[Folder, Metavar("DATASET")] | None = None
    """Dataset whose held-out rows to score; by default the one of the run."""
    expect: Annotated[tuple[str, ...], Metavar("METRIC>=NUMBER")] = ()
    """Expectation such as 'auc >= 0.76'; exit with 1 if one is not met."""

    def check(self) -> None:
        for text in self.expect:
            Expectation.parse(text)


@dataclass(frozen=True)
class _Report:
    """Figures, and the page that shows them."""

    figures: dict[str, Any]
    metrics: dict[str, dict[str, float | None]]
    """By split."""
    page: Callable[[Mapping[str, Any]], "Page"]


def run(request: ReportRequest, progress: Progress) -> Result:
    """Write the page; `metrics` are those that can be expected something of, `details.expectations` what came of it.

    The status is `failed` if something is not met.
    """
    from rayrec.pages.page import write_page

    # Look at what the folder holds; the page is made from the figures alone, which lie beside it.
    found = _look(request, progress)
    progress.finish()
    with new_folder(request.output) as folder:
        write_page(folder, found.page(found.figures), found.figures)
    # An expectation that is not met is the exit code, so that a pipeline can stop at it.
    expectations = found.figures["expectations"]
    for check in expectations:
        progress.message(f"{'pass' if check['is_met'] else 'fail'}: {check['line']}")
    missed = [check["line"] for check in expectations if not check["is_met"]]
    return Result(
        command="report",
        status="failed" if missed else "done",
        output=request.output,
        metrics=found.metrics,
        details={
            name: found.figures[name]
            for name in ("expectations", "drawn_negatives", "notes")
            if found.figures.get(name)
        },
        error=f"not as expected: {'; '.join(missed)}" if missed else None,
    )


def _look(request: ReportRequest, progress: Progress) -> _Report:
    from rayrec.inference.folder.table_files import is_model_folder
    from rayrec.store.artifact import kind_of
    from tune.sweep_folder import SWEEP_FILE

    source = request.source
    if (source / PIPELINE_FILE).is_file() and is_run_folder(source / "run"):
        source = source / "run"
        request = request.model_copy(update={"source": source})
    is_dataset, is_model = kind_of(source) == "dataset", is_model_folder(source)
    is_run, is_sweep = is_run_folder(source), (source / SWEEP_FILE).is_file()
    if not (is_dataset or is_model or is_run or is_sweep):
        raise UserError(f"{source}: no dataset, run, model or search; give the folder that another command wrote")
    if request.data is not None and not is_model:
        raise ConfigError("--data: only a model scores other rows than its own; leave it out")
    if request.against is not None and not is_dataset:
        raise ConfigError("--against: compares datasets; use `rayrec compare` for runs")
    if is_model:
        return _model(request, progress)
    if is_run:
        return _run(request, progress)
    return _sweep(request) if is_sweep else _dataset(request, progress)


def _checked(request: ReportRequest, metrics: Mapping[str, float | None]) -> list[dict[str, Any]]:
    """Return whether the metrics are as expected. Raises ConfigError for an unknown metric."""
    checks = [Expectation.parse(text).check(metrics) for text in request.expect]
    return [{**vars(check), "line": check.line} for check in checks]


def _dataset(request: ReportRequest, progress: Progress) -> _Report:
    from rayrec.ingest.dataset import Dataset
    from rayrec.inspection.drift import drift_between
    from rayrec.inspection.profiles import dataset_figures
    from rayrec.inspection.split_checks import split_notes, split_warnings
    from rayrec.pages.profiles import dataset_page

    dataset = Dataset.open(request.source)
    other = Dataset.open(request.against) if request.against is not None else None
    metrics: dict[str, dict[str, float | None]] = {
        name: {"rows": split.rows, "label_rate": split.positives / split.rows if split.labelled else None}
        for name, split in dataset.manifest.splits.items()
        if split.rows
    }
    rejected, rows = sum(dataset.manifest.rejected.values()), sum(s.rows for s in dataset.manifest.splits.values())
    features = [feature.name for feature in dataset.schema.features]
    flat = {
        **flat_metrics(metrics, None),
        "rows": rows,
        "rejected_rows": rejected,
        "rejected_share": rejected / (rejected + rows) if rejected + rows else None,
        **{f"{name}.missing_share": None for name in features},
        **({"drifted_features": None, **{f"{name}.drift": None for name in features}} if other is not None else {}),
    }
    # Before rows are read: a mistake is answered at once.
    _checked(request, flat)
    found = dataset_figures(dataset, progress)
    flat |= {f"{feature['name']}.missing_share": feature["missing_share"] for feature in found["features"]}
    against = None
    if other is not None:
        progress.stage("drift")
        drift, unlike = drift_between(dataset, other)
        drifts = [feature.as_json() for feature in drift]
        against = {"dataset": str(other.folder), "features": drifts, "not_compared": unlike}
        flat["drifted_features"] = sum(feature.has_drifted for feature in drift)
        flat |= {f"{feature.name}.drift": feature.index for feature in drift}
    times, recipe = dataset.manifest.times, dataset.recipe
    ends = None if times is None else {"first": _date(times.first), "last": _date(times.last)}
    figures = {
        "kind": "dataset",
        "subject": str(dataset.folder),
        "recipe": recipe.name,
        "source": recipe.source.kind,
        "times": ends,
        "warnings": [*split_warnings(dataset.manifest), *split_notes(dataset.manifest)],
        **found,
        "against": against,
        "expectations": _checked(request, flat),
    }
    return _Report(figures, metrics, dataset_page)


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds")


def _run(request: ReportRequest, progress: Progress) -> _Report:
    from rayrec.ingest.dataset import Dataset
    from rayrec.inspection.runs import resources, run_metrics, sharding_plan, training_curves
    from rayrec.inspection.split_checks import baselines, drawn_negatives, metric_warnings, run_notes
    from rayrec.pages.training import run_page
    from rayrec.recipes import dump_recipe
    from rayrec.training.run.folder import RunFolder

    trained = RunFolder.open(request.source)
    recipe, dataset = trained.recipe, Dataset.open(trained.dataset_folder)
    metrics = run_metrics(trained)
    simpler = baselines(recipe, dataset, metrics)
    split = dataset.split_to_judge(recipe.train.evaluation_split)
    # Before scores are computed: a mistake is answered at once.
    expectations = _checked(request, flat_metrics(metrics, split))
    held_out = None
    if split is not None and trained.progress() is not None:
        with stored_model(request.source) as model:
            held_out = _scores(model, dataset, split, progress)
    figures = {
        "kind": "run",
        "subject": str(trained.path),
        "description": recipe.description or recipe.name,
        "split": split,
        "metrics": metrics,
        "baselines": simpler,
        **drawn_negatives(dataset.schema),
        "warnings": [*metric_warnings(metrics, simpler), *run_notes(recipe, dataset, metrics)],
        "curves": training_curves(trained),
        "held_out": held_out,
        "resources": resources(trained, _command_seconds(trained.path)),
        "plan": sharding_plan(trained),
        "recipe": dump_recipe(recipe),
        "expectations": expectations,
    }
    return _Report(figures, metrics, run_page)


def _model(request: ReportRequest, progress: Progress) -> _Report:
    from rayrec.inference.folder.model_folder import CARD_FILE, ModelFolder
    from rayrec.ingest.dataset import Dataset, judged_split
    from rayrec.inspection.split_checks import class_warnings, drawn_negatives
    from rayrec.pages.training import model_page

    model = ModelFolder.open(request.source)
    metrics, preferred, held_out = model.metrics, model.recipe.train.evaluation_split, None
    notes: list[str] = []
    split = judged_split(preferred, metrics) or preferred
    if request.data is not None:
        dataset = Dataset.open(request.data)
        source, notes = measurable(request.source, request.data)
        with stored_model(source) as scored:
            scored.schema.require_same_features(dataset.schema, request.data)
            own = dataset.split_to_judge(preferred)
            if own is None:
                raise UserError(f"{request.data}: no held-out rows with labels; give a dataset with a test split")
            held_out = _scores(scored, dataset, own, progress)
        measured = {name: found and found["value"] for name, found in held_out["metrics"].items()}
        measured |= held_out.get("lists", {})
        metrics, split = {own: measured}, own
    figures = {
        "kind": "model",
        "subject": str(model.folder),
        "description": model.recipe.description or model.recipe.name,
        "split": split,
        "metrics": metrics,
        "warnings": [*class_warnings(model.metrics), *notes],
        "notes": notes,
        **drawn_negatives(model.schema),
        "held_out": held_out,
        "tables": [
            {"table": t.name, "features": ", ".join(t.features), "rows": t.rows, "columns": t.dim} for t in model.tables
        ],
        "table_bytes": model.table_bytes(),
        "card": model.path(CARD_FILE).read_text(),
        "expectations": _checked(request, flat_metrics(metrics, split)),
    }
    return _Report(figures, metrics, model_page)


def _sweep(request: ReportRequest) -> _Report:
    from jobs.tune import BEST_FILE
    from rayrec.pages.runs import sweep_page
    from tune.results import sweep_figures
    from tune.sweep_folder import Sweep, read_outcomes

    folder = request.source
    sweep = Sweep.open(folder)
    has_ended = (folder / RESULT_FILE).is_file()
    confirmed = Result.load(folder).details.get("confirmed", []) if has_ended else []
    best = (folder / BEST_FILE).read_text() if (folder / BEST_FILE).is_file() else None
    figures = sweep_figures(sweep, read_outcomes(sweep), confirmed, best)
    split = sweep.recipe.resolve().train.evaluation_split
    metrics = {split: {sweep.metric: figures["trials"][0]["value"]}}
    figures["expectations"] = _checked(request, flat_metrics(metrics, split))
    return _Report(figures, metrics, sweep_page)


def _scores(model: "StoredModel", dataset: "Dataset", split: str, progress: Progress) -> dict[str, Any]:
    """Return the figures of the held-out rows, scored by a model, or of held-out events."""
    from rayrec.inspection.runs import held_out_figures, next_item_figures, score_held_out

    ranking = model.recipe.evaluate.next_item_ranking
    if ranking is not None:
        return next_item_figures(model, dataset, split, ranking, progress)
    return held_out_figures(score_held_out(model, dataset, split, progress), dataset, progress)


def _command_seconds(run: Path) -> float | None:
    """Return how long `rayrec train` took, if it trained the run at once."""
    if not (run / RESULT_FILE).is_file():
        return None
    result = Result.load(run)
    return result.seconds if result.command == "train" and result.status == "done" else None


def describe(result: Result) -> str:
    """Return the outcome, what is not as expected, and where the page is."""
    lines = [describe_result(result)]
    if result.error is not None:
        lines.append(result.error)
    if result.output is not None:
        lines.append(f"  {result.output}/report.html")
    return "\n".join(lines)


COMMAND = Command("report", ReportRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
