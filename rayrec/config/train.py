"""The section `train` of a recipe: order of the data, sharding, precision, evaluations, checkpoints."""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from rayrec.config.base import Config
from rayrec.config.evaluate import MetricName, higher_is_better
from rayrec.config.optimizers import MAIN_PART, LearningRates, PartConfig
from rayrec.store.paths import Folder

DeviceName = Literal["cpu", "cuda"]
Sharding = Literal["table_wise", "row_wise", "column_wise", "table_row_wise", "grid_shard", "data_parallel"]
"""Two are for several nodes of several workers: `table_row_wise` splits the rows of a table over the workers of one
node, `grid_shard` its columns over nodes and the rows of each over the node's workers."""


class LossConfig(Config):
    """The loss; equations in `rayrec.training.loop.micro_batches`."""

    listwise: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Fraction of the loss that is softmax cross-entropy of each positive within its group; the rest is binary
    cross-entropy of rows. Above 0, batches hold whole groups; at 1, scores are no probabilities."""
    candidates: PositiveInt | None = None
    """For models of next items: number of items, drawn by popularity in each step, that the next ones are told from.
    `null`: all items, of a catalogue of more than 50,000 then 2,048."""


class ShardingConfig(Config):
    """How embedding tables are spread over the workers."""

    default: Literal["auto"] | Sharding = "auto"
    """Sharding of all tables; `auto`: TorchRec's planner chooses. `table_row_wise` splits rows over the workers of
    one node, `grid_shard` columns over nodes and rows over their workers.
    """
    tables: dict[str, Sharding] = {}
    """Shardings of single tables, by table; `rayrec plan` shows their names."""
    memory_per_worker: str | None = Field(None, pattern=r"^\d+(\.\d+)?\s*([KMGT]i?)?B$", examples=["80GB"])
    """Memory for tables and optimizer state on a worker; `null`: that of the device."""
    wire: Literal["auto", "fp32", "bf16"] = "auto"
    """Format of pooled embeddings and gradients between workers. `auto`: bf16 on GPUs that train in bf16, which then
    also look up in it, else fp32.
    """


class CheckpointConfig(Config):
    """Times at which training is saved, and the checkpoints that are kept."""

    every_steps: PositiveInt | None = None
    """Steps between checkpoints."""
    every_minutes: PositiveFloat | None = 15.0
    """Minutes between checkpoints."""
    keep_last: PositiveInt = 2
    """Number of latest checkpoints to keep."""
    keep_best: MetricName | None = "auc"
    """Metric on the evaluated split; its best checkpoint is kept too."""


class EarlyStopConfig(Config):
    """Stop as soon as an evaluation reaches the target."""

    metric: MetricName = "auc"
    """Metric on `evaluation_split`."""
    target: float
    """Value that is good enough."""

    def is_reached(self, metrics: Mapping[str, Any]) -> bool:
        """Return True if the metrics of an evaluation have the target's metric and it is good enough."""
        sign, value = 1 if higher_is_better(self.metric) else -1, metrics.get(self.metric)
        return value is not None and bool(sign * value >= sign * self.target)


class IngestConfig(Config):
    """How batches reach the model."""

    shuffle: Literal["none", "row_groups", "rows"] = "rows"
    """`row_groups` permutes row groups each epoch, `rows` also the rows inside them. `none` with one read stream keeps
    the order of the files."""
    read_streams: PositiveInt = 16
    """Row groups that a global batch mixes, which the workers hold in memory."""
    drop_last: bool | None = None
    """Drop the last rows of an epoch if they fill no batch. `null`: drop, except in a warm start."""
    prefetch_batches: PositiveInt = 4
    """Batches prepared ahead."""
    in_memory: bool = False
    """Read the split into memory once, and onto a GPU with room for it."""
    task_cpus: Literal[0, 1] | None = None
    """CPUs that a reading task asks of Ray. `null`: 1 where the cluster has two beside each worker's, else 0."""


class NegativesConfig(Config):
    """Draw negatives each epoch for a dataset of interactions, whose rows of `train` are positives."""

    per_positive: PositiveInt = 4
    """Negatives for each positive."""
    check: Literal["exact", "unchecked"] = "exact"
    """`exact` never draws an item that the user has in `train`; `unchecked` may."""
    popularity_exponent: NonNegativeFloat = 0.0
    """Exponent of an item's number of rows in its chance; 0: all alike."""


class RecencyConfig(Config):
    """Draw a user's late positives more often than early ones.

    A positive with k later ones of its user has the weight floor + 2^(-k / half_life). The number of samples in an
    epoch stays.
    """

    half_life: PositiveFloat
    """Interactions until the weight above `floor` has halved."""
    floor: NonNegativeFloat = 0.1
    """Weight of the oldest positives."""


class MLflowConfig(Config):
    """The MLflow server that a run is logged to."""

    tracking_uri: str
    """Address of the server, or a folder."""
    experiment: str = "rayrec"
    """Experiment that lists the runs."""


class TrackingConfig(Config):
    """Places for metrics besides the run folder's `history.jsonl`."""

    tensorboard: bool = True
    """Write event files of TensorBoard into the run folder."""
    mlflow: MLflowConfig | None = None
    """Also send metrics to MLflow."""


class InitialWeightsConfig(Config):
    """Source of a new run's weights; the model's README lists sources and options."""

    sources: dict[str, Folder] = Field(min_length=1)
    """Run or model folders, by the names that the model has for them."""
    options: dict[str, Any] = {}
    """Settings of the model for it."""


class WarmStartConfig(Config):
    """Values that `rayrec train --warm-start` uses instead of fields of `train`: by default one pass in order."""

    epochs: PositiveInt = 1
    """Instead of `train.epochs`."""
    shuffle: Literal["none", "row_groups", "rows"] = "none"
    """Instead of `train.ingest.shuffle`; with `none`, one read stream."""


class TrainConfig(PartConfig):
    """Training of a model: order of the data, optimizers, precision, sharding, checkpoints."""

    global_batch_size: PositiveInt = 65_536
    """Rows of an optimizer step over all workers."""
    epochs: PositiveInt = 1
    """Number of passes over `train`."""
    rows: PositiveInt | None = None
    """Number of first rows of `train` to train on; `null`: all."""
    max_steps: PositiveInt | None = None
    """Most steps, whatever the epochs."""
    seed: int = 12345
    """Seed of row order, initial weights and drawn samples."""
    workers: PositiveInt = 1
    """Number of processes that share each batch and the tables; on GPUs, one for each."""
    min_workers: PositiveInt | None = None
    """Fewest workers of elastic training."""
    elastic_interval_seconds: PositiveFloat = 60.0
    """Time between looks for more workers."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: GPUs if there are any, else the CPU."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """Arithmetic of the dense network; tables stay float32. `auto`: bf16 or fp16 where the hardware is fast at it."""
    loss_scale: PositiveFloat | Literal["dynamic"] = "dynamic"
    """Factor on the loss in fp16. `dynamic`: 65536, halved after a step that overflows (which changes nothing), doubled
    after 2,000 that do not."""
    loss: LossConfig = LossConfig()
    parts: dict[str, PartConfig] = {}
    """Settings of parts of the model, by the model's names; what a part leaves out is as above."""
    threads: PositiveInt | None = None
    """Threads of a worker on a CPU; `null`: its share of the machine's CPUs."""
    gradient_accumulation: PositiveInt = 1
    """Number of pieces in which a worker's share of the batch passes the dense network."""
    initial_weights: InitialWeightsConfig | None = None
    """Weights of other runs to begin with."""
    warm_start: WarmStartConfig = WarmStartConfig()
    """What a warm start changes here."""
    freeze: tuple[str, ...] = ()
    """Parts that are not trained: `embeddings`, `dense_network`, or prefixes of parameter names."""
    sharding: ShardingConfig = ShardingConfig()
    ingest: IngestConfig = IngestConfig()
    negatives: NegativesConfig | None = None
    """How negatives are drawn for interactions; `null`: the rows of `train` are the samples."""
    recency: RecencyConfig | None = None
    """How often each positive comes up with `negatives`; `null`: once an epoch."""
    evaluation_split: str = "validation"
    """Split that judges the model; where the dataset lacks it, `test`, else the first with labels."""
    evaluations_per_epoch: NonNegativeFloat = 1
    """Evaluations in an epoch, evenly spaced: 0.5 is one every second epoch. Unless 0, the last one is at the end of
    training."""
    evaluate_every_steps: PositiveInt | None = None
    """Steps between evaluations, instead of `evaluations_per_epoch`."""
    evaluate_after_epochs: NonNegativeFloat = 0.0
    """Epochs before the first evaluation; may be a fraction."""
    progressive: bool = False
    """Measure each batch of the first epoch before training on it; a warm start does."""
    early_stop: EarlyStopConfig | None = None
    """Stop as soon as an evaluation is good enough."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    compile: bool | Literal["auto"] = "auto"
    """Compile the dense network with torch.compile, as CUDA graphs on a GPU; the first steps take up to a minute
    longer. Lists of rows and odd batch sizes run uncompiled. `auto`: on GPUs where Triton works.
    """
    max_failures: NonNegativeInt = 3
    """Times that a dead worker restarts the run from its last checkpoint."""
    log_every_steps: PositiveInt = 100
    """Steps between lines of the history."""
    tracking: TrackingConfig = TrackingConfig()

    @property
    def drops_last(self) -> bool:
        """Tell whether the last samples of an epoch are left out if they fill no batch."""
        return self.ingest.drop_last is not False

    def samples_per_epoch(self, rows: int) -> int:
        """Return the number of samples of an epoch, where `train` has `rows` rows."""
        rows = min(rows, self.rows or rows)
        return rows if self.negatives is None else rows * (1 + self.negatives.per_positive)

    def with_batch_of(self, rows: int, workers: int) -> "TrainConfig":
        """Return the same for a `train` of `rows` rows, with a batch that these rows fill.

        Otherwise each step would be the small one of a batch that is never full.
        """
        # The batch stays a multiple of the workers.
        most = -(-self.samples_per_epoch(rows) // workers) * workers
        return self.model_copy(update={"global_batch_size": min(self.global_batch_size, max(most, workers))})

    def steps_per_epoch(self, rows: int) -> int:
        """Return the number of optimizer steps of an epoch, where `train` has `rows` rows; the last samples may
        fill no batch.
        """
        full, rest = divmod(self.samples_per_epoch(rows), self.global_batch_size)
        return full + (rest > 0 and not self.drops_last)

    def samples_after(self, step: int, rows: int) -> int:
        """Return the number of samples that the first `step` optimizer steps take, where `train` has `rows` rows."""
        steps = self.steps_per_epoch(rows)
        epochs, batches = divmod(step, steps)
        samples = min(self.samples_per_epoch(rows), steps * self.global_batch_size)
        return epochs * samples + batches * self.global_batch_size

    @property
    def evaluates(self) -> bool:
        """Tell whether there are evaluations in mid-training and at its end."""
        return self.evaluate_every_steps is not None or self.evaluations_per_epoch > 0

    def evaluates_after(self, batches: int, batches_per_epoch: int) -> bool:
        """Tell whether an evaluation is due after so many batches of all epochs, the end of training apart."""
        if self.evaluate_every_steps is not None:
            is_due = batches % self.evaluate_every_steps == 0
        else:
            # Evaluation k is due after the first batch at which batches * share has reached k.
            share = self._evaluations_per_epoch / batches_per_epoch
            is_due = batches * share // 1 > (batches - 1) * share // 1
        return is_due and batches >= self.evaluate_after_epochs * batches_per_epoch

    @property
    def most_evaluations(self) -> int:
        """Return the evaluations of a training of whole epochs, each of which has batches enough for its own."""
        share = self._evaluations_per_epoch
        # Those before `evaluate_after_epochs` fall away; the one at the end of training always happens.
        left_out = max(0, math.ceil(self.evaluate_after_epochs * share) - 1)
        return max(1, math.ceil(self.epochs * share) - left_out) if share else 0

    @property
    def _evaluations_per_epoch(self) -> Fraction:
        # 0.3333 means every third epoch; taken as it is written, evaluations would come later and later.
        return Fraction(self.evaluations_per_epoch).limit_denominator(100)

    def warm_started(self) -> "TrainConfig":
        """Return these settings as a warm-started run has them: the order of `warm_start`, all rows, progressive.

        No best checkpoint is kept: the next day continues from the last state, because an earlier one that was better
        on held-out rows has not seen all rows.
        """
        order: dict[str, Any] = {"shuffle": self.warm_start.shuffle, "drop_last": bool(self.ingest.drop_last)}
        if self.warm_start.shuffle == "none":
            order["read_streams"] = 1
        changes: dict[str, Any] = {"epochs": self.warm_start.epochs, "progressive": True, "initial_weights": None}
        changes["checkpoint"] = self.checkpoint.model_copy(update={"keep_best": None})
        return self.model_copy(update={**changes, "ingest": self.ingest.model_copy(update=order)})

    @property
    def by_part(self) -> dict[str, PartConfig]:
        """Return how each part is trained, the main one first."""
        return {MAIN_PART: self, **self.parts}

    def trained_part(self, part: str) -> str:
        """Return the key of `by_part` under which a part of the model is trained."""
        return part if part in self.parts else MAIN_PART

    def learning_rates(self, step: int, steps_per_epoch: int) -> dict[str, LearningRates]:
        """Return the rates of every part at optimizer step `step`, counted from 1."""
        rates, all_steps = {}, self.epochs * steps_per_epoch
        if self.max_steps is not None:
            all_steps = min(all_steps, self.max_steps)
        for name, part in self.by_part.items():
            factor = part.schedule.factor(step, steps_per_epoch, all_steps)
            rates[name] = LearningRates(part.embedding_optimizer.lr * factor, part.dense_optimizer.lr * factor)
        return rates

    @model_validator(mode="before")
    @classmethod
    def _parts_begin_as_the_main_one(cls, content: Any) -> Any:
        # On the raw content: once it is validated, what a part leaves out is filled with defaults.
        parts = content.get("parts") if isinstance(content, dict) else None
        if not isinstance(parts, dict):
            return content
        main = {field: content[field] for field in PartConfig.model_fields if field in content}
        return {**content, "parts": {k: {**main, **v} if isinstance(v, dict) else v for k, v in parts.items()}}

    @model_validator(mode="after")
    def _workers_share_the_batch(self) -> "TrainConfig":
        if self.global_batch_size % self.workers:
            raise ValueError(
                f"global_batch_size ({self.global_batch_size}) must be a multiple of workers ({self.workers})"
            )
        if self.min_workers is not None and self.min_workers > self.workers:
            raise ValueError(f"min_workers ({self.min_workers}) must not be more than workers ({self.workers})")
        if 0 < self.evaluations_per_epoch < 0.01:
            raise ValueError("evaluations_per_epoch must be 0, or at least 0.01, which is one every 100 epochs")
        # Settings that need another one, or exclude it.
        if self.early_stop is not None and not self.evaluates:
            raise ValueError("early_stop needs evaluations_per_epoch above 0")
        if self.recency is not None and self.negatives is None:
            raise ValueError("recency needs train.negatives, whose samples it weighs; set negatives, or unset recency")
        if self.loss.listwise and self.negatives is not None:
            raise ValueError(
                "loss.listwise needs groups, which drawn negatives are not in; set it to 0, or unset train.negatives"
            )
        # What an optimizer of tables can do depends on what runs it: FBGEMM's kernels, or torch for replicated tables.
        if self._has_adam_tables and "data_parallel" in self._shardings and not self.has_dense_adam_tables:
            raise ValueError(
                "sharding: with embedding_optimizer 'adam', either all tables are data_parallel or none, as it "
                "updates data-parallel tables by another rule"
            )
        if self._shardings != {"data_parallel"}:
            for part in self.by_part.values():
                optimizer = part.embedding_optimizer
                if optimizer.weight_decay and optimizer.kind in {"sgd", "adagrad"}:
                    raise ValueError(
                        f"embedding_optimizer.weight_decay of '{optimizer.kind}' needs sharding.default: "
                        "data_parallel, as it changes every row of a table at every step"
                    )
        return self

    @property
    def _shardings(self) -> set[str]:
        return {self.sharding.default, *self.sharding.tables.values()}

    @property
    def _has_adam_tables(self) -> bool:
        return any(part.embedding_optimizer.kind == "adam" for part in self.by_part.values())

    @property
    def has_dense_adam_tables(self) -> bool:
        """Return True if the tables are under Adam and all data-parallel, so that Adam is dense."""
        return self._has_adam_tables and self._shardings == {"data_parallel"}
