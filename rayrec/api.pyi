# Written by tests/command_reference.py.
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal

from jobs.command.result import Result as Result
from rayrec.inference.explanation.additive import Explainer
from rayrec.inference.predictor import Predictor
from rayrec.inference.ranker import Ranker
from rayrec.inference.recommender import Recommender
from rayrec.recipes import Recipe

AnyPath = str | PathLike[str]
COMMANDS: tuple[str, ...]

def inspect(
    path: AnyPath | Sequence[AnyPath],
    *,
    label: str | None = None,
    missing_label: int | None = None,
    model: str | None = None,
    rows: int = 100000,
    output: AnyPath | None = None,
    against: AnyPath | None = None,
    progress: bool = True,
) -> Result:
    """Look at a sample of raw files, and write a recipe for them; or compare new files with a dataset.

    Args:
        path: Raw file, folder, glob or URI; several are one table.
        label: Column of the label, or a condition such as 'rating>=4'; by default the one column that has the name of
            one. With a model of users and items: which rows are choices, by default all.
        missing_label: The label of rows that have none; by default they are left out.
        model: Kind of the model in the recipe; by default wide_deep, or neumf where columns are a user, an item, a
            rating and a time alone.
        rows: Rows of the sample, spread over all files.
        output: Recipe to write, which must not exist; without it the recipe is printed.
        against: Dataset to compare the files with, instead of writing a recipe; the exit code is 1 if they have
            drifted.
        progress: Show progress on stderr.
    """

def generate(
    source: str,
    rows: int,
    output: AnyPath,
    *,
    seed: int = 0,
    days: int | None = None,
    drift: float | None = None,
    compress: bool = False,
    recipe: AnyPath | None = None,
    set: Mapping[str, Any] | Sequence[str] = (),
    cardinality: Mapping[str, Any] | Sequence[str] = (),
    progress: bool = True,
) -> Result:
    """Write data with the real layout, drawn from a known truth.

    Args:
        source: Kind of the source whose layout the data have; `table` has the columns of --recipe.
        rows: Rows to write.
        output: Folder to write, with truth.json if the best reachable metric is known; must not exist.
        seed: Seed of the rows.
        days: Number of days to write a file for each, if the source has such files; by default one file.
        drift: How much values and preferences change from day to day: 1 by default, 0 not at all, 10 at most; with
            --days.
        compress: Write gzip files.
        recipe: Recipe, by name or as a YAML file, whose columns the data of `table` have.
        set: Override of the recipe; repeatable.
        cardinality: Distinct values of a column of categories or lists, or of all that match a pattern; 1,000 by
            default; repeatable.
        progress: Show progress on stderr.
    """

def preprocess(
    recipe: AnyPath,
    input: AnyPath | Sequence[AnyPath],
    output: AnyPath,
    *,
    extend: AnyPath | None = None,
    set: Mapping[str, Any] | Sequence[str] = (),
    on: Literal["auto", "process", "ray"] = "auto",
    progress: bool = True,
) -> Result:
    """Turn raw logs into a dataset folder, by threads of this process or with Spark on Ray.

    Args:
        recipe: Name of a shipped recipe (see `rayrec recipes`), or a YAML file.
        input: Raw file, folder, glob or URI; SPLIT=PATH if preprocess.split.kind is files; repeatable.
        output: Dataset folder to write; must not exist.
        extend: Dataset folder to go on from: its ids and fitted numbers stay, and new values get new ids.
        set: Override of the recipe; repeatable.
        on: Run in this process, or on Ray: Spark on Ray, Ray Data, Ray Train; by default on Ray if the work is large,
            needs several workers or a GPU, or a cluster is there.
        progress: Show progress on stderr.
    """

def verify(folder: AnyPath, *, progress: bool = True) -> Result:
    """Compare every file of a dataset folder with the checksums in its manifest.

    Args:
        folder: Dataset folder, the output of `rayrec preprocess`.
        progress: Show progress on stderr.
    """

def train(
    recipe: AnyPath,
    data: AnyPath,
    output: AnyPath,
    *,
    resume: bool = False,
    warm_start: AnyPath | None = None,
    refit_of: AnyPath | None = None,
    reset: Sequence[str] = (),
    max_steps: int | None = None,
    workers: int | str | None = None,
    device: Literal["auto", "cpu", "cuda"] | None = None,
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] | None = None,
    set: Mapping[str, Any] | Sequence[str] = (),
    on: Literal["auto", "process", "ray"] = "auto",
    progress: bool = True,
) -> Result:
    """Train a recipe's model on a dataset folder, with TorchRec, in this process or with Ray Train.

    Args:
        recipe: Name of a shipped recipe (see `rayrec recipes`), or a YAML file.
        data: Dataset folder, the output of `rayrec preprocess`.
        output: Run folder to write; must not exist, unless with --resume.
        resume: Continue the run in --output from its latest checkpoint; begin it if there is none.
        warm_start: Run folder to go on from: its best checkpoint, rows of tables by value; one pass in their order.
        refit_of: Run folder whose rows, held-out ones too, are all in `train` of --data: train anew, for as many epochs
            as its best checkpoint, whose metrics are then those of the model.
        reset: Feature whose table begins anew instead, with --warm-start; repeatable.
        max_steps: End of the training at the latest, in optimizer steps (train.max_steps), by default as in the recipe.
        workers: Worker processes (train.workers), by default as in the recipe; MIN:MAX trains elastically.
        device: Device to train on (train.device), by default as in the recipe.
        precision: Arithmetic of the dense network (train.precision), by default as in the recipe.
        set: Override of the recipe; repeatable.
        on: Run in this process, or on Ray: Spark on Ray, Ray Data, Ray Train; by default on Ray if the work is large,
            needs several workers or a GPU, or a cluster is there.
        progress: Show progress on stderr.
    """

def run(
    recipe: AnyPath,
    input: AnyPath | Sequence[AnyPath],
    *,
    continue_: AnyPath | None = None,
    refit: bool | None = None,
    output: AnyPath | None = None,
    workers: int | str | None = None,
    device: Literal["auto", "cpu", "cuda"] | None = None,
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] | None = None,
    set: Mapping[str, Any] | Sequence[str] = (),
    on: Literal["auto", "process", "ray"] = "auto",
    progress: bool = True,
) -> Result:
    """Preprocess, train and export in one job; run again, it continues where it stopped.

    Args:
        recipe: Name of a shipped recipe (see `rayrec recipes`), or a YAML file.
        input: Raw file, folder, glob or URI; SPLIT=PATH if preprocess.split.kind is files; repeatable.
        continue_: Instead of --output: a folder whose model goes on with these files, those of another day.
        refit: Train the exported model anew on all rows, the held-out ones too, for as many epochs as validation chose;
            by default where these are the latest ones (preprocess.split.kind: time or leave_one_out).
        output: Folder of all phases (dataset/, run/, perhaps refit/, model/); an earlier attempt in it is continued.
        workers: Worker processes (train.workers), by default as in the recipe; MIN:MAX trains elastically.
        device: Device to train on (train.device), by default as in the recipe.
        precision: Arithmetic of the dense network (train.precision), by default as in the recipe.
        set: Override of the recipe; repeatable.
        on: Run in this process, or on Ray: Spark on Ray, Ray Data, Ray Train; by default on Ray if the work is large,
            needs several workers or a GPU, or a cluster is there.
        progress: Show progress on stderr.
    """

def evaluate(
    source: AnyPath,
    data: AnyPath | None = None,
    *,
    split: str = "test",
    rows: int | None = None,
    checkpoint: str = "best",
    workers: int | None = None,
    device: Literal["auto", "cpu", "cuda"] | None = None,
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "fp32",
    server: str | None = None,
    input: AnyPath | None = None,
    token_file: AnyPath | None = None,
    connections: int = 4,
    batch_rows: int = 1000,
    on: Literal["auto", "process", "ray"] = "auto",
    progress: bool = True,
) -> Result:
    """Compute exact metrics over a split, each row once.

    Args:
        source: Run folder or model folder, or its URI.
        data: Dataset folder, the output of `rayrec preprocess`; required without --server.
        split: Split of the dataset.
        rows: Evaluate on the first rows of the split alone, so many of them.
        checkpoint: Checkpoint of a run: best (the latest if none was evaluated), latest, or a step.
        workers: Worker processes, by default this one alone; on a GPU or a cluster as many as in training.
        device: Device to compute on, by default as in training.
        precision: Arithmetic of the dense network; of bf16 and fp16 the metrics say how far they move the scores.
        server: Ask a running server, http://HOST:PORT, for the scores of --input; the model is called as its folder
            there, or add /v1/models/NAME.
        input: With --server, a file, folder, glob or URI of raw rows with their labels.
        token_file: With --server, file whose first token requests carry. By default the first in RAYREC_SERVE_TOKENS,
            if any.
        connections: With --server, requests at once.
        batch_rows: With --server, most rows of a request.
        on: Run in this process, or on Ray: Spark on Ray, Ray Data, Ray Train; by default on Ray if the work is large,
            needs several workers or a GPU, or a cluster is there.
        progress: Show progress on stderr.
    """

def explain(
    source: AnyPath,
    data: AnyPath,
    output: AnyPath,
    *,
    split: str | None = None,
    group: Sequence[str] = (),
    feature: Sequence[str] = (),
    rows: int = 200000,
    permutations: int = 3,
    progress: bool = True,
) -> Result:
    """Measure which features a model's scores rest on, and how scores depend on the values of some.

    Args:
        source: Run folder or model folder, or its URI.
        data: Dataset folder, the output of `rayrec preprocess`.
        output: Folder for report.html and report.json; must not exist.
        split: Split of the dataset, by default the one that the recipe evaluates on in training, else test.
        group: Features whose importance is measured together, too; repeatable.
        feature: Feature whose partial dependence is shown, by default the six most important ones; repeatable.
        rows: Rows that are scored, about; they come from all over the split.
        permutations: Times that each feature is permuted.
        progress: Show progress on stderr.
    """

def predict(
    model: AnyPath,
    output: AnyPath,
    *,
    input: AnyPath | None = None,
    raw: bool = False,
    split: str = "test",
    rows: int | None = None,
    max_rejected_fraction: float | None = None,
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "fp32",
    top_k: int | None = None,
    on: Literal["auto", "process", "ray"] = "auto",
    progress: bool = True,
) -> Result:
    """Score a file or folder, streaming; or recommend items to every user.

    Args:
        model: Run folder or model folder, or its URI.
        output: Folder to write: scores/, and rejected/ for unusable raw rows; or recommendations/. Must not exist.
        input: Dataset folder or its URI; with --raw, a file, folder, glob or URI of raw rows.
        raw: The input is raw rows, not a dataset folder.
        split: Split of the dataset folder.
        rows: Score the first rows of the split or of the raw files alone, so many of them.
        max_rejected_fraction: With --raw, a larger share of rows without a score is an error; by default the recipe's
            preprocess.max_rejected_fraction.
        precision: Arithmetic of the dense network; of bf16 and fp16 the result says how far they move the scores.
        top_k: Instead of scores, the best K new items for every user; takes no input.
        on: Run in this process, or on Ray: Spark on Ray, Ray Data, Ray Train; by default on Ray if the work is large,
            needs several workers or a GPU, or a cluster is there.
        progress: Show progress on stderr.
    """

def export(
    run: AnyPath,
    output: AnyPath,
    *,
    checkpoint: str = "best",
    tables: Literal["fp32", "fp16", "int8"] | None = None,
    delta_of: AnyPath | None = None,
    register_as: str | None = None,
    progress: bool = True,
) -> Result:
    """Write the model folder that serve and predict read.

    Args:
        run: Run folder, the output of `rayrec train`, or its URI; or a delta, which becomes a whole model folder.
        output: Model folder to write; must not exist.
        checkpoint: Checkpoint of the run: best (the latest if none was evaluated), latest, or a step.
        tables: Precision of the stored tables, by default fp32, or that of --delta-of; the result shows what it
            changes.
        delta_of: The version before, a model folder beside --output: write only what differs from it.
        register_as: Name of a model in MLflow's registry, of which the folder becomes a version, too
            (MLFLOW_TRACKING_URI).
        progress: Show progress on stderr.
    """

def tune(
    recipe: AnyPath,
    data: AnyPath,
    output: AnyPath,
    trials: int,
    *,
    space: AnyPath | None = None,
    search: Literal["random", "grid", "optuna", "pbt"] = "optuna",
    scheduler: Literal["none", "asha"] = "none",
    metric: str | None = None,
    concurrent: int | None = None,
    confirm: int = 0,
    resume: bool = False,
    workers: int | str | None = None,
    device: Literal["auto", "cpu", "cuda"] | None = None,
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] | None = None,
    set: Mapping[str, Any] | Sequence[str] = (),
    progress: bool = True,
) -> Result:
    """Search for better values of a recipe's keys, with Ray Tune.

    Args:
        recipe: Name of a shipped recipe (see `rayrec recipes`), or a YAML file.
        data: Dataset folder, the output of `rayrec preprocess`; all trials read it.
        output: Folder of the sweep; must not exist, unless with --resume.
        trials: Trials to run.
        space: Search space, a YAML file, by default the one shipped for the recipe's kind of model.
        search: How values are chosen: optuna (TPE), random, grid, or pbt (population based training).
        scheduler: Whether trials are stopped early: none, or asha, which stops those that are behind the others.
        metric: Metric to improve, by default train.checkpoint.keep_best, else auc.
        concurrent: Trials at once, by default as many as fit the cluster.
        confirm: Number of best trials to train again with other seeds, beside the recipe as it stands; the best mean
            wins.
        resume: Continue the sweep in --output; begin it if there is none.
        workers: Worker processes (train.workers), by default as in the recipe; MIN:MAX trains elastically.
        device: Device to train on (train.device), by default as in the recipe.
        precision: Arithmetic of the dense network (train.precision), by default as in the recipe.
        set: Override of the recipe; repeatable.
        progress: Show progress on stderr.
    """

def plan(
    recipe: AnyPath,
    data: AnyPath,
    *,
    workers: int = 1,
    workers_per_node: int | None = None,
    memory_per_worker: str = "80GB",
    host_memory_per_worker: str = "0GB",
    hardware: Literal["a100", "h100", "h200"] | None = None,
    set: Mapping[str, Any] | Sequence[str] = (),
    progress: bool = True,
) -> Result:
    """Show how the tables would be sharded, without training.

    Args:
        recipe: Name of a shipped recipe (see `rayrec recipes`), or a YAML file.
        data: Dataset folder, whose schema has the sizes of the tables.
        workers: Workers to plan for.
        workers_per_node: Workers on one machine, by default all of them.
        memory_per_worker: Memory of one worker for tables, such as 80GB or 64GiB.
        host_memory_per_worker: Memory of the machine for each worker's tables that its GPU has no room for, such as
            200GB.
        hardware: Kind of GPU on which to estimate a training step, by default none.
        set: Override of the recipe; repeatable.
        progress: Show progress on stderr.
    """

def report(
    source: AnyPath,
    output: AnyPath,
    *,
    against: AnyPath | None = None,
    data: AnyPath | None = None,
    expect: Sequence[str] = (),
    progress: bool = True,
) -> Result:
    """Write a page on a dataset, a run, a model or a search, and check what is expected of it.

    Args:
        source: Folder of a dataset, a run, a model or a search, or its URI.
        output: Folder for report.html and report.json; must not exist.
        against: Dataset to compare a dataset with.
        data: Dataset whose held-out rows a model scores; a run scores those of its own, and a model alone none.
        expect: What is expected of a metric, such as 'auc >= 0.76'; the exit code is 1 if something is not met.
        progress: Show progress on stderr.
    """

def compare(run: AnyPath | Sequence[AnyPath], output: AnyPath, *, progress: bool = True) -> Result:
    """Tell whether one recipe is better than another, or its run was lucky.

    Runs that differ in their seed alone count as repetitions of one recipe: they tell how much a seed changes.

    Args:
        run: Run folder, or its URI; all must have been trained on datasets with the same held-out rows.
        output: Folder for report.html and report.json; must not exist.
        progress: Show progress on stderr.
    """

def load_recipe(recipe: AnyPath, set: Mapping[str, Any] | None = None) -> Recipe:
    """The validated recipe: a shipped one by name, or a YAML file, with values set by key, such as `train.epochs`."""

def load_model(folder: AnyPath) -> Predictor:
    """The predictor of a model folder, on CPU: `predict(rows)` takes raw features and gives probabilities."""

def load_recommender(folder: AnyPath) -> Recommender:
    """The recommender of a model folder of users and items: `recommend(user, k)` gives the best new items."""

def load_ranker(folder: AnyPath) -> Ranker:
    """The ranker of a model that looks up features: `rank(context, candidates, k)` gives the best candidates."""

def load_explainer(folder: AnyPath) -> Explainer:
    """The explainer of a model folder, on CPU: `explain(rows)` says what each feature adds to the score of a row."""
