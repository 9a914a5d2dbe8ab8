"""What is kept of every request, over HTTP and gRPC: its metrics and its line in the access log."""

from dataclasses import dataclass

from serve.json_log import JsonLog
from serve.metrics import ServingMetrics


@dataclass(frozen=True)
class ServedBy:
    """Which version of which model a request asked to do what."""

    model: str = ""
    version: str = ""
    method: str = ""


class RequestLog:
    """Counts requests, times those that a model answered, and writes a line of each where there is a log."""

    def __init__(self, metrics: ServingMetrics, access_log: JsonLog | None) -> None:
        self._metrics = metrics
        self._access_log = access_log

    def record(
        self,
        served: ServedBy,
        *,
        request_id: str,
        client: str,
        http_method: str,
        path: str,
        status: int,
        seconds: float,
    ) -> None:
        """One request that was answered, or whose client went away. gRPC's requests have the status of HTTP's."""
        tags = {"model": served.model, "version": served.version, "method": served.method}
        self._metrics.requests.inc(1, {**tags, "status": str(status)})
        if served.method:
            self._metrics.seconds.observe(seconds, tags)
        if self._access_log is not None:
            self._access_log.write(
                {
                    "request_id": request_id,
                    "client": client,
                    "http_method": http_method,
                    "path": path,
                    **tags,
                    "status": status,
                    "seconds": round(seconds, 6),
                }
            )
