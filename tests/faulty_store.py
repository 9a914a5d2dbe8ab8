"""An S3 server that answers as a bad day's does: moto's, behind a proxy that fails, slows down and cuts answers short.

with faulty_store() as store, store.endpoint() as endpoint:
    store.faults = Faults(seed=1, fail=0.1, short=0.1)
    ...  # AWS_ENDPOINT_URL is endpoint.url
"""

import http.client
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pyarrow import fs

BUCKET = "bucket"
_OF_A_CONNECTION = {"connection", "content-length", "expect", "transfer-encoding"}


@dataclass(frozen=True)
class Faults:
    """The shares of requests that go wrong, each in one way, drawn from a seed in the order of the requests."""

    seed: int = 0
    fail: float = 0.0
    """Answered with 503 (SlowDown), and nothing is done."""
    reset: float = 0.0
    """The connection ends without an answer, though what was asked for is done."""
    slow: float = 0.0
    """Answered after a fifth of a second."""
    cut: float = 0.0
    """The connection ends in the middle of the answer."""
    short: float = 0.0
    """Half of the answer, whose header says that it is all."""


@dataclass
class Store:
    """The server, whose faults may be changed at any time."""

    filesystem: fs.SubTreeFileSystem
    """The bucket without faults."""
    _port: int
    _faults: Faults = Faults()
    _random: random.Random = field(default_factory=random.Random)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    met: Counter[str] = field(default_factory=Counter)
    """How many requests went wrong in each way."""
    held: str = ""
    """Regular expression: what is written to a path in which it is found waits as long as it is given."""
    waiting: Counter[str] = field(default_factory=Counter)
    """How many requests have come to wait, by path."""

    @property
    def faults(self) -> Faults:
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        with self._lock:
            self._faults, self._random = faults, random.Random(faults.seed)

    def names(self, folder: str) -> list[str]:
        """Return the files below a folder of the bucket, by their paths in it."""
        infos = self.filesystem.get_file_info(fs.FileSelector(folder, recursive=True))
        return sorted(i.path.removeprefix(f"{folder}/") for i in infos if i.type == fs.FileType.File)

    @contextmanager
    def endpoint(self) -> Iterator["Endpoint"]:
        """One more address of the server; what is read there is counted."""
        endpoint = Endpoint(self)
        server = _Server(("127.0.0.1", 0), _handler(endpoint, self._port))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        endpoint.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield endpoint
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def hold(self, method: str, path: str) -> None:
        """Let a request wait that must."""
        while self.held and method in ("PUT", "POST") and re.search(self.held, path):
            self.waiting[path] += 1
            time.sleep(0.05)

    def draw(self) -> str:
        """Return what goes wrong with the next request; "" if nothing does."""
        with self._lock:
            left = self._random.random()
            for kind in ("fail", "reset", "slow", "cut", "short"):
                left -= getattr(self._faults, kind)
                if left < 0:
                    self.met[kind] += 1
                    return kind
        return ""


@dataclass
class Endpoint:
    """An address of the server, and what was read at it."""

    store: Store
    url: str = ""
    read: Counter[str] = field(default_factory=Counter)
    """Bytes of answers by the path of what was read."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, path: str, size: int) -> None:
        """Add to what was read."""
        with self.lock:
            self.read[path] += size

    def bytes_of(self, part: str) -> int:
        """Bytes that were read of all files with `part` in their path."""
        return sum(size for path, size in self.read.items() if part in path)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Clients leave connections whose answers they no longer need."""


@contextmanager
def faulty_store() -> Iterator[Store]:
    """Yield a server with an empty bucket for the time of the block."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        direct = fs.S3FileSystem(
            access_key="testing", secret_key="testing", endpoint_override=f"{host}:{port}", scheme="http",
            allow_bucket_creation=True,
        )  # fmt: skip
        direct.create_dir(BUCKET)
        yield Store(fs.SubTreeFileSystem(BUCKET, direct), port)
    finally:
        reset = http.client.HTTPConnection(host, port)
        reset.request("POST", "/moto-api/reset")  # servers of one process share what they hold
        reset.getresponse()
        reset.close()
        server.stop()


def _handler(endpoint: Endpoint, port: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self._body()
            endpoint.store.hold(self.command, self.path)
            fault = endpoint.store.draw()
            if fault == "fail":
                self._send(503, [], b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>")
                return
            if fault == "slow":
                time.sleep(0.2)
            connection = http.client.HTTPConnection("127.0.0.1", port)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_A_CONNECTION}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            if self.command == "GET":
                endpoint.count(self.path.partition("?")[0], len(content))
            if fault == "reset":
                self.close_connection = True
                return
            if fault == "short" and answer.status == 206:
                content = content[: len(content) // 2]
            self._send(answer.status, answer.getheaders(), content, is_cut=fault == "cut")

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            chunks = []
            while size := int(self.rfile.readline(), 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)

        def _send(self, status: int, headers: list[tuple[str, str]], content: bytes, *, is_cut: bool = False) -> None:
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in _OF_A_CONNECTION or self.command == "HEAD":
                    self.send_header(name, value)
            if self.command != "HEAD":
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if is_cut:
                content, self.close_connection = content[: len(content) // 2], True
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.answer)
    return Handler
