"""How a model answers HTTP."""

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from rayrec.config.base import Config
from rayrec.config.evaluate import InferencePrecision


class ServeConfig(Config):
    """How a model answers requests: processes, batches, and limits of what requests may take."""

    replicas: PositiveInt = 1
    """Processes that answer, each with the whole model."""
    threads_per_replica: PositiveInt = 1
    """Threads of a forward pass, and the CPUs that Ray reserves for a replica."""
    precision: InferencePrecision = "fp32"
    """Arithmetic of the dense network. A replica logs how far bf16 and fp16 move the scores of a model's examples."""
    max_batch_size: PositiveInt = 256
    """Most requests that one forward pass scores together."""
    max_batch_rows: PositiveInt = 8192
    """Most rows of one forward pass, so that small requests do not wait for many large ones."""
    batch_wait_ms: NonNegativeFloat = 0.0
    """How long a request to an idle replica waits for others; while a pass runs, requests gather in any case."""
    max_queued_requests: PositiveInt = 1024
    """Requests that wait beyond the two batches in work; further ones are answered 503 at once."""
    retry_after_seconds: PositiveInt = 1
    """How long a client that was answered 503 should wait; the header Retry-After says so."""
    table_memory_gib: PositiveFloat = 1.0
    """Most memory that the tables and vocabularies mapped by a replica hold; more is read from the page cache."""
    max_rows_per_request: PositiveInt = 8192
    """Most rows of one request."""
    max_body_mib: PositiveFloat = 16.0
    """Most that a request may send; over gRPC Ray Serve's own limit, set when Ray starts, holds too."""
    request_memory_mib: PositiveFloat = 256.0
    """Most memory that the requests of a replica hold together, half of it as they came, half of it read; further ones
    wait. What a single request needs while it is read comes on top, up to 200 MiB."""
    request_timeout_seconds: PositiveFloat = 30.0
    """A request that is not done by then is answered 504, and is not scored if it was still waiting."""
    max_replicas: PositiveInt | None = None
    """Replicas are added, up to this number, while more requests than `target_ongoing_requests` are in work, and are
    removed afterwards; None keeps `replicas`."""
    target_ongoing_requests: PositiveFloat = 8.0
    """Average number for one replica: requests a second that it answers at the wanted latency, times that latency."""
    poll_seconds: PositiveFloat = 2.0
    """How often a replica looks for new versions of its models."""

    @model_validator(mode="after")
    def _replicas_in_order(self) -> "ServeConfig":
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(f"max_replicas {self.max_replicas} is below replicas {self.replicas}")
        return self
