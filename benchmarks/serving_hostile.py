"""What hostile requests cost a server that `rayrec serve` runs, and those who ask beside them.

    python -m benchmarks.serving_hostile --output benchmarks/results/serving_hostile.json

Each attack meets a replica with the default settings (and tokens, which the attackers have, unless the attack's name
says otherwise) while honest clients ask for the scores of one row and of 256. Of each: how its requests were answered,
the replica's memory before, at most and after, and the honest requests that failed.
"""

import argparse
import asyncio
import gzip
import json
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import numpy as np
import psutil
import pyarrow as pa

from benchmarks.http_load import at_rate, json_post, percentiles
from benchmarks.process_tree import repeated
from benchmarks.serving_overload import replicas
from jobs.serve import ServeRequest, serving
from rayrec.common.machine import Machine, free_port
from rayrec.common.progress import SilentProgress
from rayrec.config import ServeConfig
from rayrec.store.files import write_json
from serve import arrow
from serve.grpc_server import SERVICE
from tests.model_folders import make_model_folder

BOUND_MIB = 1024
"""How far the memory of a replica with default settings may grow under requests of any kind."""
TOKEN = "0123456789abcdef"
_MODEL = "dlrm"
_MIB = 2**20
_LARGEST = int(ServeConfig().max_body_mib * _MIB)
_PATH = f"/v1/models/{_MODEL}:predict"


@dataclass(frozen=True)
class Server:
    url: str
    grpc_port: int


@contextmanager
def server() -> Iterator[Server]:
    """Yield a server of one replica, with a model of Criteo's shape, and a token."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / _MODEL
        make_model_folder(folder, numeric=13, categorical=26)
        tokens = Path(temporary) / "tokens"
        tokens.write_text(TOKEN)
        request = ServeRequest(
            model=(folder,), port=free_port(), grpc_port=free_port(), host="0.0.0.0", token_file=tokens
        )
        with serving(request, SilentProgress()) as url:
            yield Server(url, request.grpc_port or 0)


@dataclass(frozen=True)
class Body:
    """A request of HTTP as it is sent."""

    pieces: tuple[bytes, ...]
    stated: int | None = None
    """Content-Length; by default the pieces are chunks of a body whose length nobody states."""
    token: bool = True
    stall_seconds: float = 0.0
    """How long the client waits before it sends the last piece."""
    headers: str = ""
    """Further lines of the head."""


def _whole(body: bytes, **more: Any) -> Body:
    return Body((body,), len(body), **more)


def _instances(row: bytes, size: int) -> bytes:
    return b'{"instances":[' + b",".join([row] * ((size - 20) // (len(row) + 1))) + b"]}"


_GZIP = "Content-Encoding: gzip\r\n"
_ARROW = f"Content-Type: {arrow.MEDIA_TYPE}\r\n"


def _compressed_zeros() -> bytes:
    """Return 128 MiB of zeros, which take a few KiB."""
    sink = pa.BufferOutputStream()
    rows = pa.RecordBatch.from_arrays([pa.array(np.zeros(16 * _MIB))], names=["I1"])
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())


def _gzipped_zeros() -> bytes:
    packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    return b"".join([*(packer.compress(bytes(_MIB)) for _ in range(1024)), packer.flush()])


def _many_fields() -> bytes:
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, pa.schema([pa.field("", pa.null())] * 150_000)).close()
    return bytes(sink.getvalue())


def _texts() -> bytes:
    texts = pa.array(["a" * 1900] * 8192)
    return arrow.stream_of(pa.RecordBatch.from_arrays([texts], names=["C1"]))


def _filled(before: bytes, fill: bytes, after: bytes) -> bytes:
    """Return the largest body that is not refused for its size."""
    return before + fill * ((_LARGEST - len(before) - len(after)) // len(fill)) + after


@dataclass(frozen=True)
class Attack:
    """Requests that are sent `at_once`, and as soon as one of them is answered once more until there are `times`."""

    send: Callable[[Server], Any]
    """A coroutine that sends one request and gives its status."""
    times: int
    at_once: int


def _http(body: Body, times: int, at_once: int) -> Attack:
    return Attack(lambda target: _post(target.url, body), times, at_once)


def _infer(message: bytes, times: int, at_once: int, token: bool = True) -> Attack:
    return Attack(lambda target: _call(target, message, token), times, at_once)


def attacks(many: int = 512) -> dict[str, Attack]:
    """Return the attacks by name; `many` is how many requests "at once" are."""
    digits = b'{"instances":[{"I1":%s}]}' % (b"9" * 15 * _MIB)
    most_rows = _instances(b"{}", 3 * 8192)
    half = b'{"instances":[{"C1":"' + b"a" * _MIB
    most = _instances(b"{}", _LARGEST)
    return {
        "empty rows, 5.7 MiB": _http(_whole(_instances(b"{}", int(5.7 * _MIB))), 32, 16),
        "empty rows, the largest body": _http(_whole(most), 32, 16),
        "objects of one key": _http(_whole(_instances(b'{"a":1}', 4 * _MIB)), 32, 16),
        "empty lists": _http(_whole(b'{"I1":' + b"[" + b"[]," * (5 * _MIB) + b"0]}"), 32, 16),
        "deep nesting": _http(_whole(b"[" * _LARGEST), 32, 16),
        "a million keys": _http(_whole(b"{%s}" % b",".join(b'"%x":1' % i for i in range(10**6))), 16, 8),
        "a huge number": _http(_whole(digits), 32, 16),
        "many large numbers": _http(_whole(_instances(b'{"I1":%s}' % (b"9" * 4000), 15 * _MIB)), 32, 16),
        "a huge string": _http(_whole(_filled(b'{"instances":[{"C1":"', b"a", b'"}]}')), 32, 16),
        "a huge string of wide letters": _http(_whole(_filled(b'{"C1":"\xf0\x9f\x98\x80', b"a", b'"}')), 32, 16),
        "a huge name of a feature": _http(_whole(_filled(b'{"', b"a", b'":1}')), 8, 4),
        "an endless body": _http(Body((b"a" * _MIB,) * 64), 32, 16),
        "a body that is said to be a GiB": _http(Body((b"{}",), 2**30), 512, 64),
        "an endless body without a token": _http(Body((b"a" * _MIB,) * 64, token=False), 32, 16),
        f"{many} of the most rows at once": _http(_whole(most_rows), 2 * many, many),
        f"{many} of 4 MiB at once": _http(_whole(b'{"C1":"' + b"a" * 4 * _MIB + b'"}'), many, many),
        f"{many} slow bodies at once": _http(Body((half, b'"}]}'), 15 * _MIB, stall_seconds=15), many, many),
        f"{many} slow bodies of a byte": _http(Body((b"{", b"}"), 2, stall_seconds=15), many, many),
        "gzip: a GiB of zeros": _http(_whole(_gzipped_zeros(), headers=_GZIP), 64, 16),
        f"gzip: {many} of empty rows at once": _http(_whole(gzip.compress(most), headers=_GZIP), many, many),
        "Arrow: compressed zeros": _http(_whole(_compressed_zeros(), headers=_ARROW), 32, 16),
        "Arrow: a schema of as many fields as fit": _http(_whole(_many_fields(), headers=_ARROW), 32, 16),
        "Arrow: the most rows, of texts": _http(_whole(_texts(), headers=_ARROW), 32, 16),
        "gRPC: empty tensors": _infer(b"\x2a\x00" * (_LARGEST // 2), 16, 8),
        "gRPC: empty tensors, fewer than are refused": _infer(b"\x2a\x00" * 1_000_000, 16, 8),
        "gRPC: empty parameters": _infer(b"\x2a\x02\x22\x00" * (_LARGEST // 4), 16, 8),
        "gRPC: packed numbers": _infer(_tensor(b"\x1a" + _varint(14 * _MIB) + b"\x01" * (14 * _MIB)), 16, 8),
        "gRPC: 64 MiB": _infer(b"\x3a" + _varint(64 * _MIB) + bytes(64 * _MIB), 16, 8),
        "gRPC: without a token": _infer(b"\x2a\x00" * (_LARGEST // 2), 64, 16, token=False),
        f"gRPC: {many} of 4 MiB at once": _infer(b"\x3a" + _varint(4 * _MIB) + bytes(4 * _MIB), many, many),
    }


def _varint(value: int) -> bytes:
    digits = []
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])


def _tensor(contents: bytes) -> bytes:
    """Return a request of one tensor with these contents."""
    tensor = b"\x2a" + _varint(len(contents)) + contents
    return b"\x2a" + _varint(len(tensor)) + tensor


def under(attack: Attack, target: Server, least_seconds: float = 5.0) -> dict[str, Any]:
    """Return what an attack does, once and for `least_seconds`, while honest clients ask 10 times a second."""
    (replica,) = replicas()
    before, seen = _resident_mib(replica), []
    statuses: Counter[str] = Counter()
    ended = threading.Event()
    honest: list[Any] = []

    def ask() -> None:
        while not ended.is_set():
            for rows in (1, 256):
                body = json.dumps({"instances": [_HONEST_ROW] * rows}).encode()
                honest.extend(at_rate(json_post(target.url + _PATH, body, TOKEN), 5, 1))

    asking = threading.Thread(target=ask)
    began = time.monotonic()
    with repeated(lambda: seen.append(_resident_mib(replica)), 0.05):
        asking.start()
        while not statuses or time.monotonic() - began < least_seconds:
            statuses += asyncio.run(_all(attack, target))
        ended.set()
        asking.join()
    seconds = time.monotonic() - began
    (after,) = replicas()
    return {
        "requests": sum(statuses.values()),
        "answers": dict(sorted(statuses.items())),
        "seconds": round(seconds, 1),
        "resident_mib": {"before": before, "most": max(seen), "after": _resident_mib(replica)},
        "same_replica": after.pid == replica.pid,
        "honest": {
            "requests": len(honest),
            "failed": sum(sample.status != 200 for sample in honest),
            **percentiles(honest),
        },
    }


_HONEST_ROW = {**{f"I{i}": i for i in range(1, 14)}, **{f"C{i}": f"C{i}-1" for i in range(1, 27)}}


def _resident_mib(process: psutil.Process) -> int:
    return round(process.memory_info().rss / _MIB)


async def _all(attack: Attack, target: Server) -> Counter[str]:
    statuses: Counter[str] = Counter()
    left = iter(range(attack.times))

    async def attacker() -> None:
        for _ in left:
            statuses[str(await attack.send(target))] += 1

    await asyncio.gather(*(attacker() for _ in range(attack.at_once)))
    return statuses


async def _post(url: str, body: Body) -> str:
    """Return the status of the answer; "cut off" where the server closes the connection without one."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    authorization = f"Authorization: Bearer {TOKEN}\r\n" if body.token else ""
    length = "Transfer-Encoding: chunked" if body.stated is None else f"Content-Length: {body.stated}"
    answer = asyncio.create_task(reader.readline())
    try:
        writer.write(
            f"POST {_PATH} HTTP/1.1\r\nHost: {place.netloc}\r\n{authorization}{body.headers}{length}\r\n\r\n".encode()
        )
        for index, piece in enumerate(body.pieces):
            if index and index == len(body.pieces) - 1 and body.stall_seconds:
                await asyncio.wait({answer}, timeout=body.stall_seconds)
            if answer.done():
                break
            writer.write(piece if body.stated is not None else b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
        else:
            if body.stated is None:
                writer.write(b"0\r\n\r\n")
        line = await asyncio.wait_for(answer, 90)
        return line.split()[1].decode() if line else "cut off"
    except OSError:
        return "cut off"
    except TimeoutError:
        return "no answer"
    finally:
        answer.cancel()
        writer.close()


async def _call(target: Server, message: bytes, token: bool) -> str:
    """Return the code of the answer to a `ModelInfer` of these bytes."""
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{target.grpc_port}", options=options) as channel:
        infer = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        metadata = (("authorization", f"Bearer {TOKEN}"),) if token else ()
        try:
            await infer(message, metadata=metadata, timeout=90)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
    return "OK"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", help="attacks whose names contain this")
    arguments = parser.parse_args()
    machine = Machine()
    result: dict[str, Any] = {"bound_mib": BOUND_MIB, "attacks": {}}
    with server() as target:
        under(_http(_whole(b"{}"), 100, 4), target)  # the first requests allocate what stays
        (replica,) = replicas()
        result["resident_mib_of_an_idle_replica"] = idle = _resident_mib(replica)
        for name, attack in attacks().items():
            if arguments.only is None or arguments.only in name:
                result["attacks"][name] = found = under(attack, target)
                print(name, json.dumps(found), flush=True)
        most = max(found["resident_mib"]["most"] for found in result["attacks"].values())
        result["grown_by_mib_at_most"] = most - idle
        result["honest_failed"] = sum(found["honest"]["failed"] for found in result["attacks"].values())
    write_json(arguments.output, {"machine": machine.described(), **result})


if __name__ == "__main__":
    main()
