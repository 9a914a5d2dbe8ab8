"""The message classes of `open_inference.proto`, from its compiled descriptor `open_inference.binpb`, and of health.

After a change to the .proto file, make the descriptor again with the package grpcio-tools:

    cd serve/protocols/grpc
    python -m grpc_tools.protoc --proto_path . --descriptor_set_out open_inference.binpb open_inference.proto
"""

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

# A pool of its own: generated code would add the messages to the pool of the process, where a client's copy of the same
# names (Triton's, KServe's) would clash with them.
POOL = descriptor_pool.DescriptorPool()
"""Describes every service of the server, for reflection."""


def _load_service() -> Any:
    compiled = Path(__file__).with_name("open_inference.binpb").read_bytes()
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(compiled).file
    for content in (file.SerializeToString(), *(m.DESCRIPTOR.serialized_pb for m in (health_pb2, reflection_pb2))):
        POOL.AddSerializedFile(content)
    return POOL.FindServiceByName(f"{file.package}.GRPCInferenceService")


def _call(name: str) -> tuple[Any, Any]:
    """Return the classes of a call's request and response."""
    method = _service.FindMethodByName(name)
    return message_factory.GetMessageClass(method.input_type), message_factory.GetMessageClass(method.output_type)


_service = _load_service()
SERVICE: str = _service.full_name
METHODS: tuple[str, ...] = tuple(method.name for method in _service.methods)
ServerLiveRequest, ServerLiveResponse = _call("ServerLive")
ServerReadyRequest, ServerReadyResponse = _call("ServerReady")
ServerMetadataRequest, ServerMetadataResponse = _call("ServerMetadata")
ModelReadyRequest, ModelReadyResponse = _call("ModelReady")
ModelMetadataRequest, ModelMetadataResponse = _call("ModelMetadata")
ModelInferRequest, ModelInferResponse = _call("ModelInfer")
RepositoryIndexRequest, RepositoryIndexResponse = _call("RepositoryIndex")
RepositoryModelLoadRequest, RepositoryModelLoadResponse = _call("RepositoryModelLoad")
RepositoryModelUnloadRequest, RepositoryModelUnloadResponse = _call("RepositoryModelUnload")
HEALTH = "grpc.health.v1.Health"
CheckRequest, CheckResponse = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
PATHS = {name: f"/{SERVICE}/{name}" for name in METHODS} | {"Check": f"/{HEALTH}/Check"}
"""The paths of the calls that Ray Serve hands to a replica."""
