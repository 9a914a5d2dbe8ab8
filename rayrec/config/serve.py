"""How a model answers HTTP."""

from pydantic import NonNegativeFloat, PositiveInt

from rayrec.config.base import Config


class ServeConfig(Config):
    replicas: PositiveInt = 1
    threads_per_replica: PositiveInt = 1
    """Threads of a forward pass, and the CPUs that Ray reserves for a replica."""
    max_batch_size: PositiveInt = 256
    """Most requests that one forward pass scores together."""
    batch_wait_ms: NonNegativeFloat = 1.0
    """How long a request waits for others to share its forward pass."""
    max_queued_requests: PositiveInt = 1024
    """Requests that wait beyond the two batches in work; further ones are answered 503 at once."""
    max_rows_per_request: PositiveInt = 8192
