"""`rayrec tune`: searches for better values of a recipe's keys."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import NonNegativeInt, PositiveInt

from jobs.command import Command, PathText, Result, TrainingRecipeRequest, main, text_table
from rayrec.common.errors import ConfigError
from rayrec.common.progress import Progress
from rayrec.common.text import shell_line
from rayrec.config.execution import TUNE, Execution
from rayrec.recipes import Recipe, RecipeContent, dump_recipe, write_recipe_file
from rayrec.store.folders import OutputKind
from rayrec.store.paths import Folder
from tune.space import (
    Space,
    check_space,
    load_space,
    require_comparable,
    require_decisions,
    searchable_space,
    trial_recipe,
)
from tune.sweep_folder import Scheduler, Search, SweepSettings, owned_folder

if TYPE_CHECKING:
    from rayrec.ingest.dataset import Dataset
    from tune.results import Candidate
    from tune.sweep_folder import TrialOutcome

TRIALS_FILE, BEST_FILE = "trials.csv", "best.yaml"
_SHOWN_TRIALS = 20


class TuneRequest(TrainingRecipeRequest):
    small_files: ClassVar[tuple[str, ...]] = ("recipe", "space")

    data: Folder
    """Dataset folder that all trials read."""
    output: Folder
    """New folder of the search; with --resume an existing one."""
    trials: PositiveInt
    """Number of trials; the first is the given recipe. A grid has it beside its points."""
    space: PathText | None = None
    """Search space, a YAML file; by default the one shipped with the model."""
    search: Search = "optuna"
    """Search method: optuna (TPE), random, grid or pbt (population based training)."""
    scheduler: Scheduler = "none"
    """Early stopping of trials: none, or asha, which stops trials that fall behind."""
    metric: str | None = None
    """Metric to improve; by default train.checkpoint.keep_best, else auc."""
    concurrent: PositiveInt | None = None
    """Number of trials at once; by default as many as fit the cluster."""
    confirm: NonNegativeInt = 0
    """Number of best trials to repeat with other seeds, beside the unchanged recipe; the best mean wins."""
    resume: bool = False
    """Continue the search in --output, or start it."""

    outputs: ClassVar[Mapping[str, OutputKind]] = {"output": "place"}

    def check(self) -> None:
        if self.confirm and self.search == "pbt":
            raise ConfigError(
                "--confirm: under population based training values change while a model trains, so there is no recipe "
                "to train again; leave it out"
            )
        recipe = self.trial_content()
        require_decisions(self.search, self.scheduler, self.trials, recipe.resolve().train)
        check_space(searchable_space(self.load_space(), self.search, self.trials), recipe)

    def load_space(self) -> Space:
        """Return the search space. Raises ConfigError if it is wrong, or searches a key that --set fixes."""
        space = load_space(self.space, self.load_recipe().model.kind)
        for override in self.overrides:
            key = override.partition("=")[0]
            for searched in sorted(space.keys):
                if f"{searched}.".startswith(f"{key}.") or f"{key}.".startswith(f"{searched}."):
                    raise ConfigError(f"--set {override}: {space.origin} searches {searched}; leave one of them out")
        return space

    def trial_content(self) -> RecipeContent:
        """Return the recipe with which trials begin; they keep the checkpoint with the best value of the metric."""
        content = self.read_recipe()
        return content.with_values({"train.checkpoint.keep_best": self.chosen_metric(content.resolve())})

    def chosen_metric(self, recipe: Recipe) -> str:
        return self.metric or recipe.train.checkpoint.keep_best or "auc"


def run(request: TuneRequest, progress: Progress) -> Result:
    """Search; `metrics` are those of the best trial, `details.trials` all trials, the best first.

    With `confirm` they are means over other seeds, of the candidate whose mean is the best, and `details.confirmed` has
    all candidates.
    """
    from cluster.ray_session import ray_session
    from jobs.command.placement import require_gpu, trial_training
    from jobs.train import initial_weights
    from rayrec.ingest.dataset import Dataset
    from rayrec.pages.page import write_page
    from rayrec.pages.runs import sweep_page
    from tune.results import confirm, confirmation_table, sweep_figures, write_csv
    from tune.sweep_folder import outcome_rows

    # What is searched, and from where. Before Ray starts: a mistake is answered at once.
    dataset = Dataset.open(request.data)
    recipe, space, warnings = _for_dataset(request, dataset)
    settings = SweepSettings(
        recipe=recipe,
        space=space,
        dataset=dataset.folder,
        folder=request.output.absolute(),
        metric=request.chosen_metric(recipe.resolve()),
        trials=request.trials,
        search=request.search,
        scheduler=request.scheduler,
        train=partial(train_trial, Execution.in_process()),
    )
    require_gpu(recipe.resolve().train.device)
    with owned_folder(settings, request.resume):
        # Trials can be compared, and each can begin; then Ray starts, and the trials run.
        require_comparable(searchable_space(settings.space, settings.search, settings.trials), recipe, dataset)
        initial_weights(recipe.resolve(), dataset)
        with ray_session(progress=progress):
            from tune.tuner import concurrent_trials, run_sweep

            training = trial_training(recipe.resolve().train)
            settings = replace(settings, train=partial(train_trial, training), in_actors=training.on == "process")
            at_once = concurrent_trials(settings, request.concurrent)
            execution = Execution.on_ray(TUNE, at_once)
            outcomes = run_sweep(settings, at_once=at_once, resume=request.resume, progress=progress)
            # The best of many noisy values is too good: train the best ones again with other seeds.
            found = []
            if request.confirm:
                found = confirm(settings, outcomes, request.confirm, concurrent=request.concurrent, progress=progress)
    progress.finish()
    # The recipe that was best, a row for each trial, and the page.
    best = _tuned_recipe(settings, outcomes, found)
    confirmed = confirmation_table(settings, found) if found else []
    write_csv(request.output / TRIALS_FILE, outcomes, settings.metric)
    write_recipe_file(request.output / BEST_FILE, best)
    figures = sweep_figures(settings, outcomes, confirmed, best)
    write_page(request.output, sweep_page(figures), figures)
    split = recipe.resolve().train.evaluation_split
    return Result(
        command="tune",
        output=request.output,
        execution=execution,
        metrics={split: {settings.metric: found[0].mean if found else outcomes[0].value}},
        details={
            "best": str(request.output / BEST_FILE),
            "verdict": figures["verdict"],
            "warnings": warnings,
            "trials": outcome_rows(outcomes, settings.metric),
            **({"confirmed": confirmed} if found else {}),
        },
    )


def _for_dataset(request: TuneRequest, dataset: "Dataset") -> tuple[RecipeContent, Space, list[str]]:
    """Return the recipe, the space and warnings, where a table is too small for what they say by default.

    As training does, the search then judges by `test`; a shipped space keeps only batches that the rows fill.
    """
    recipe, space, warnings = request.trial_content(), request.load_space(), list[str]()
    wanted = recipe.resolve().train.evaluation_split
    split = dataset.split_to_judge(wanted)
    if split is not None and split != wanted:
        recipe = recipe.with_values({"train.evaluation_split": split})
        warnings.append(
            f"{dataset.folder} has no rows in split '{wanted}', so trials were chosen by '{split}', and the values of "
            "the best are too good; preprocess with a validation split, or judge best.yaml on new rows"
        )
    key, parameters = "train.global_batch_size", dict(space.parameters)
    if request.space is None and key in parameters and parameters[key].labels:
        rows = dataset.split("train").rows
        fitting = tuple(size for size in parameters[key].labels if int(size) <= rows)
        parameters[key] = parameters[key].model_copy(update={"choice": fitting})
        space = replace(space, parameters={name: one for name, one in parameters.items() if one.choice != ()})
    return recipe, space, warnings


def train_trial(execution: Execution, recipe: Recipe, dataset: "Dataset", output: Path, resume: bool) -> object:
    """Train a trial's recipe as `rayrec train` does, in this actor or by workers of its own."""
    from jobs.train import train_recipe
    from rayrec.common.progress import SilentProgress

    return train_recipe(recipe, dataset, output, execution, resume=resume, progress=SilentProgress())


def _tuned_recipe(settings: SweepSettings, outcomes: "list[TrialOutcome]", found: "list[Candidate]") -> str:
    """Return the recipe as YAML with the best trial's values, or as it stands if no trial is better."""
    trial = found[0].trial if found else None if outcomes[0].is_given else outcomes[0]
    reached = f"{settings.metric} {found[0].mean if found else outcomes[0].value:.4f}"
    if found:
        without = next(candidate.mean for candidate in found if candidate.trial is None)
        reached += f", mean over {len(found[0].values)} other seeds"
        reached += f"; {without:.4f} without them" if trial is not None else ""
    if trial is None:
        values, origin = "as it stands,", f"which the best of {len(outcomes)} trials do not beat: {reached}"
    else:
        values, origin = (
            f"with the values of trial {trial.number}",
            f"of a search over {len(outcomes)} trials: {reached}",
        )
    recipe = trial_recipe(settings.space, settings.recipe, trial.assignment if trial is not None else {})
    description = f"{recipe.name} {values} {origin} (split '{recipe.train.evaluation_split}')."
    return dump_recipe(recipe.model_copy(update={"name": f"{recipe.name}-tuned", "description": description}))


def describe(result: Result) -> str:
    """Return the best trials as a table, and where the best recipe is."""
    trials: list[dict[str, Any]] = result.details["trials"]
    more = f"\n... {len(trials) - _SHOWN_TRIALS} more in {TRIALS_FILE}" if len(trials) > _SHOWN_TRIALS else ""
    output = str(result.output) if result.output is not None else ""
    confirmed = result.details.get("confirmed")
    again = f"With other seeds:\n\n{text_table(confirmed)}\n\n" if confirmed else ""
    said = [
        result.details["verdict"],
        *(f"warning: {text}" for text in result.details["warnings"]),
        f"rayrec train {shell_line([str(result.details['best'])])} --data ... --output ...",
    ]
    return (
        f"{text_table(trials[:_SHOWN_TRIALS])}{more}\n\n{again}"
        f"tune: {result.status} in {result.seconds:.1f} s, {len(trials)} trials -> {output}\n"
    ) + "\n".join(f"  {line}" for line in said)


COMMAND = Command("tune", TuneRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
