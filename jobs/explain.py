"""`rayrec explain`: what the scores of a trained model rest on."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from pydantic import PositiveInt

from jobs.command import Command, Metavar, Positional, Request, Result, describe_result, main, text_table
from jobs.export import read_schema
from jobs.stored_model import measurable, stored_model
from rayrec.common.errors import ConfigError, UserError, did_you_mean
from rayrec.common.progress import Progress
from rayrec.store.folders import new_folder
from rayrec.store.paths import Folder

if TYPE_CHECKING:
    from rayrec.features.schema import Schema

_SHOWN = 20
_SHOWN_BY_DEFAULT = 6
"""Partial dependence is shown on so many features if none is named: the most important ones."""


class ExplainRequest(Request):
    source: Annotated[Folder, Positional("RUN|MODEL")]
    """Run folder, model folder, or its URI."""
    data: Folder
    """Dataset folder."""
    output: Folder
    """New folder for report.html and report.json."""
    split: str | None = None
    """Split of the dataset; by default the one that training evaluates on."""
    group: Annotated[tuple[str, ...], Metavar("NAME=FEATURE,FEATURE")] = ()
    """Features to permute together; repeatable."""
    feature: Annotated[tuple[str, ...], Metavar("NAME")] = ()
    """Feature whose partial dependence to show; by default the six most important ones; repeatable."""
    rows: PositiveInt = 200_000
    """Approximate number of rows to score, from all over the split."""
    permutations: PositiveInt = 3
    """Number of permutations per feature."""

    def check(self) -> None:
        self.groups()

    def groups(self) -> dict[str, tuple[str, ...]]:
        """Return the features of each group by its name. Raises ConfigError."""
        groups: dict[str, tuple[str, ...]] = {}
        for text in self.group:
            name, separator, features = text.partition("=")
            if not (name and separator and all(features.split(","))):
                raise ConfigError(f"--group {text}: write NAME=FEATURE,FEATURE")
            if name in groups:
                raise ConfigError(f"--group {text}: the name '{name}' is used twice")
            groups[name] = tuple(features.split(","))
        return groups


def run(request: ExplainRequest, progress: Progress) -> Result:
    """Explain; `rows` are those that were scored, `metrics` theirs.

    `details.importance` has for each feature and group how much worse the metrics become when it is permuted, with 95 %
    intervals, the most important first.
    """
    from rayrec.ingest.dataset import Dataset

    # The names that were given are features of the model, and the dataset is encoded as it reads it.
    dataset = Dataset.open(request.data)
    source, notes = measurable(request.source, request.data)
    recipe, schema = read_schema(source)
    if recipe.model.scores_next_items:
        raise UserError(f"{source}: scores the next items of people, and no rows, of which features are permuted here")
    groups = request.groups()
    _require_features(schema, groups, request.feature)
    schema.require_same_features(dataset.schema, request.data)
    split = request.split or dataset.split_to_judge(recipe.train.evaluation_split)
    if split is None:
        raise UserError(f"{request.data}: no held-out rows with labels; give a dataset with a test split, or --split")
    dataset.labelled_split(split)
    with stored_model(source) as model:
        # Imported after the checks: a mistake is answered at once, not when torch has been loaded.
        from rayrec.inference.importance import (
            LabelledRows,
            partial_dependence,
            permutation_importance,
            permuted_features,
        )
        from rayrec.inference.predictor import Predictor
        from rayrec.pages.explanation import explanation_page
        from rayrec.pages.page import write_page

        predictor = Predictor(model)
        progress.stage("read rows")
        rows = LabelledRows.read(dataset, split, request.rows)
        # Importance: each feature, and each group, dealt anew to the rows.
        permuted = permuted_features(recipe.model, schema) | groups
        importance = permutation_importance(predictor, rows, permuted, request.permutations, progress)
        best = recipe.train.checkpoint.keep_best
        metric = best if best in importance.metrics else "auc"
        ranked = sorted(permuted, key=lambda name: -importance.worse_by[name][metric].value)
        # Dependence: the score over the values of those asked for, or of the most important ones.
        shown = request.feature or [name for name in ranked if _has_values(schema, name)][:_SHOWN_BY_DEFAULT]
        dependence = partial_dependence(predictor, rows, shown, progress)
    # The page is made from figures that lie beside it.
    figures = {
        "kind": "explanation",
        "subject": str(source),
        "recipe": recipe.name,
        "data": str(request.data),
        "split": split,
        "rows": len(rows),
        "rows_of_split": dataset.split(split).rows,
        "permutations": request.permutations,
        "metrics": importance.metrics,
        "most_important_by": metric,
        "importance": [
            {
                "name": name,
                "features": list(permuted[name]),
                "worse_by": {key: asdict(value) for key, value in importance.worse_by[name].items()},
            }
            for name in ranked
        ],
        "partial_dependence": [asdict(one) for one in dependence],
    }
    progress.finish()
    with new_folder(request.output) as output:
        write_page(output, explanation_page(figures), figures)
    return Result(
        command="explain",
        output=request.output,
        rows=len(rows),
        metrics={split: importance.metrics},
        details={**{key: figures[key] for key in ("most_important_by", "importance")}, "notes": notes},
    )


def _require_features(schema: "Schema", groups: Mapping[str, Sequence[str]], chosen: Sequence[str]) -> None:
    """Raise ConfigError on a name that is no feature, or is one where it may not."""
    names = [feature.name for feature in schema.features]
    options = [(f"--group {group}", name) for group, features in groups.items() for name in features]
    for option, name in [*options, *(("--feature", name) for name in chosen)]:
        if name not in names:
            raise ConfigError(f"{option}: no feature '{name}'; {did_you_mean(name, names, 'features:')}")
    for name in chosen:
        if not _has_values(schema, name):
            raise ConfigError(f"--feature {name}: a vector, so there is no curve over its values; leave it out")
    for group in groups:
        if group in names:
            raise ConfigError(f"--group {group}: this is the name of a feature; give another name")


def _has_values(schema: "Schema", name: str) -> bool:
    """Return whether a name is that of a feature with single values."""
    return any(feature.name == name and feature.kind != "vector" for feature in schema.features)


def describe(result: Result) -> str:
    """Return the outcome, and the most important features with how much worse the metrics become."""
    table = [
        {
            "permuted": one["name"],
            **{f"{metric} worse by": change["value"] for metric, change in one["worse_by"].items()},
        }
        for one in result.details["importance"][:_SHOWN]
    ]
    return f"{describe_result(result)}\n\n{text_table(table)}"


COMMAND = Command("explain", ExplainRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
