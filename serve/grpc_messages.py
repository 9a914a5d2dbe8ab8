"""The messages of the Open Inference Protocol, version 2, over gRPC.

    https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/open_inference_grpc.proto

They are declared here and live in a descriptor pool of their own: compiled code puts them into the one of the process,
where a client's copy of the same names (Triton's, KServe's) would clash with them.
"""

from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"
_BOOL, _INT32, _INT64, _UINT32, _UINT64, _FLOAT, _DOUBLE, _STRING, _BYTES = (
    getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{name}")
    for name in ("BOOL", "INT32", "INT64", "UINT32", "UINT64", "FLOAT", "DOUBLE", "STRING", "BYTES")
)


@dataclass(frozen=True)
class _Field:
    number: int
    kind: int | str
    """A scalar type, or the name of a message."""
    repeated: bool = False
    oneof: bool = False


def _parameters(number: int) -> dict[str, _Field]:
    return {"parameters": _Field(number, "ParametersEntry", repeated=True)}


_NAME_VERSION = {"name": _Field(1, _STRING), "version": _Field(2, _STRING)}
_PARAMETER = {"key": _Field(1, _STRING), "value": _Field(2, "InferParameter")}
_TENSOR = {
    "name": _Field(1, _STRING),
    "datatype": _Field(2, _STRING),
    "shape": _Field(3, _INT64, repeated=True),
}
_CONTENT_TENSOR = {**_TENSOR, **_parameters(4), "contents": _Field(5, "InferTensorContents")}
_CALL = {"model_name": _Field(1, _STRING), "model_version": _Field(2, _STRING), "id": _Field(3, _STRING)}

# A name with a dot is a message inside another; one that ends in ParametersEntry is a map.
_MESSAGES: dict[str, dict[str, _Field]] = {
    "ServerLiveRequest": {},
    "ServerLiveResponse": {"live": _Field(1, _BOOL)},
    "ServerReadyRequest": {},
    "ServerReadyResponse": {"ready": _Field(1, _BOOL)},
    "ModelReadyRequest": _NAME_VERSION,
    "ModelReadyResponse": {"ready": _Field(1, _BOOL)},
    "ServerMetadataRequest": {},
    "ServerMetadataResponse": {**_NAME_VERSION, "extensions": _Field(3, _STRING, repeated=True)},
    "ModelMetadataRequest": _NAME_VERSION,
    "ModelMetadataResponse": {
        "name": _Field(1, _STRING),
        "versions": _Field(2, _STRING, repeated=True),
        "platform": _Field(3, _STRING),
        "inputs": _Field(4, "ModelMetadataResponse.TensorMetadata", repeated=True),
        "outputs": _Field(5, "ModelMetadataResponse.TensorMetadata", repeated=True),
    },
    "ModelMetadataResponse.TensorMetadata": _TENSOR,
    "ModelInferRequest": {
        **_CALL,
        **_parameters(4),
        "inputs": _Field(5, "ModelInferRequest.InferInputTensor", repeated=True),
        "outputs": _Field(6, "ModelInferRequest.InferRequestedOutputTensor", repeated=True),
        "raw_input_contents": _Field(7, _BYTES, repeated=True),
    },
    "ModelInferRequest.ParametersEntry": _PARAMETER,
    "ModelInferRequest.InferInputTensor": _CONTENT_TENSOR,
    "ModelInferRequest.InferInputTensor.ParametersEntry": _PARAMETER,
    "ModelInferRequest.InferRequestedOutputTensor": {"name": _Field(1, _STRING), **_parameters(2)},
    "ModelInferRequest.InferRequestedOutputTensor.ParametersEntry": _PARAMETER,
    "ModelInferResponse": {
        **_CALL,
        **_parameters(4),
        "outputs": _Field(5, "ModelInferResponse.InferOutputTensor", repeated=True),
        "raw_output_contents": _Field(6, _BYTES, repeated=True),
    },
    "ModelInferResponse.ParametersEntry": _PARAMETER,
    "ModelInferResponse.InferOutputTensor": _CONTENT_TENSOR,
    "ModelInferResponse.InferOutputTensor.ParametersEntry": _PARAMETER,
    "InferParameter": {
        "bool_param": _Field(1, _BOOL, oneof=True),
        "int64_param": _Field(2, _INT64, oneof=True),
        "string_param": _Field(3, _STRING, oneof=True),
        "double_param": _Field(4, _DOUBLE, oneof=True),
        "uint64_param": _Field(5, _UINT64, oneof=True),
    },
    "InferTensorContents": {
        "bool_contents": _Field(1, _BOOL, repeated=True),
        "int_contents": _Field(2, _INT32, repeated=True),
        "int64_contents": _Field(3, _INT64, repeated=True),
        "uint_contents": _Field(4, _UINT32, repeated=True),
        "uint64_contents": _Field(5, _UINT64, repeated=True),
        "fp32_contents": _Field(6, _FLOAT, repeated=True),
        "fp64_contents": _Field(7, _DOUBLE, repeated=True),
        "bytes_contents": _Field(8, _BYTES, repeated=True),
    },
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="open_inference_grpc.proto", package=PACKAGE, syntax="proto3")
    added: dict[str, descriptor_pb2.DescriptorProto] = {}
    for full_name, fields in _MESSAGES.items():
        outer, _, name = full_name.rpartition(".")
        message = added[full_name] = (added[outer].nested_type if outer else file.message_type).add(name=name)
        message.options.map_entry = name == "ParametersEntry"
        for field_name, field in fields.items():
            _add_field(message, full_name, field_name, field)
    return file


def _add_field(message: descriptor_pb2.DescriptorProto, full_name: str, name: str, field: _Field) -> None:
    kinds = descriptor_pb2.FieldDescriptorProto
    added = message.field.add(name=name, number=field.number)
    added.label = kinds.LABEL_REPEATED if field.repeated else kinds.LABEL_OPTIONAL
    if isinstance(field.kind, int):
        added.type = field.kind
    else:
        added.type = kinds.TYPE_MESSAGE
        own = field.kind == "ParametersEntry"
        added.type_name = f".{PACKAGE}.{full_name}.{field.kind}" if own else f".{PACKAGE}.{field.kind}"
    if field.oneof:
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        added.oneof_index = 0


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())


def _message(name: str) -> Any:
    found = message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
    # Serve's proxy sends a request on by pickle, which finds the class of a message by its module.
    found.__module__ = __name__
    return found


ServerLiveRequest = _message("ServerLiveRequest")
ServerLiveResponse = _message("ServerLiveResponse")
ServerReadyRequest = _message("ServerReadyRequest")
ServerReadyResponse = _message("ServerReadyResponse")
ModelReadyRequest = _message("ModelReadyRequest")
ModelReadyResponse = _message("ModelReadyResponse")
ServerMetadataRequest = _message("ServerMetadataRequest")
ServerMetadataResponse = _message("ServerMetadataResponse")
ModelMetadataRequest = _message("ModelMetadataRequest")
ModelMetadataResponse = _message("ModelMetadataResponse")
ModelInferRequest = _message("ModelInferRequest")
ModelInferResponse = _message("ModelInferResponse")
