"""Bodies are received under the replica's rule before Ray Serve takes up their requests, over HTTP and gRPC."""

import asyncio
import gc
import gzip
import json
import tracemalloc
import weakref
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
from ray.serve._private.grpc_util import gRPCGenericServer
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rayrec.config import ServeConfig
from serve import admission as admission_module
from serve import memory as memory_module
from serve.admission import Admission, set_of_this_replica
from serve.grpc_server import SERVICE, add_to_server, proto
from serve.http import Intake, error_response, middlewares, read_body
from serve.metrics import ServingMetrics
from serve.requests import RequestError, inflated, parse_json
from serve.tokens import read_tokens

TOKEN = "0123456789abcdef"
METRICS = ServingMetrics()
KIB = 2**10
SETTINGS = ServeConfig(max_body_mib=1 / KIB, request_memory_mib=4 / KIB, request_timeout_seconds=1)


TOKENS = read_tokens(None, {"RAYREC_SERVE_TOKENS": TOKEN})


@pytest.fixture(autouse=True)
def admission(monkeypatch: pytest.MonkeyPatch) -> Iterator[Admission]:
    """The admission of a replica with a token, 1 KiB a body and 2 KiB for all of them."""
    monkeypatch.setattr(memory_module, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(admission_module, "_replica", [])
    replica = Admission(SETTINGS, TOKENS, METRICS)
    set_of_this_replica(replica)
    yield replica
    assert replica.bodies.held == 0 and not replica.bodies._arriving


class Client:
    """A client of the intake, which sends pieces, each after a pause."""

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

    async def ask(self, app: Any) -> "Client":
        length = (b"transfer-encoding", b"chunked") if self.stated is None else (b"content-length", b"%d" % self.stated)
        headers = [length, *([(b"authorization", f"Bearer {TOKEN}".encode())] if self.token else [])]
        if self.encoding:
            headers.append((b"content-encoding", self.encoding.encode()))
        scope = {"type": "http", "method": "POST", "path": "/v1/models/m:predict", "headers": headers}
        await asyncio.wait_for(Intake(app)(scope, self.receive, self.send), 10)
        return self


async def counting(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the number and size of the messages that it receives, which Ray Serve reads ahead."""
    first, second = await receive(), await receive()
    content = json.dumps([len(first["body"]), first["more_body"], second["type"]]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": content})


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("the request was let through")


def test_an_application_receives_the_whole_body_at_once() -> None:
    client = asyncio.run(Client(b"a" * 400, b"b" * 400).ask(counting))
    assert (client.status, json.loads(client.answer)) == (200, [800, False, "http.disconnect"])


@pytest.mark.parametrize(
    ("client", "status", "taken"),
    [
        (Client(b"a" * 2000, stated=2000, token=False), 401, 0),
        (Client(b"a", stated=2000), 413, 0),
        (Client(*[b"a" * 300] * 1000), 413, 4),
        (Client(b"a" * 100), 200, 1),
    ],
    ids=["no token", "too large, as it says", "too large, as it shows", "honest"],
)
def test_what_is_refused_is_not_read_further(client: Client, status: int, taken: int) -> None:
    asyncio.run(client.ask(counting if status == 200 else never))
    assert (client.status, client.taken if status != 200 else 1) == (status, taken)
    if status != 200:
        assert len(client.headers["x-request-id"]) == 32
        assert list(json.loads(client.answer)) == ["error"]


GZIPPED = gzip.compress(b"a" * 900)
COMPRESSED: dict[str, tuple[bytes, str, int, str]] = {
    "gzip": (GZIPPED, "gzip", 200, ""),
    "its other name": (GZIPPED, "X-GZip", 200, ""),
    "deflate": (zlib.compress(b"a" * 900), "deflate", 200, ""),
    "as it is": (b"a" * 900, "identity", 200, ""),
    "a bomb": (gzip.compress(bytes(2**19)), "gzip", 413, "the body inflates to more than 0.000976562 MiB"),
    "cut": (GZIPPED[:-9], "gzip", 400, "the compressed body ends too early"),
    "two": (GZIPPED * 2, "gzip", 400, "the compressed body goes on after its end"),
    "nothing": (b"", "gzip", 400, "the compressed body ends too early"),
    "plain": (b"a" * 900, "gzip", 400, "the body is not what its Content-Encoding says"),
    "damaged": (GZIPPED[:-8] + bytes(4) + GZIPPED[-4:], "gzip", 400, "the body is not what its Content-Encoding says"),
    "another": (b"a" * 900, "br", 415, "Content-Encoding 'br': send gzip, deflate, or the body as it is"),
    "two encodings": (b"a" * 900, "gzip, deflate", 415, "Content-Encoding 'gzip, deflate': send"),
}


@pytest.mark.parametrize("case", COMPRESSED)
@pytest.mark.parametrize("behind_intake", [True, False], ids=["intake", "proxy"])
def test_compressed_bodies(
    admission: Admission, monkeypatch: pytest.MonkeyPatch, case: str, behind_intake: bool
) -> None:
    """Both where Ray Serve hands over what the intake has received, and where it hands over the connection."""
    body, encoding, status, message = COMPRESSED[case]

    async def answering(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer: Response = Response(await read_body(Request(scope, receive), admission))
        except RequestError as error:
            answer = error_response(error)
        await answer(scope, receive, send)

    if not behind_intake:
        monkeypatch.setattr(admission_module, "_replica", [])
    client = asyncio.run(Client(body[:20], body[20:], encoding=encoding).ask(answering))
    assert client.status == status
    if status == 200:
        assert client.answer == b"a" * 900
    else:
        assert message in json.loads(client.answer)["error"]


def test_a_bomb_is_not_inflated_to_its_end() -> None:
    bomb = gzip.compress(bytes(2**26))
    tracemalloc.start()
    with pytest.raises(RequestError, match="inflates to more than 1 MiB"):
        inflated(bomb, 2**20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**23


def test_slow_bodies_make_room_for_others(admission: Admission) -> None:
    async def test() -> list[Client]:
        is_over = asyncio.Event()
        slow = [Client(b"a" * 900, b"a" * 100, second=is_over) for _ in range(4)]
        asked = [asyncio.create_task(client.ask(counting)) for client in slow]
        while admission.bodies.held < 1800:
            await asyncio.sleep(0.01)
        honest = await Client(b"a" * 1000).ask(counting)
        is_over.set()
        return [honest, *await asyncio.gather(*asked)]

    honest, *slow = asyncio.run(test())
    assert honest.status == 200
    assert {client.status for client in slow} <= {200, 503, 504}
    assert any(client.status == 503 for client in slow)


def test_a_body_that_never_ends_is_answered_in_time() -> None:
    settings = SETTINGS.model_copy(update={"request_timeout_seconds": 0.1})
    set_of_this_replica(Admission(settings, TOKENS, METRICS))
    client = asyncio.run(Client(b"a", b"b", pause=0.06).ask(never))
    assert client.status == 504


def test_a_proxy_lets_everything_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no replica, whose rule it would be."""
    monkeypatch.setattr(admission_module, "_replica", [])
    client = asyncio.run(Client(*[b"a" * 900] * 2, token=False).ask(counting))
    assert json.loads(client.answer) == [900, True, "http.request"]


def test_ray_serve_takes_it() -> None:
    from ray.serve._private.http_util import validate_http_proxy_callback_return

    from cluster.ray_serve import SETTINGS as VARIABLES

    assert VARIABLES["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"] == f"{middlewares.__module__}.{middlewares.__name__}"
    assert validate_http_proxy_callback_return(middlewares()) is not None
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
    """Of two requests of 700 bytes, each of which may be 1,000 rows of a byte, the second waits for the first."""

    async def test() -> list[str]:
        order: list[str] = []

        async def work(name: str) -> None:
            async with admission.parsed(700, 700, 1, lambda: name) as content:
                order.append(content)
                await asyncio.sleep(0.1)
                order.append("end")

        await asyncio.gather(work("a"), work("b"))
        return order

    assert asyncio.run(test()) == ["a", "end", "b", "end"]


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


def test_grpc_app_that_do_not_come_make_room() -> None:
    async def test() -> None:
        async with _grpc_server(900) as channel:
            metadata = (("authorization", f"Bearer {TOKEN}"),)
            slow = [channel.stream_unary(f"/{SERVICE}/ModelReady")(metadata=metadata) for _ in range(4)]
            for call in slow:
                await call.wait_for_connection()
            await asyncio.sleep(0.1)
            ask = channel.unary_unary(f"/{SERVICE}/ModelReady")
            answer = await ask(b"a" * 900, metadata=metadata, timeout=5)
            assert proto.ModelReadyResponse.FromString(answer).ready
            codes = [await call.code() for call in slow]
            assert grpc.StatusCode.RESOURCE_EXHAUSTED in codes
            assert set(codes) <= {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED}

    asyncio.run(asyncio.wait_for(test(), 30))
