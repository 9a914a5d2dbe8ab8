"""How a model is trained: data order, sharding, optimizers, precision, checkpoints."""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from rayrec.config.base import Config
from rayrec.config.evaluate import MetricName, higher_is_better
from rayrec.storage.location import Folder

DeviceName = Literal["cpu", "cuda"]
Sharding = Literal["table_wise", "row_wise", "column_wise", "table_row_wise", "grid_shard", "data_parallel"]
"""Two are for several nodes of several workers: `table_row_wise` splits the rows of a table over the workers of one
node, `grid_shard` its columns over nodes and the rows of each over the node's workers."""


class OptimizerConfig(Config):
    """The settings of every kind of optimizer; a kind reads those that its equation has."""

    _without_weight_decay: ClassVar[frozenset[str]] = frozenset({"ftrl"})

    kind: str
    lr: PositiveFloat = 24.0
    """Learning rate, before the factor of the schedule."""
    eps: PositiveFloat = 1e-8
    """The constant that keeps adaptive kinds from dividing by 0."""
    rho: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """The share that `rmsprop` keeps of the mean of squared gradients in a step, in every row of a table."""
    initial_accumulator: NonNegativeFloat = 0.0
    """The value at which `adagrad`, `rowwise_adagrad` and `ftrl` start the sum of squared gradients; TensorFlow has
    0.1."""
    weight_decay: NonNegativeFloat = 0.0
    """The weight of |w|^2 / 2 in the objective, whose gradient joins that of each step. Decoupled from the gradient
    (AdamW) in `adamw`, and in `adam` of tables, as in FBGEMM and in Apex's FusedAdam."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Shares that `adam` and `adamw` keep, in a step, of the mean of gradients and of that of their squares."""
    lr_power: Annotated[float, Field(le=0)] = -0.5
    """The exponent that `ftrl` gives the sum of squared gradients in the learning rate of a coordinate."""
    l1: NonNegativeFloat = 0.0
    """The weight of |w| in the objective of `ftrl`."""
    l2: NonNegativeFloat = 0.0
    """The weight of w^2 in the objective of `ftrl`, as TensorFlow's; McMahan's lambda_2 is twice that."""
    beta: NonNegativeFloat = 0.0
    """A constant that `ftrl` adds to the root of the sum of squared gradients."""

    @model_validator(mode="after")
    def _decays_weights_where_it_can(self) -> Self:
        if self.weight_decay and self.kind in self._without_weight_decay:
            raise ValueError(f"weight_decay is not available for '{self.kind}' here; set it to 0")
        return self


class EmbeddingOptimizerConfig(OptimizerConfig):
    """The optimizer of embedding tables.

    It runs inside their backward pass (fused) where FBGEMM has a kernel; data-parallel tables, and all under `rmsprop`
    and `ftrl`, get a dense gradient and torch's optimizer, which is the same rule. `adam` on a CPU needs
    `sharding.default: data_parallel`: then it is dense Adam, which also moves rows that the batch does not touch, as
    the published NCF does; fused, it updates the batch's rows alone. `weight_decay` of `sgd` and `adagrad` needs it
    too, as it holds back every row at every step: a rare value more than a frequent one, as in ridge regression. `ftrl`
    is FTRL-proximal (McMahan et al. 2013, "Ad click prediction: a view from the trenches"): see
    `rayrec.training.optimizers.ftrl`.
    """

    _without_weight_decay: ClassVar[frozenset[str]] = frozenset({"rowwise_adagrad", "ftrl"})

    kind: Literal["sgd", "adagrad", "rowwise_adagrad", "rmsprop", "adam", "ftrl"] = "sgd"
    """The rule; `rowwise_adagrad` keeps one sum for each row of a table."""


class DenseOptimizerConfig(OptimizerConfig):
    """The optimizer of everything but the embedding tables."""

    kind: Literal["sgd", "adagrad", "rmsprop", "adam", "adamw", "ftrl"] = "sgd"
    """The rule."""
    momentum: NonNegativeFloat = 0.0
    """The momentum of `sgd` and `rmsprop`."""


class LossConfig(Config):
    """What is minimised; equations in `rayrec.training.loop.loss`."""

    listwise: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the softmax cross-entropy of each positive among the rows of its group (a display); the rest is the
    binary cross-entropy of each row. Above 0, batches hold whole groups; at 1 the scores rank within a group, but are
    no probabilities."""


class LearningRatePiece(Config):
    """A factor on learning rates from some epoch on."""

    from_epoch: NonNegativeFloat
    """Epochs done when it begins; 6.5 is in the middle of the seventh."""
    factor: NonNegativeFloat
    """Factor from then on."""


class ScheduleConfig(Config):
    """Factor on learning rates: linear warm-up from 0, then pieces times polynomial decay.

    At step s (from 1), with n steps an epoch: s/w up to w = warmup_steps or warmup_epochs * n. After that the product
    of the last piece that began (steps beyond from_epoch * n; 1 before the first) and, from decay_start on,
    ((decay_start + decay_steps - s)/decay_steps)^decay_power, which is never below end_factor. With decay_share d, N
    steps in all and d * (N - w) for decay_steps, the decay reaches 0 at N.
    """

    warmup_steps: NonNegativeInt = 0
    """Steps in which the factor rises to 1."""
    warmup_epochs: NonNegativeFloat = 0.0
    """Instead of warmup_steps."""
    pieces: tuple[LearningRatePiece, ...] = ()
    """Factors by epoch, in order."""
    decay_start: PositiveInt | None = None
    """The step at which the rate begins to fall; None if it stays."""
    decay_steps: PositiveInt = 24_000
    """Steps from `decay_start` until the decay would reach 0."""
    decay_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Instead of `decay_start` and `decay_steps`: the last part of the steps after the warm-up, 1 for all of them."""
    decay_power: PositiveFloat = 2.0
    """Exponent of the decay; 1 is linear."""
    end_factor: NonNegativeFloat = 0.0
    """Least factor of the decay."""

    @model_validator(mode="after")
    def _is_one_schedule(self) -> "ScheduleConfig":
        if self.warmup_steps and self.warmup_epochs:
            raise ValueError("give warmup_steps or warmup_epochs, not both")
        if self.decay_start is not None and self.decay_share is not None:
            raise ValueError("give decay_start or decay_share, not both")
        begins = [piece.from_epoch for piece in self.pieces]
        if begins != sorted(set(begins)):
            raise ValueError("pieces must be in the order of their from_epoch, each of which differs")
        return self

    def factor(self, step: int, steps_per_epoch: int, all_steps: int) -> float:
        """Return the factor at optimizer step `step`, counted from 1, of a run of `all_steps`."""
        warmup = self.warmup_steps or self.warmup_epochs * steps_per_epoch
        if step <= warmup:
            return step / warmup
        begun = [piece.factor for piece in self.pieces if step > piece.from_epoch * steps_per_epoch]
        factor = begun[-1] if begun else 1.0
        start: float | None = self.decay_start
        steps: float = self.decay_steps
        if self.decay_share is not None:
            steps = self.decay_share * max(1, all_steps - warmup)
            start = all_steps - steps
        if start is not None and step >= start:
            left = max(0.0, (start + steps - step) / steps)
            factor *= max(left**self.decay_power, self.end_factor)
        return factor


MAIN_PART = "main"
"""The part of a model that belongs to no other part."""


class LearningRates(NamedTuple):
    """The rates of one part of a model in one step."""

    embeddings: float
    dense: float


class PartConfig(Config):
    """How the parameters of one part of a model move."""

    embedding_optimizer: EmbeddingOptimizerConfig = EmbeddingOptimizerConfig()
    """The optimizer of the embedding tables."""
    dense_optimizer: DenseOptimizerConfig = DenseOptimizerConfig()
    """The optimizer of everything else."""
    schedule: ScheduleConfig = ScheduleConfig()
    """The factor on the learning rates of both optimizers."""
    embedding_l2: NonNegativeFloat = 0.0
    """L2 penalty on the pooled embeddings e of each row: embedding_l2 / 2 * |e|^2 joins the row's loss. Rows of a table
    are so held back in proportion to how often they occur (Rendle et al. 2020, arXiv:2005.09683, equation 8), under any
    optimizer; an optimizer's weight_decay holds all back alike."""


class ShardingConfig(Config):
    """How embedding tables are spread over the workers."""

    default: Literal["auto"] | Sharding = "auto"
    """`auto`: TorchRec's planner chooses."""
    tables: dict[str, Sharding] = {}
    """Shardings of single tables instead of the default, by table; `rayrec plan` shows the names."""
    memory_per_worker: str | None = Field(None, pattern=r"^\d+(\.\d+)?\s*([KMGT]i?)?B$", examples=["80GB"])
    """Memory for tables and their optimizer state on one worker, such as `80GB`; unset: what the device has."""
    wire: Literal["auto", "fp32", "bf16"] = "auto"
    """Number format in which pooled embeddings and their gradients travel between workers in training: half the bytes
    in `bf16`; GPUs that train in bf16 then also look them up and join them in it. `auto`: bf16 where GPUs train in
    bf16, else fp32. There is no fp16, in which the gradients of large batches would vanish."""


class CheckpointConfig(Config):
    """When the state of training is saved, and which of these checkpoints are kept."""

    every_steps: PositiveInt | None = None
    """Save after so many steps."""
    every_minutes: PositiveFloat | None = 15.0
    """Save after so many minutes."""
    keep_last: PositiveInt = 2
    """Latest checkpoints that are kept."""
    keep_best: MetricName | None = "auc"
    """Also keep the checkpoint with the best value of this metric on the evaluated split."""


class EarlyStopConfig(Config):
    """Stop as soon as an evaluation reaches the target."""

    metric: MetricName = "auc"
    """The metric that is watched, on `evaluation_split`."""
    target: float
    """The value that is good enough."""

    def is_reached(self, metrics: Mapping[str, Any]) -> bool:
        """True if the metrics of an evaluation have the target's metric and it is good enough."""
        sign, value = 1 if higher_is_better(self.metric) else -1, metrics.get(self.metric)
        return value is not None and bool(sign * value >= sign * self.target)


class IngestConfig(Config):
    """How batches reach the model."""

    shuffle: Literal["none", "row_groups", "rows"] = "rows"
    """`row_groups` permutes whole row groups each epoch, `rows` also the rows inside each. `none` with one read stream
    is the order of the files."""
    read_streams: PositiveInt = 16
    """Row groups that one global batch mixes rows of, at any number of workers, which hold them in memory."""
    drop_last: bool | None = None
    """Leave out the last rows of an epoch of `train` if they fill no batch; otherwise they are a smaller batch, whose
    step is smaller by as much. Unset: they are left out, but not in a warm start, which sees its rows once."""
    prefetch_batches: PositiveInt = 4
    """Batches that are ready before the model asks for them."""
    in_memory: bool = False
    """Read the split into memory once instead of streaming it each epoch, and onto a GPU that has room for it; the
    batches are the same."""
    task_cpus: Literal[0, 1] | None = None
    """CPUs that a task which reads asks Ray for. By default 1 where the cluster has two beside each worker's, else 0: a
    task that waits for a CPU which a worker holds would wait for ever."""


class NegativesConfig(Config):
    """Samples from a dataset of interactions: each row of `train` is a positive, negatives are drawn each epoch.

    The positives are held on every worker's device.
    """

    per_positive: PositiveInt = 4
    """Negatives of each positive."""
    check: Literal["exact", "unchecked"] = "exact"
    """`exact` never draws an item that the user has in `train`; `unchecked` draws from all items."""
    popularity_exponent: NonNegativeFloat = 0.0
    """Items are drawn in proportion to (rows of the item in `train`)^exponent; 0 draws all alike."""


class RecencyConfig(Config):
    """Draw a user's late positives more often than early ones, as what comes next resembles what came last.

    The positive that has k later ones of its user weighs floor + 2^(-k / half_life), so that long histories weigh less
    in all. An epoch has as many samples as without.
    """

    half_life: PositiveFloat
    """Interactions of the user after which the weight that exceeds `floor` has halved."""
    floor: NonNegativeFloat = 0.1
    """Weight of the oldest."""


class MLflowConfig(Config):
    """The MLflow server that a run is logged to."""

    tracking_uri: str
    """Address of the MLflow server, or a folder."""
    experiment: str = "rayrec"
    """Name of the experiment that runs are listed under."""


class TrackingConfig(Config):
    """Where metrics of training go besides the run folder's `history.jsonl`."""

    tensorboard: bool = True
    """Write event files of TensorBoard into the run folder."""
    mlflow: MLflowConfig | None = None
    """Also send metrics to MLflow."""


class InitialWeightsConfig(Config):
    """The sources of a new run's weights; the model's README says which sources and options it has."""

    sources: dict[str, Folder] = Field(min_length=1)
    """Run or model folders, by the names that the model gives them."""
    options: dict[str, Any] = {}
    """Settings that the model has for it."""


class WarmStartConfig(Config):
    """What a run that goes on from another one (`rayrec train --warm-start`) has instead of the fields of `train`.

    By default one pass over `train` in the order of its rows, which is that of time where a dataset holds a new day.
    """

    epochs: PositiveInt = 1
    """Instead of `train.epochs`."""
    shuffle: Literal["none", "row_groups", "rows"] = "none"
    """Instead of `train.ingest.shuffle`; with `none`, `train.ingest.read_streams` is 1."""


class TrainConfig(PartConfig):
    """How a model is trained: the order of its data, optimizers, precision, tables over workers, checkpoints."""

    global_batch_size: PositiveInt = 65_536
    """Rows of one optimizer step over all workers."""
    epochs: PositiveInt = 1
    """Passes over `train`."""
    rows: PositiveInt | None = None
    """Train on the first rows of `train` alone, so many of them, in their order in the dataset; unset: on all."""
    max_steps: PositiveInt | None = None
    """Stop after this many steps, whatever the number of epochs."""
    seed: int = 12345
    """Seed of the order of the rows, the initial weights, and what is drawn in training."""
    workers: PositiveInt = 1
    """Processes that train together, each with its share of the batch and of the tables; with GPUs, one for each."""
    min_workers: PositiveInt | None = None
    """Train elastically: begin with as many workers as there is room for, from this number to `workers`, and go on from
    the last checkpoint with fewer where some are lost, with more where there is room again."""
    elastic_interval_seconds: PositiveFloat = 60.0
    """How often elastic training looks for room for more workers; taking them repeats the steps since the last
    checkpoint."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: GPUs where there are any, else the CPU."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """Arithmetic of the dense network; tables stay float32. `auto`: bf16 where the hardware is fast at it, else fp16 on
    GPUs that are fast at that, else fp32."""
    loss_scale: PositiveFloat | Literal["dynamic"] = "dynamic"
    """Factor on the loss in fp16, whose small gradients would vanish. `dynamic`: 65536 at first, half after a step that
    overflows, double after 2,000 that do not. A number stays as it is. A step that overflows changes nothing either
    way."""
    loss: LossConfig = LossConfig()
    parts: dict[str, PartConfig] = {}
    """Parts of the model that are trained otherwise than the rest, by the names that the model gives them. A part takes
    what it leaves out from the fields above; a part that is not named here is trained with the rest."""
    threads: PositiveInt | None = None
    """Threads of a worker on a CPU. Unset: the CPUs that it may use, shared with the machine's other workers. The model
    is the same."""
    gradient_accumulation: PositiveInt = 1
    """Parts in which a worker's share of the batch passes the dense network; the step stays that of the whole batch."""
    initial_weights: InitialWeightsConfig | None = None
    """Weights of other runs that a new run begins with, instead of random ones."""
    warm_start: WarmStartConfig = WarmStartConfig()
    """What a warm start has instead of some of these."""
    freeze: tuple[str, ...] = ()
    """Parts that keep their initial (or loaded) values: `embeddings`, `dense_network`, or a parameter-name prefix."""
    sharding: ShardingConfig = ShardingConfig()
    ingest: IngestConfig = IngestConfig()
    negatives: NegativesConfig | None = None
    """How datasets of interactions get negatives; unset, the rows of `train` are the samples."""
    recency: RecencyConfig | None = None
    """How often each positive comes in an epoch with `negatives`; unset, all come once."""
    evaluation_split: str = "validation"
    """Split of the evaluations during training; `test` where the dataset has no such split."""
    evaluations_per_epoch: NonNegativeFloat = 1
    """Evaluations during an epoch, at equal distances: 2 is one every half epoch, 0.5 one every second epoch. If it is
    not 0, the last one is at the end of training, wherever that is."""
    evaluate_after_epochs: NonNegativeFloat = 0.0
    """Epochs before the first evaluation; 0.25 is a quarter of one."""
    progressive: bool = False
    """Measure the model in the first epoch on each batch before it is trained on it; a warm start sets it."""
    early_stop: EarlyStopConfig | None = None
    """Stop as soon as an evaluation is good enough."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    compile: bool | Literal["auto"] = "auto"
    """Let torch.compile make fewer and larger kernels of the dense network; a GPU runs them as a CUDA graph, which
    costs the processor one call. The first steps take up to a minute longer. Batches of another size than the usual
    one, and lists of rows, are computed as without it; parts of batches without a graph. `auto`: on GPUs where Triton
    works."""
    max_failures: NonNegativeInt = 3
    """Times a dead worker restarts the run from its last checkpoint."""
    log_every_steps: PositiveInt = 100
    """Steps between two lines of the history."""
    tracking: TrackingConfig = TrackingConfig()

    @property
    def drops_last(self) -> bool:
        """Tell whether the last samples of an epoch are left out if they fill no batch."""
        return self.ingest.drop_last is not False

    def samples_per_epoch(self, rows: int) -> int:
        """Samples of an epoch, where `train` has `rows` rows."""
        rows = min(rows, self.rows or rows)
        return rows if self.negatives is None else rows * (1 + self.negatives.per_positive)

    def steps_per_epoch(self, rows: int) -> int:
        """Optimizer steps of an epoch, where `train` has `rows` rows; the last samples may fill no batch."""
        full, rest = divmod(self.samples_per_epoch(rows), self.global_batch_size)
        return full + (rest > 0 and not self.drops_last)

    def samples_after(self, step: int, rows: int) -> int:
        """Samples that the first `step` optimizer steps take, where `train` has `rows` rows."""
        steps = self.steps_per_epoch(rows)
        epochs, batches = divmod(step, steps)
        samples = min(self.samples_per_epoch(rows), steps * self.global_batch_size)
        return epochs * samples + batches * self.global_batch_size

    def evaluates_after(self, batches: int, batches_per_epoch: int) -> bool:
        """Tell whether an evaluation is due after so many batches of all epochs, the end of training apart."""
        share = self._evaluations_per_epoch / batches_per_epoch
        is_due = batches * share // 1 > (batches - 1) * share // 1
        return is_due and batches >= self.evaluate_after_epochs * batches_per_epoch

    @property
    def most_evaluations(self) -> int:
        """Evaluations of a training of whole epochs, each of which has batches enough for its own."""
        share = self._evaluations_per_epoch
        left_out = max(0, math.ceil(self.evaluate_after_epochs * share) - 1)
        return max(1, math.ceil(self.epochs * share) - left_out) if share else 0

    @property
    def _evaluations_per_epoch(self) -> Fraction:
        # 0.3333 stands for every third epoch, and must not come later and later.
        return Fraction(self.evaluations_per_epoch).limit_denominator(100)

    def warm_started(self) -> "TrainConfig":
        """These settings as a warm-started run has them: the order of `warm_start`, all rows, progressive.

        What goes on is its last state: an earlier one that was better on held-out rows has not seen all rows.
        """
        order: dict[str, Any] = {"shuffle": self.warm_start.shuffle, "drop_last": bool(self.ingest.drop_last)}
        if self.warm_start.shuffle == "none":
            order["read_streams"] = 1
        changes: dict[str, Any] = {"epochs": self.warm_start.epochs, "progressive": True, "initial_weights": None}
        changes["checkpoint"] = self.checkpoint.model_copy(update={"keep_best": None})
        return self.model_copy(update={**changes, "ingest": self.ingest.model_copy(update=order)})

    @property
    def by_part(self) -> dict[str, PartConfig]:
        """How each part is trained, the main one first."""
        return {MAIN_PART: self, **self.parts}

    def trained_part(self, part: str) -> str:
        """The key of `by_part` under which a part of the model is trained."""
        return part if part in self.parts else MAIN_PART

    def learning_rates(self, step: int, steps_per_epoch: int) -> dict[str, LearningRates]:
        """The rates of every part at optimizer step `step`, counted from 1."""
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
        if self.early_stop is not None and self.evaluations_per_epoch == 0:
            raise ValueError("early_stop needs evaluations_per_epoch above 0")
        if self.recency is not None and self.negatives is None:
            raise ValueError("recency: only drawn samples can be weighed by it; set train.negatives, or unset it")
        if self.loss.listwise and self.negatives is not None:
            raise ValueError(
                "loss.listwise: samples drawn by train.negatives are in no groups; set it to 0, or unset negatives"
            )
        if self._has_adam_tables and "data_parallel" in self._shardings and not self.has_dense_adam_tables:
            raise ValueError(
                "sharding: under embedding_optimizer 'adam' either all tables are data_parallel or none: it updates "
                "data-parallel tables by another rule"
            )
        if self._shardings != {"data_parallel"}:
            for part in self.by_part.values():
                optimizer = part.embedding_optimizer
                if optimizer.weight_decay and optimizer.kind in {"sgd", "adagrad"}:
                    raise ValueError(
                        f"embedding_optimizer.weight_decay under '{optimizer.kind}' needs sharding.default: "
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
        """True if the tables are under Adam and all data-parallel, so that Adam is dense."""
        return self._has_adam_tables and self._shardings == {"data_parallel"}
