"""How a model answers HTTP."""

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from rayrec.config.base import Config


class ServeConfig(Config):
    replicas: PositiveInt = 1
    threads_per_replica: PositiveInt = 1
    """Threads of a forward pass, and the CPUs that Ray reserves for a replica."""
    max_batch_size: PositiveInt = 256
    """Most requests that one forward pass scores together."""
    max_batch_rows: PositiveInt = 8192
    """Most rows of one forward pass, so that small requests do not wait for many large ones."""
    batch_wait_ms: NonNegativeFloat = 0.0
    """How long a request to an idle replica waits for others; while a pass runs, requests gather in any case."""
    max_queued_requests: PositiveInt = 1024
    """Requests that wait beyond the two batches in work; further ones are answered 503 at once."""
    max_rows_per_request: PositiveInt = 8192
    poll_seconds: PositiveFloat = 2.0
    """How often a replica looks for new versions of its models."""
