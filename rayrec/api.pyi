# Written by tests/command_reference.py.
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal

from jobs.command.result import Result as Result
from rayrec.inference.explanation import Explainer
from rayrec.inference.predictor import Predictor
from rayrec.inference.rank import Ranker
from rayrec.inference.recommender import Recommender
from rayrec.recipes import Recipe

AnyPath = str | PathLike[str]
__all__ = [
    "inspect",
    "generate",
    "preprocess",
    "verify",
    "forget",
    "train",
    "run",
    "evaluate",
    "explain",
    "predict",
    "export",
    "tune",
    "plan",
    "report",
    "runs",
    "compare",
    "load_recipe",
    "load_model",
    "load_recommender",
    "load_ranker",
    "load_explainer",
]
COMMANDS: tuple[str, ...]

def inspect(
    path: AnyPath | Sequence[AnyPath],
    *,
    label: str | None = None,
    missing_label: int | None = None,
    model: str | None = None,
    rows: int = 100000,
    output: AnyPath | None = None,
    page: AnyPath | None = None,
    against: AnyPath | None = None,
    progress: bool = True,
) -> Result:
    """Read a sample of raw files, and write a recipe for them.

    With --against, compare new files with a dataset instead.

    Args:
        path: Raw file, folder, glob or URI; several form one table.
        label: Label column, or a condition such as 'rating>=4'; by default the one column named like a label. For users
            and items: the choices, by default all rows.
        missing_label: Label of rows without one; by default these rows are dropped.
        model: Kind of model; by default wide_deep, or neumf for a plain table of users and items.
        rows: Number of rows to sample from all files.
        output: New recipe file; without it the recipe is printed.
        page: New page about the table; its figures go beside it as JSON.
        against: Dataset to compare the files with; exit with 1 if they have drifted.
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
    """Write synthetic raw files, drawn from a known truth.

    Args:
        source: Source whose layout to write; `table` writes the columns of --recipe.
        rows: Number of rows.
        output: New folder, with truth.json if the best reachable metric is known.
        seed: Seed of the rows.
        days: Number of daily files; by default one file without days.
        drift: Change from day to day, from 0 (none) to 10; by default 1 with --days. Without days, `interactions`
            writes people who come and change in one file.
        compress: Write gzip files.
        recipe: Recipe that names the columns of `table`.
        set: Override a key of the recipe; repeatable.
        cardinality: Number of distinct values of a column, or of all columns that match a pattern; by default 1,000;
            repeatable.
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
    """Turn raw files into a dataset folder.

    Args:
        recipe: Shipped recipe (see `rayrec recipes`) or YAML file.
        input: Raw file, folder, glob or URI; SPLIT=PATH if preprocess.split.kind is files; repeatable.
        output: New dataset folder.
        extend: Dataset folder to extend: known values keep their ids, new values get new ones.
        set: Override a key of the recipe; repeatable.
        on: Run in this process or on Ray; auto chooses Ray for large work, several workers, a GPU or a running cluster.
        progress: Show progress on stderr.
    """

def verify(folder: AnyPath, *, progress: bool = True) -> Result:
    """Compare the files of a folder with their checksums.

    Args:
        folder: Folder with a manifest.json, such as a dataset's.
        progress: Show progress on stderr.
    """

def forget(folder: AnyPath, key: str, *, progress: bool = True) -> Result:
    """Take a person out of the look-ups of datasets and models.

    Print what was removed, and what cannot be reached.

    Args:
        folder: Folder of a dataset, a model or a version of one; or a folder around these, such as that of `rayrec
            run`.
        key: Key column and value, such as user_id=123: rows of this key leave every table that is looked up by the
            column. Of models of users and items, user=123: the user's items.
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
    """Train a recipe's model on a dataset folder.

    Args:
        recipe: Shipped recipe (see `rayrec recipes`) or YAML file.
        data: Dataset folder, written by `rayrec preprocess`.
        output: New run folder; with --resume an existing one.
        resume: Continue the run in --output from its latest checkpoint, or start it.
        warm_start: Run folder to start from: take over the weights of its best checkpoint, and train as
            train.warm_start says.
        refit_of: Run folder whose rows, held-out ones included, are all in `train` of --data: train anew for as many
            epochs as its best checkpoint, and keep its metrics.
        reset: Feature whose table --warm-start does not take over; repeatable.
        max_steps: Largest number of optimizer steps (train.max_steps).
        workers: Number of worker processes (train.workers); MIN:MAX trains elastically.
        device: Device to train on (train.device).
        precision: Arithmetic of the dense network (train.precision).
        set: Override a key of the recipe; repeatable.
        on: Run in this process or on Ray; auto chooses Ray for large work, several workers, a GPU or a running cluster.
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
    """Preprocess, train and export with one command.

    Run it again to continue where it stopped.

    Args:
        recipe: Shipped recipe (see `rayrec recipes`) or YAML file.
        input: Raw file, folder, glob or URI; SPLIT=PATH if preprocess.split.kind is files; repeatable.
        continue_: Folder of an earlier `rayrec run` whose model is trained on with these files, as those of a new day;
            instead of --output.
        refit: Train the exported model again on all rows, for as many epochs as validation chose; by default for splits
            by time and leave_one_out.
        output: Folder for all phases: dataset/, run/, model/, perhaps refit/; an unfinished attempt in it is continued.
        workers: Number of worker processes (train.workers); MIN:MAX trains elastically.
        device: Device to train on (train.device).
        precision: Arithmetic of the dense network (train.precision).
        set: Override a key of the recipe; repeatable.
        on: Run in this process or on Ray; auto chooses Ray for large work, several workers, a GPU or a running cluster.
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
    staleness: str | None = None,
    on: Literal["auto", "process", "ray"] = "auto",
    progress: bool = True,
) -> Result:
    """Compute exact metrics of a model over a split.

    Args:
        source: Run folder, model folder, or its URI.
        data: Dataset folder; required without --server.
        split: Split of the dataset.
        rows: Number of rows to evaluate, from the start of the split; by default all.
        checkpoint: Checkpoint of a run: best, latest or a step.
        workers: Number of workers that score beside each other; by default one a CPU, or a GPU.
        device: Device to compute on; by default as in training.
        precision: Arithmetic of the dense network; the metrics say how far bf16 and fp16 move the scores.
        server: Address of a server, http://HOST:PORT, that scores --input; add /v1/models/NAME if the model is not
            named as its folder.
        input: Raw rows with labels for --server: a file, folder, glob or URI.
        token_file: File whose first token is sent to --server; by default RAYREC_SERVE_TOKENS.
        connections: Number of parallel requests to --server.
        batch_rows: Most rows per request to --server.
        staleness: Measure as if the histories of a server ended so long before each row, such as 1d; reads the raw
            files of the dataset again.
        on: Run in this process or on Ray; auto chooses Ray for large work, several workers, a GPU or a running cluster.
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
    """Measure how much each feature matters to a model.

    Also show how scores change with the values of some features.

    Args:
        source: Run folder, model folder, or its URI.
        data: Dataset folder.
        output: New folder for report.html and report.json.
        split: Split of the dataset; by default the one that training evaluates on.
        group: Features to permute together; repeatable.
        feature: Feature whose partial dependence to show; by default the six most important ones; repeatable.
        rows: Approximate number of rows to score, from all over the split.
        permutations: Number of permutations per feature.
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
    """Score rows with a model, or recommend items to all users.

    Args:
        model: Run folder, model folder, or its URI.
        output: New folder for scores/ and rejected/ (unusable raw rows), or recommendations/.
        input: Dataset folder or its URI; with --raw a file, folder, glob or URI of raw rows.
        raw: Read raw rows, not a dataset folder.
        split: Split of the dataset.
        rows: Number of rows to score, from the start; by default all.
        max_rejected_fraction: Largest share of raw rows that may stay without a score; by default that of the recipe.
        precision: Arithmetic of the dense network; the result says how far bf16 and fp16 move the scores.
        top_k: Number of new items to recommend to each user, instead of scores; takes no input.
        on: Run in this process or on Ray; auto chooses Ray for large work, several workers, a GPU or a running cluster.
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
    vectors: bool = False,
    progress: bool = True,
) -> Result:
    """Write the model folder that serve and predict read.

    Args:
        run: Run folder or its URI; or a delta, to make a whole model of it.
        output: New model folder.
        checkpoint: Checkpoint of the run: best, latest or a step.
        tables: Precision of the stored tables; by default fp32, or that of --delta-of.
        delta_of: Earlier version, a model folder beside --output: write only what differs from it, or from its own
            base.
        register_as: Model name in MLflow's registry, which gets a new version (MLFLOW_TRACKING_URI).
        vectors: Write the vectors of items and known users as Parquet, instead of a model folder; also takes a model
            folder.
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
    """Search for better values of a recipe's keys.

    Args:
        recipe: Shipped recipe (see `rayrec recipes`) or YAML file.
        data: Dataset folder that all trials read.
        output: New folder of the search; with --resume an existing one.
        trials: Number of trials; the first is the given recipe. A grid has it beside its points.
        space: Search space, a YAML file; by default the one shipped with the model.
        search: Search method: optuna (TPE), random, grid or pbt (population based training).
        scheduler: Early stopping of trials: none, or asha, which stops trials that fall behind.
        metric: Metric to improve; by default train.checkpoint.keep_best, else auc.
        concurrent: Number of trials at once; by default as many as fit the cluster.
        confirm: Number of best trials to repeat with other seeds, beside the unchanged recipe; the best mean wins.
        resume: Continue the search in --output, or start it.
        workers: Number of worker processes (train.workers); MIN:MAX trains elastically.
        device: Device to train on (train.device).
        precision: Arithmetic of the dense network (train.precision).
        set: Override a key of the recipe; repeatable.
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
    set: Mapping[str, Any] | Sequence[str] = (),
    progress: bool = True,
) -> Result:
    """Show how the embedding tables would be sharded.

    Args:
        recipe: Shipped recipe (see `rayrec recipes`) or YAML file.
        data: Dataset folder, for the sizes of the tables.
        workers: Number of workers to plan for.
        workers_per_node: Number of workers per machine; by default all.
        memory_per_worker: Memory for tables per worker, such as 80GB or 64GiB.
        host_memory_per_worker: Host memory per worker for tables that do not fit its GPU, such as 200GB.
        set: Override a key of the recipe; repeatable.
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
    """Write an HTML page about a dataset, run, model or search.

    Args:
        source: Folder of a dataset, run, model or search, or its URI; of the output of `rayrec run`, its run/ is meant.
        output: New folder for report.html and report.json.
        against: Dataset to compare a dataset with.
        data: Dataset whose held-out rows to score; by default the one of the run.
        expect: Expectation such as 'auc >= 0.76'; exit with 1 if one is not met.
        progress: Show progress on stderr.
    """

def runs(folder: AnyPath, *, progress: bool = True) -> Result:
    """List the runs below a folder, best metrics first.

    The second training of `rayrec run`, on all rows, is left out: it has no metrics of its own.

    Args:
        folder: Folder with run folders anywhere below it, such as a search or several outputs of `rayrec run`.
        progress: Show progress on stderr.
    """

def compare(
    run: AnyPath | Sequence[AnyPath], output: AnyPath, *, split: str | None = None, progress: bool = True
) -> Result:
    """Test whether runs differ by more than chance.

    Runs that differ in their seed alone count as repetitions of one recipe.

    Args:
        run: Run folder or its URI; all runs need the same held-out rows.
        output: New folder for report.html and report.json.
        split: Split of the datasets; by default the one that training evaluates on.
        progress: Show progress on stderr.
    """

def load_recipe(recipe: AnyPath, set: Mapping[str, Any] | None = None) -> Recipe:
    """Return a validated recipe: a shipped one by name, or a YAML file, with keys set, such as `train.epochs`."""

def load_model(folder: AnyPath) -> Predictor:
    """Load the predictor of a model, on CPU: `predict(rows)` takes raw features and returns probabilities.

    `folder`: a model folder, a run folder, or the output of `rayrec.run`; of several versions the newest is loaded.
    """

def load_recommender(folder: AnyPath) -> Recommender:
    """Load the recommender of a model of users and items: `recommend(user, k)` returns the k best new items."""

def load_ranker(folder: AnyPath) -> Ranker:
    """Load the ranker of a model that looks up features: `rank(context, candidates, k)` returns the best candidates."""

def load_explainer(folder: AnyPath) -> Explainer:
    """Load the explainer of a model folder, on CPU: `explain(rows)` returns what each feature adds to a row's score."""
