"""The section `serve` of a recipe: how a model answers requests."""

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from rayrec.config.base import Config
from rayrec.config.evaluate import InferencePrecision


class RecommendConfig(Config):
    """How a model of users and items makes lists, whoever asks for them."""

    popularity_penalty: NonNegativeFloat = 0.0
    """What an item's logit loses for each unit of ln(1 + its events), so that fewer lists have the most popular items;
    scores stay as they are. `rayrec report` measures what 0.25, 0.5 and 1 cost in accuracy.
    """
    rank: str | None = None
    """Name of a model on the same server that ranks the best `retrieve` items of `:recommend` again."""
    retrieve: PositiveInt = 200
    """Items that `rank` gets; those asked for, if they are more."""


class ServeConfig(Config):
    """Settings of a server: processes, batches and limits."""

    replicas: PositiveInt = 1
    """Number of processes, each with the whole model."""
    threads_per_replica: PositiveInt = 1
    """Threads of a forward pass, and CPUs that Ray reserves for a replica."""
    precision: InferencePrecision = "fp32"
    """Arithmetic of the dense network. A replica logs how much bf16 and fp16 change scores."""
    max_batch_size: PositiveInt = 256
    """Most requests in a forward pass."""
    max_batch_rows: PositiveInt = 8192
    """Most rows in a forward pass."""
    batch_wait_ms: NonNegativeFloat = 0.0
    """Time that a request to an idle replica waits for others."""
    max_queued_requests: PositiveInt = 1024
    """Most requests that wait beyond two batches; further ones are answered 503."""
    retry_after_seconds: PositiveInt = 1
    """Retry-After header of a 503."""
    table_memory_gib: PositiveFloat = 1.0
    """Most memory for tables and vocabularies of a replica; the rest is read from the page cache."""
    max_rows_per_request: PositiveInt = 8192
    """Most rows of a request."""
    max_body_mib: PositiveFloat = 16.0
    """Largest request; over gRPC, Ray Serve's own limit applies too."""
    request_memory_mib: PositiveFloat = 256.0
    """Most memory for all requests of a replica, half as received, half decoded; further ones wait. Decoding one
    takes up to 200 MiB more.
    """
    request_timeout_seconds: PositiveFloat = 30.0
    """Time after which a request is answered 504."""
    max_replicas: PositiveInt | None = None
    """Most replicas: more start while a replica has over `target_ongoing_requests`, and stop later. `null`: always
    `replicas`."""
    target_ongoing_requests: PositiveFloat = 8.0
    """Average requests in progress for a replica: its requests a second at the wanted latency, times that latency."""
    poll_seconds: PositiveFloat = 2.0
    """Time between looks for new versions of models."""
    recommend: RecommendConfig = RecommendConfig()
    """Lists of the model itself: unlike the other settings, each served model keeps its own."""

    @model_validator(mode="after")
    def _replicas_in_order(self) -> "ServeConfig":
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(f"max_replicas {self.max_replicas} is below replicas {self.replicas}")
        return self
