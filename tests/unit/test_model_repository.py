"""The index of models, loading and unloading, over HTTP and gRPC; health and reflection over gRPC."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from ray.serve._private.grpc_util import gRPCGenericServer
from tritonclient.grpc import service_pb2, service_pb2_grpc

from rayrec.config import ServeConfig
from rayrec.inference.folder.table_files import TableMemory
from serve.admission import Admission
from serve.app import create_app
from serve.grpc_app import GrpcMethods
from serve.grpc_server import add_to_server
from serve.json_log import JsonLog
from serve.metrics import ServingMetrics
from serve.models import ServedModels, ServedVersion
from serve.tokens import read_tokens
from serve.updates import Updates
from tests.model_folders import make_model_folder

USER, ADMIN = "user-token-0123456789", "admin-token-0123456789"
METRICS, SETTINGS = ServingMetrics(), ServeConfig(request_timeout_seconds=20)
STATUS = health_pb2.HealthCheckResponse


class Replica:
    """What a replica is made of, without Ray."""

    def __init__(self, folder: Path, tokens: dict[str, bool], executor: ThreadPoolExecutor) -> None:
        def load(name: str, version: str, folder: Path) -> ServedVersion:
            return ServedVersion(name, version, folder, executor, SETTINGS, METRICS, TableMemory(2**30))

        self.models = ServedModels()
        self.updates = Updates({"ads": folder}, load, self.models, JsonLog("shadow", folder, "test"), METRICS)
        self.updates.load_all()
        admission = Admission(SETTINGS, tokens, METRICS)
        self.app = create_app(self.models, admission, self.updates, list)
        self.methods = GrpcMethods(self.models, admission, self.updates)

    def post(self, path: str, body: Any = None, token: str | None = ADMIN) -> tuple[int, Any]:
        """The status and the content of an answer over HTTP."""
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b"" if body is None else json.dumps(body).encode()}

        headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
        asyncio.run(asyncio.wait_for(self.app(scope, receive, send), 20))
        return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 3 and 8 of a model."""
    base = tmp_path_factory.mktemp("made") / "ads"
    for version in (3, 8):
        make_model_folder(base / str(version), seed=version)
    return base


@pytest.fixture
def replica(made: Path, tmp_path: Path) -> Iterator[Replica]:
    shutil.copytree(made, tmp_path / "ads")
    tokens = read_tokens(None, {"RAYREC_SERVE_TOKENS": f"{USER}, {ADMIN} admin"})
    with ThreadPoolExecutor(1) as executor:
        yield Replica(tmp_path / "ads", tokens, executor)


def test_models_are_unloaded_and_loaded(replica: Replica) -> None:
    def index(*states: str) -> list[dict[str, str]]:
        versions = zip(("8", "3"), states, strict=True)
        return [{"name": "ads", "version": v, "state": state, "reason": ""} for v, state in versions]

    assert replica.post("/v2/repository/index") == (200, index("READY", "UNAVAILABLE"))
    assert replica.post("/v2/repository/index", {"ready": True})[1] == index("READY", "UNAVAILABLE")[:1]
    status, told = replica.post("/v2/repository/models/ads/unload", {"parameters": {"unload_dependents": False}})
    assert (status, {entry["state"] for entry in told}) == (200, {"UNAVAILABLE"})
    assert "unloaded" in told[0]["reason"]
    for path in ("/v1/models/ads:predict", "/v2/models/ads/infer"):
        status, told = replica.post(path, {})
        assert status == 404
        assert "load" in told["error"]
    status, told = replica.post("/v2/repository/models/ads/load", {"parameters": {"version": "3"}})
    assert (status, told) == (200, index("UNAVAILABLE", "READY"))
    assert replica.post("/v1/models/ads:predict", {})[1]["version"] == "3"


WRONG: dict[str, tuple[str, Any, int, str]] = {
    "no such model": ("models/asd/load", None, 404, "no model 'asd'; did you mean 'ads'?"),
    "no such version": ("models/ads/load", {"parameters": {"version": "9"}}, 404, "no version '9'"),
    "a number": ("models/ads/load", {"parameters": {"version": 8}}, 422, "version: must be text"),
    "a configuration": ("models/ads/load", {"parameters": {"config": "{}"}}, 422, "unknown parameter 'config'"),
    "a list": ("models/ads/unload", {"parameters": ["x"]}, 422, "parameters: must be an object"),
    "another key": ("index", {"read": True}, 422, "ready"),
    "another type": ("index", {"ready": "yes"}, 422, "ready: must be true or false"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_told(replica: Replica, case: str) -> None:
    path, body, status, message = WRONG[case]
    found, told = replica.post(f"/v2/repository/{path}", body)
    assert (found, list(told)) == (status, ["error"])
    assert message in told["error"]
    assert set(replica.models.current["ads"].versions) == {"8"}


def test_only_administrators_may(replica: Replica, tmp_path: Path) -> None:
    open_to_all = Replica(tmp_path / "ads", {}, ThreadPoolExecutor(1))
    for path in ("index", "models/ads/load", "models/ads/unload"):
        assert replica.post(f"/v2/repository/{path}", token=None)[0] == 401
        for server, token in ((replica, USER), (open_to_all, None), (open_to_all, ADMIN)):
            status, told = server.post(f"/v2/repository/{path}", token=token)
            assert status == 403
            assert "'TOKEN admin'" in told["error"]
    assert set(replica.models.current) == set(open_to_all.models.current) == {"ads"}


@asynccontextmanager
async def grpc_server(replica: Replica) -> AsyncIterator[str]:
    """The address of a server of Ray Serve's that calls the methods of the replica, as Serve would."""

    def factory(service_method: str, streaming_type: Any) -> Any:
        async def answer(request: bytes, context: Any) -> bytes:
            method = getattr(replica.methods, service_method.rpartition("/")[2])
            content: bytes = (await method(request, grpc_context=context)).SerializeToString()
            return content

        return answer

    server = gRPCGenericServer(factory)
    add_to_server(replica.methods, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


def metadata(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def test_models_are_unloaded_and_loaded_over_grpc(replica: Replica) -> None:
    async def test() -> None:
        async with grpc_server(replica) as address, grpc.aio.insecure_channel(address) as channel:
            stub, admin = service_pb2_grpc.GRPCInferenceServiceStub(channel), metadata(ADMIN)

            async def states() -> dict[str, str]:
                found = await stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(), metadata=admin)
                return {entry.version: entry.state for entry in found.models}

            assert await states() == {"8": "READY", "3": "UNAVAILABLE"}
            unload = service_pb2.RepositoryModelUnloadRequest(model_name="ads")
            unload.parameters["unload_dependents"].bool_param = False
            await stub.RepositoryModelUnload(unload, metadata=admin)
            assert set((await states()).values()) == {"UNAVAILABLE"}
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.ModelReady(service_pb2.ModelReadyRequest(name="ads"), metadata=admin)
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
            load = service_pb2.RepositoryModelLoadRequest(model_name="ads")
            load.parameters["version"].string_param = "3"
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.RepositoryModelLoad(load, metadata=metadata(USER))
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
            await stub.RepositoryModelLoad(load, metadata=admin)
            assert await states() == {"8": "UNAVAILABLE", "3": "READY"}

    asyncio.run(asyncio.wait_for(test(), 60))


def test_health(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.grpc_server._SECONDS_BETWEEN_LOOKS", 0.01)

    async def test() -> None:
        async with grpc_server(replica) as address, grpc.aio.insecure_channel(address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)

            async def check(name: str) -> int:
                return (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status

            for name in ("", "ads", "inference.GRPCInferenceService"):
                assert await check(name) == STATUS.SERVING
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await check("asd")
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
            unknown = await stub.Watch(health_pb2.HealthCheckRequest(service="asd")).read()
            assert unknown.status == STATUS.SERVICE_UNKNOWN
            watch = stub.Watch(health_pb2.HealthCheckRequest(service="ads"))
            assert (await watch.read()).status == STATUS.SERVING
            replica.updates.unload("ads")
            assert (await watch.read()).status == STATUS.NOT_SERVING
            assert [await check(name) for name in ("", "ads")] == [STATUS.SERVING, STATUS.NOT_SERVING]
            replica.updates.load("ads")
            assert (await watch.read()).status == STATUS.SERVING
            replica.models.end_soon = True
            assert (await watch.read()).status == STATUS.NOT_SERVING
            assert await watch.read() is grpc.aio.EOF, "the end of the server does not wait for it"
            assert await check("") == STATUS.NOT_SERVING

    asyncio.run(asyncio.wait_for(test(), 60))


def test_reflection_describes_the_services(replica: Replica) -> None:
    """As grpcurl asks: names first, then the file that describes one."""

    async def test() -> None:
        async with grpc_server(replica) as address:
            await asyncio.to_thread(look, address)

    def look(address: str) -> None:
        with grpc.insecure_channel(address) as channel:
            reflected = ProtoReflectionDescriptorDatabase(channel)
            assert set(reflected.get_services()) == {
                "inference.GRPCInferenceService",
                "grpc.health.v1.Health",
                "grpc.reflection.v1alpha.ServerReflection",
            }
            file = reflected.FindFileContainingSymbol("inference.GRPCInferenceService")
            assert {method.name for method in file.service[0].method} >= {"ModelInfer", "RepositoryIndex"}
            assert reflected.FindFileContainingSymbol("grpc.health.v1.Health").service[0].name == "Health"

    asyncio.run(asyncio.wait_for(test(), 60))
