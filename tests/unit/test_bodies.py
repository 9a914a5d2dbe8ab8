"""Bodies are received by the layer before Ray Serve takes up their requests, over HTTP and gRPC, in bounded memory."""

import asyncio
import gc
import gzip
import json
import random
import tracemalloc
import weakref
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.serve._private.grpc_util import gRPCGenericServer
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rayrec.config import ServeConfig
from serve import admission as admission_module
from serve.admission import SMALL_BYTES, Admission, Memory, set_of_this_replica
from serve.grpc_server import SERVICE, add_to_server, proto
from serve.http import Front, ProxyFront, Route, Router, call_of, middlewares
from serve.metrics import ServingMetrics
from serve.requests import RequestError, inflated, parse_json
from serve.tokens import read_tokens

TOKEN = "0123456789abcdef"
METRICS = ServingMetrics()
KIB, MIB = 2**10, 2**20
SETTINGS = ServeConfig(max_body_mib=1, request_memory_mib=4, request_timeout_seconds=2)
TOKENS = read_tokens(None, {"RAYREC_SERVE_TOKENS": TOKEN})


@pytest.fixture(autouse=True)
def admission(monkeypatch: pytest.MonkeyPatch) -> Iterator[Admission]:
    """The admission of a replica with a token, 1 MiB a body and 2 MiB for all of them."""
    monkeypatch.setattr(admission_module, "_replica", [])
    replica = Admission(SETTINGS, TOKENS, METRICS)
    set_of_this_replica(replica)
    yield replica
    assert replica._bodies.held == replica._parsed.held == 0


class Client:
    """A client, which sends pieces, each after a pause, and the last ones after the event `second`."""

    def __init__(
        self,
        *pieces: bytes,
        pause: float = 0.0,
        stated: int | None = None,
        token: bool = True,
        encoding: str = "",
        second: asyncio.Event | None = None,
    ) -> None:
        self.left, self.pause, self.stated, self.token, self.encoding = list(pieces), pause, stated, token, encoding
        self.taken, self.second = 0, second
        self.status, self.answer, self.headers = 0, b"", dict[str, str]()

    async def receive(self) -> Any:
        await asyncio.sleep(self.pause)
        if self.taken and self.second is not None:
            await self.second.wait()
        if not self.left:
            return {"type": "http.disconnect"}
        self.taken += 1
        return {"type": "http.request", "body": self.left.pop(0), "more_body": bool(self.left)}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.answer += message["body"]

    async def ask(self, app: Any, admission: Admission) -> "Client":
        length = (b"transfer-encoding", b"chunked") if self.stated is None else (b"content-length", b"%d" % self.stated)
        headers = [length, *([(b"authorization", f"Bearer {TOKEN}".encode())] if self.token else [])]
        if self.encoding:
            headers.append((b"content-encoding", self.encoding.encode()))
        scope = {"type": "http", "method": "POST", "path": "/v1/models/m:predict", "headers": headers}
        await asyncio.wait_for(Front(app, admission, True)(scope, self.receive, self.send), 10)
        return self


async def echo(request: Request) -> Response:
    return Response(call_of(request).body)


async def echoing(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the body that the layer has received, as Ray Serve reads ahead: there is none left."""
    first, second = await receive(), await receive()
    assert (first["body"], first["more_body"], second["type"]) == (b"", False, "http.disconnect")
    await Response(call_of(Request(scope)).body)(scope, receive, send)


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("the request was let through")


@pytest.mark.parametrize(
    ("client", "status", "taken"),
    [
        (Client(b"a" * 2 * MIB, stated=2 * MIB, token=False), 401, 0),
        (Client(b"a", stated=2 * MIB), 413, 0),
        (Client(*[b"a" * 300 * KIB] * 1000), 413, 4),
    ],
    ids=["no token", "too large, as it says", "too large, as it shows"],
)
def test_what_is_refused_is_not_read_further(admission: Admission, client: Client, status: int, taken: int) -> None:
    asyncio.run(client.ask(never, admission))
    assert (client.status, client.taken) == (status, taken)
    assert len(client.headers["x-request-id"]) == 32
    assert list(json.loads(client.answer)) == ["error"]


@pytest.mark.parametrize("size", [100, 100 * KIB])
@pytest.mark.parametrize("states_size", [True, False])
def test_the_application_has_the_whole_body(admission: Admission, size: int, states_size: bool) -> None:
    client = Client(b"a" * size, b"b" * size, stated=2 * size if states_size else None)
    asyncio.run(client.ask(echoing, admission))
    assert (client.status, client.answer) == (200, b"a" * size + b"b" * size)


PLAIN = bytes(i % 251 for i in range(1000)) * 900
GZIPPED = gzip.compress(PLAIN)
COMPRESSED: dict[str, tuple[bytes, str, int, str]] = {
    "gzip": (GZIPPED, "gzip", 200, ""),
    "its other name": (GZIPPED, "X-GZip", 200, ""),
    "deflate": (zlib.compress(PLAIN), "deflate", 200, ""),
    "as it is": (PLAIN, "identity", 200, ""),
    "a bomb": (gzip.compress(bytes(2**21)), "gzip", 413, "the body inflates to more than 1 MiB"),
    "cut": (GZIPPED[:-9], "gzip", 400, "the compressed body ends too early"),
    "two": (GZIPPED * 2, "gzip", 400, "the compressed body goes on after its end"),
    "nothing": (b"", "gzip", 400, "the compressed body ends too early"),
    "plain": (PLAIN, "gzip", 400, "the body is not what its Content-Encoding says"),
    "damaged": (GZIPPED[:-8] + bytes(4) + GZIPPED[-4:], "gzip", 400, "the body is not what its Content-Encoding says"),
    "another": (PLAIN, "br", 415, "Content-Encoding 'br': send gzip, deflate, or the body as it is"),
    "two encodings": (PLAIN, "gzip, deflate", 415, "Content-Encoding 'gzip, deflate': send"),
}


@pytest.mark.parametrize("case", COMPRESSED)
def test_compressed_bodies(admission: Admission, case: str) -> None:
    body, encoding, status, message = COMPRESSED[case]
    client = asyncio.run(Client(body[:20], body[20:], encoding=encoding).ask(echoing, admission))
    assert client.status == status
    if status == 200:
        assert client.answer == PLAIN
    else:
        assert message in json.loads(client.answer)["error"]


def test_many_compressed_bodies_at_once(admission: Admission) -> None:
    """Small ones and large ones, which wait for memory before they are whole."""
    large = random.Random(0).randbytes(900 * KIB)

    async def test() -> list[Client]:
        bodies = [GZIPPED, gzip.compress(large)] * 10
        clients = [Client(body[:80_000], body[80_000:], encoding="gzip") for body in bodies]
        return await asyncio.gather(*(client.ask(echoing, admission) for client in clients))

    assert [client.answer for client in asyncio.run(test())] == [PLAIN, large] * 10


def test_a_bomb_is_not_inflated_to_its_end() -> None:
    bomb = gzip.compress(bytes(2**26))
    tracemalloc.start()
    with pytest.raises(RequestError, match="inflates to more than 1 MiB"):
        inflated(bomb, 2**20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**23


def test_who_does_not_fit_waits_and_small_requests_pass(admission: Admission) -> None:
    async def test() -> None:
        sent, half = asyncio.Event(), (b"a" * 900 * KIB, b"a" * 100 * KIB)
        large = [asyncio.create_task(Client(*half, second=sent).ask(echoing, admission)) for _ in range(3)]
        await asyncio.sleep(0.1)
        # Two have memory for the largest body, as they do not say how large theirs are.
        assert admission._bodies.held == 2 * MIB
        small = await Client(b"a" * SMALL_BYTES).ask(echoing, admission)
        assert small.status == 200 and not any(task.done() for task in large)
        sent.set()
        assert [client.status for client in await asyncio.gather(*large)] == [200, 200, 200]

    asyncio.run(test())


def test_who_waits_too_long_for_memory_is_answered(admission: Admission) -> None:
    async def test() -> list[Client]:
        never_sent, half = asyncio.Event(), (b"a" * 900 * KIB, b"a")
        slow = [Client(*half, second=never_sent) for _ in range(3)]
        return await asyncio.gather(*(client.ask(never, admission) for client in slow))

    assert [client.status for client in asyncio.run(test())] == [504, 504, 504]


def test_a_body_that_never_ends_is_answered_in_time() -> None:
    settings = SETTINGS.model_copy(update={"request_timeout_seconds": 0.1})
    client = asyncio.run(Client(b"a", b"b", pause=0.06).ask(never, Admission(settings, TOKENS, METRICS)))
    assert client.status == 504


def test_a_request_is_admitted_once(admission: Admission, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the layer before Ray Serve, if there is one; the application has it, too."""
    application = Front(Router([Route("/v1/models/m:predict", echo, "POST")], admission), admission)
    recorded: list[Any] = []
    monkeypatch.setattr(METRICS, "answered", lambda *told: recorded.append(told[3]))
    for app in (application, application.app):
        client = asyncio.run(Client(b"abc").ask(app, admission))
        assert (client.status, client.answer) == (200, b"abc")
    assert recorded == [200, 200]


def test_ray_serve_takes_it() -> None:
    from ray.serve._private.http_util import validate_http_proxy_callback_return

    from cluster.ray_serve import SETTINGS as VARIABLES

    assert VARIABLES["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"] == f"{middlewares.__module__}.{middlewares.__name__}"
    (of_a_replica,) = validate_http_proxy_callback_return(middlewares())
    assert of_a_replica.cls is Front
    admission_module._replica.clear()
    (of_a_proxy,) = validate_http_proxy_callback_return(middlewares())
    assert of_a_proxy.cls is ProxyFront
    assert VARIABLES["RAY_SERVE_GRPC_MAX_MESSAGE_SIZE"] == str(int(ServeConfig().max_body_mib * 2**20))


def test_json_of_too_many_values_makes_no_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(*_: Any, **__: Any) -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr("pydantic_core.from_json", parse)
    for unit in (b"{},", b"[],", b'"",', b'"abc":1,'):
        with pytest.raises(RequestError, match="values, at most 1048576 a request") as refused:
            parse_json(b"[" + unit * 2**20 + b"0]", "")
        assert refused.value.status == 413


def test_what_is_parsed_waits_for_memory(admission: Admission) -> None:
    """Of two requests that may take 1.5 MiB each, the second waits for the first; a small one does not."""

    async def test() -> list[str]:
        order: list[str] = []

        async def work(name: str, size: int) -> None:
            async with admission.parsed(size, 700, 1, lambda: name) as content:
                order.append(content)
                await asyncio.sleep(0.1)
                order.append("end")

        await asyncio.gather(work("a", 700 * KIB), work("b", 700 * KIB), work("small", 700))
        return order

    assert asyncio.run(test()) == ["small", "a", "end", "end", "b", "end"]


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3)), max_size=20))
def test_memory_is_bounded_and_all_get_theirs(sizes: list[tuple[int, int]]) -> None:
    """One alone may exceed the limit: otherwise the largest body that is allowed could wait for ever."""
    unit = SMALL_BYTES + 1

    async def test() -> None:
        memory = Memory(10 * unit)

        async def work(size: int, pause: int) -> None:
            await memory.take(size * unit)
            assert memory.held <= max(10, size) * unit
            await asyncio.sleep(pause / 1000)
            memory.give(size * unit)

        await asyncio.gather(*(work(*size) for size in sizes))
        assert memory.held == 0

    asyncio.run(asyncio.wait_for(test(), 20))


def test_one_that_gave_up_waiting_holds_nothing() -> None:
    async def test() -> None:
        memory = Memory(MIB)
        await memory.take(MIB)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(memory.take(MIB), 0.05)
        assert memory.held == MIB
        memory.give(MIB)
        await asyncio.wait_for(memory.take(MIB), 0.05)

    asyncio.run(test())


def test_an_error_does_not_hold_what_was_parsed(admission: Admission) -> None:
    class Content:
        pass

    made: list[weakref.ref[Content]] = []

    def parse() -> None:
        content = Content()
        made.append(weakref.ref(content))
        raise RequestError(422, "wrong")

    async def test() -> RequestError:
        with pytest.raises(RequestError, match="wrong") as refused:
            async with admission.parsed(100_000, 0, 0, parse):
                pass
        return refused.value

    gc.disable()
    try:
        error = asyncio.run(test())
        assert error.status == 422 and made[0]() is None
    finally:
        gc.enable()


@asynccontextmanager
async def _grpc_server(size: int) -> AsyncIterator[Any]:
    """A channel to a server of Ray Serve's whose methods tell, as bytes, whether they were sent `size` of them."""

    async def answer(request: bytes, context: Any) -> bytes:
        return proto.ModelReadyResponse(ready=len(request) == size).SerializeToString()

    server = gRPCGenericServer(lambda service_method, streaming_type: answer)
    add_to_server(Mock(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


def test_grpc_reads_a_message_after_its_token() -> None:
    async def test() -> None:
        async with _grpc_server(900) as channel:
            ask = channel.unary_unary(f"/{SERVICE}/ModelReady")
            metadata = (("authorization", f"Bearer {TOKEN}"),)
            answer = await ask(b"a" * 900, metadata=metadata)
            assert proto.ModelReadyResponse.FromString(answer).ready
            answers = await asyncio.gather(*(ask(b"a" * 900, metadata=metadata) for _ in range(50)))
            assert all(proto.ModelReadyResponse.FromString(answer).ready for answer in answers)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await ask(b"a" * 900)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED

    asyncio.run(asyncio.wait_for(test(), 30))


def test_grpc_calls_that_do_not_come_end_in_time() -> None:
    async def test() -> None:
        async with _grpc_server(900) as channel:
            metadata = (("authorization", f"Bearer {TOKEN}"),)
            slow = [channel.stream_unary(f"/{SERVICE}/ModelReady")(metadata=metadata) for _ in range(4)]
            assert [await call.code() for call in slow] == [grpc.StatusCode.DEADLINE_EXCEEDED] * 4
            ask = channel.unary_unary(f"/{SERVICE}/ModelReady")
            assert proto.ModelReadyResponse.FromString(await ask(b"a" * 900, metadata=metadata)).ready

    asyncio.run(asyncio.wait_for(test(), 30))
