"""The error that a client is shown, over HTTP and gRPC."""

from collections.abc import Mapping


class RequestError(Exception):
    """A request that cannot be answered: its HTTP status, one line for the client, and headers of the answer."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers
