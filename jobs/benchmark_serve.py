"""`rayrec benchmark serve`: measures a server of a model on this machine."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote, urlsplit

from pydantic import PositiveFloat, PositiveInt

from jobs.command import Command, Positional, Request, Result, main, text_table
from jobs.export import exported
from jobs.serve import ServeRequest, endpoint_of, serving
from rayrec.common.errors import UserError
from rayrec.common.machine import Machine, describe_machine, free_port
from rayrec.common.progress import Progress, SilentProgress
from rayrec.store.paths import Folder

if TYPE_CHECKING:
    import pyarrow as pa

    from rayrec.inference.raw_rows import RawRows

Protocol = Literal["json", "oip", "arrow"]
_NAME = "model"
_WARM_UP_SECONDS = 1.0


REFUSED, BROKEN = 0, -1


@dataclass(frozen=True)
class Post:
    """A POST request that is sent again and again."""

    url: str
    """Address of the request, with http as its scheme."""
    body: bytes
    headers: Mapping[str, str]

    def encoded(self) -> bytes:
        """Return the request as it is sent."""
        url = urlsplit(self.url)
        headers = {"Host": url.netloc, "Content-Length": str(len(self.body)), **self.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST {url.path} HTTP/1.1\r\n{lines}\r\n".encode() + self.body


@dataclass(frozen=True)
class TimedAnswer:
    """One request and how it was answered."""

    began: float
    """Seconds between the start of the load and the start of this request."""
    seconds: float
    """Seconds between the start of this request and the last byte of its answer."""
    status: int
    """HTTP status; REFUSED where nobody listens, BROKEN where a connection ends before the answer."""


class ServeBenchmarkRequest(Request):
    model: Annotated[Folder, Positional("MODEL")]
    """Model folder or run folder."""
    protocol: tuple[Protocol, ...] = ("json", "oip", "arrow")
    """JSON, binary tensors (Open Inference Protocol) or Arrow streams; repeatable."""
    rows: tuple[PositiveInt, ...] = (1, 256)
    """Rows per request; repeatable."""
    clients: tuple[PositiveInt, ...] = (1, 4)
    """Number of clients, each with one request at a time; repeatable."""
    seconds: PositiveFloat = 5.0
    """Length of each measurement, after one second of warm-up."""


def run(request: ServeBenchmarkRequest, progress: Progress) -> Result:
    """Measure; `details.table` has a row for each protocol, number of rows and number of clients.

    `details.machine` says where, and beside what load.
    """
    from rayrec.inference.examples import Examples
    from rayrec.inference.folder.model_folder import ModelFolder
    from rayrec.inference.raw_rows import RawRows

    machine, table = Machine(), []
    with ExitStack() as stack:
        progress.stage("start server")
        folder = stack.enter_context(exported(request.model))
        raw_rows, examples = RawRows(ModelFolder.open(folder).schema), Examples.load(folder)
        if examples.verb != "predict":
            raise UserError(f"{folder}: scores the next items of people, and no rows, which are measured here")
        instances = examples.instances
        server = ServeRequest(model=(f"{_NAME}={folder}",), port=free_port())
        url = stack.enter_context(serving(server, SilentProgress()))
        for protocol in request.protocol:
            for rows in request.rows:
                post = post_of(url, _NAME, protocol, raw_rows, list(islice(cycle(instances), rows)))
                for clients in request.clients:
                    progress.stage(f"{protocol}: {rows} rows a request, {clients} clients")
                    found = measured(post, clients, request.seconds)
                    each = {"protocol": protocol, "rows": rows, "clients": clients, **found}
                    table.append({**each, "rows_per_second": round(rows * found["requests_per_second"])})
        progress.finish()
    return Result(command="benchmark serve", details={"machine": machine.described(), "table": table})


def measured(post: Post, clients: int, seconds: float) -> dict[str, Any]:
    """Return what clients that wait for their answers find, after a second of warm-up; latencies are those of answers.

    Raises UserError if the server does not answer `post` at all.
    """
    status, body = answer_to(post)
    if status != 200:
        raise UserError(f"{post.url}: answered {status}: {body[:300].decode(errors='replace')}")
    load_of_clients(post, clients, lambda passed: passed >= _WARM_UP_SECONDS)
    samples = load_of_clients(post, clients, lambda passed: passed >= seconds)
    statuses = Counter(sample.status for sample in samples)
    answered = [sample.seconds for sample in samples if sample.status == 200]
    length = max(sample.began + sample.seconds for sample in samples)
    return {
        "requests_per_second": round(statuses[200] / length, 1),
        **{f"{name}_ms": value for name, value in percentiles(answered).items()},
        "errors": len(samples) - statuses[200],
    }


def post_of(url: str, model: str, protocol: Protocol, raw_rows: "RawRows", rows: Sequence[Mapping[str, Any]]) -> Post:
    """Return a request for the scores of raw rows by a model that is served at `url`."""
    from serve import arrow

    predict = endpoint_of(url, model, "predict")
    if protocol == "json":
        return Post(predict, json.dumps({"instances": rows}).encode(), {"Content-Type": "application/json"})
    columns = raw_rows.from_rows(rows)
    if protocol == "arrow":
        return Post(predict, arrow.stream_of(columns), {"Content-Type": arrow.MEDIA_TYPE})
    head, data = _tensors(columns, rows)
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return Post(f"{url}/v2/models/{quote(model, safe='')}/infer", head + data, headers)


def _tensors(columns: "pa.RecordBatch", rows: Sequence[Mapping[str, Any]]) -> tuple[bytes, bytes]:
    """Return the JSON of a request of the Open Inference Protocol, and the binary tensors that follow it.

    Numbers, texts and ids are binary, times as the rows have them; lists are left out.
    """
    import numpy as np
    import pyarrow as pa

    inputs, binary = [], b""
    for name, column in zip(columns.schema.names, columns.columns, strict=True):
        if pa.types.is_list(column.type):
            continue
        entry: dict[str, Any] = {"name": name, "shape": [len(rows)]}
        data = None
        if pa.types.is_floating(column.type):
            entry["datatype"], data = "FP64", column.fill_null(np.nan).to_numpy().tobytes()
        elif pa.types.is_integer(column.type):
            entry["datatype"], data = "INT64", column.fill_null(-1).to_numpy().tobytes()
        elif pa.types.is_string(column.type):
            texts = [(text or "").encode() for text in column.to_pylist()]
            entry["datatype"], data = "BYTES", b"".join(len(text).to_bytes(4, "little") + text for text in texts)
        else:
            entry |= {"datatype": "BYTES", "data": [row.get(name) for row in rows]}
        if data is not None:
            entry["parameters"] = {"binary_data_size": len(data)}
            binary += data
        inputs.append(entry)
    return json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode(), binary


def describe(result: Result) -> str:
    """Return the table as text, and below it the machine."""
    return f"{text_table(result.details['table'])}\n{describe_machine(result.details['machine'])}"


def answer_to(post: Post) -> tuple[int, bytes]:
    """Return the status and the body of one answer. Raises OSError if the connection fails."""

    async def ask() -> HttpAnswer:
        client = HttpClient(post)
        answer = await client.ask()
        client.close()
        return answer

    answer = asyncio.run(ask())
    if answer.status <= 0:
        raise OSError("the connection failed")
    return answer.status, answer.body


def load_of_clients(post: Post, clients: int, is_over: Callable[[float], bool]) -> list[TimedAnswer]:
    """Send `post` from clients that wait for an answer before they ask again.

    They end when `is_over` says so, which is given the seconds that have passed.
    """
    samples: list[TimedAnswer] = []

    async def ask_again_and_again(client: HttpClient, began: float) -> None:
        while not is_over(asked := time.perf_counter() - began):
            status = (await client.ask()).status
            samples.append(TimedAnswer(asked, time.perf_counter() - began - asked, status))
            if status <= 0:
                await asyncio.sleep(0.1)  # a server that is gone refuses thousands of connections a second

    async def ask() -> None:
        client, began = HttpClient(post), time.perf_counter()
        await asyncio.gather(*(ask_again_and_again(client, began) for _ in range(clients)))
        client.close()

    asyncio.run(ask())
    return samples


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the percentiles 50, 95 and 99 of latencies, in milliseconds; nothing of none."""
    import numpy as np

    return {f"p{q}": round(1e3 * float(np.percentile(seconds, q)), 3) for q in (50, 95, 99)} if seconds else {}


@dataclass(frozen=True)
class HttpAnswer:
    """An answer to one request."""

    status: int
    """HTTP status, or one of those that `TimedAnswer` has."""
    body: bytes = b""
    keeps: bool = False
    """True if the connection takes another request."""


class HttpClient:
    """Sends one request again and again, over connections that are kept."""

    def __init__(self, post: Post) -> None:
        url = urlsplit(post.url)
        self._address = url.hostname or "", url.port or 80
        self._request = post.encoded()
        self._idle: list[_Connection] = []

    async def ask(self) -> HttpAnswer:
        """Return the answer to one request."""
        while self._idle and self._idle[-1].is_closed:
            self._idle.pop()
        try:
            connection = self._idle.pop() if self._idle else await self._connected()
        except ConnectionRefusedError:
            return HttpAnswer(REFUSED)
        except OSError:
            return HttpAnswer(BROKEN)
        answer = await connection.ask(self._request)
        if answer.keeps:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    async def _connected(self) -> "_Connection":
        _, connection = await asyncio.get_running_loop().create_connection(_Connection, *self._address)
        return connection

    def close(self) -> None:
        for connection in self._idle:
            connection.close()


class _Connection(asyncio.Protocol):
    """One connection. Streams of asyncio would take longer for a request than the server itself does."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._received = bytearray()
        self._answer: asyncio.Future[HttpAnswer] | None = None

    @property
    def is_closed(self) -> bool:
        return self._transport.is_closing()

    async def ask(self, request: bytes) -> HttpAnswer:
        self._received.clear()
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0 or self._answer is None or self._answer.done():
            return
        head = self._received[:end].decode("latin-1").lower()
        length = head.partition("content-length:")[2].partition("\r\n")[0]
        if len(self._received) >= end + 4 + int(length or 0):
            keeps = bool(length) and "connection: close" not in head
            self._answer.set_result(HttpAnswer(int(head.split(maxsplit=2)[1]), bytes(self._received[end + 4 :]), keeps))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(HttpAnswer(BROKEN))

    def close(self) -> None:
        self._transport.close()


COMMAND = Command("benchmark serve", ServeBenchmarkRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
