"""`rayrec benchmark serve`: measures a server of a model on this machine."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import cycle, islice
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

from pydantic import PositiveFloat, PositiveInt

from jobs.command import Command, Positional, Request, Result, main, text_table
from jobs.export import exported
from jobs.serve import ServeRequest, endpoint_of, serving
from rayrec.common.errors import UserError
from rayrec.common.machine import Machine, describe_machine
from rayrec.common.network import free_port
from rayrec.common.progress import Progress, SilentProgress
from rayrec.store.paths import Folder

if TYPE_CHECKING:
    import pyarrow as pa

    from rayrec.inference.raw_rows import RawRows
    from serve.operations.load import Post

Protocol = Literal["json", "oip", "arrow"]
_NAME = "model"
_WARM_UP_SECONDS = 1.0


class ServeBenchmarkRequest(Request):
    """Measure the latency and the throughput of a server.

    Start `rayrec serve` on this machine, and send the model's example rows again and again.
    """

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
    from rayrec.inference.export.examples import Examples
    from rayrec.inference.folder.model_folder import ModelFolder
    from rayrec.inference.raw_rows import RawRows

    machine, table = Machine(), []
    with ExitStack() as stack:
        progress.stage("start server")
        folder = stack.enter_context(exported(request.model))
        raw_rows, instances = RawRows(ModelFolder.open(folder).schema), Examples.load(folder).instances
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


def measured(post: "Post", clients: int, seconds: float) -> dict[str, Any]:
    """Return what clients that wait for their answers find, after a second of warm-up; latencies are those of answers.

    Raises UserError if the server does not answer `post` at all.
    """
    from serve.operations.load import answer_to, of_clients, percentiles

    status, body = answer_to(post)
    if status != 200:
        raise UserError(f"{post.url}: answered {status}: {body[:300].decode(errors='replace')}")
    of_clients(post, clients, _WARM_UP_SECONDS)
    samples = of_clients(post, clients, seconds)
    statuses = Counter(sample.status for sample in samples)
    length = max(sample.began + sample.seconds for sample in samples)
    return {
        "requests_per_second": round(statuses[200] / length, 1),
        **{f"{name}_ms": value for name, value in percentiles(samples).items()},
        "errors": len(samples) - statuses[200],
    }


def post_of(url: str, model: str, protocol: Protocol, raw_rows: "RawRows", rows: Sequence[Mapping[str, Any]]) -> "Post":
    """Return a request for the scores of raw rows by a model that is served at `url`."""
    from serve.operations.load import Post
    from serve.protocols import arrow

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


COMMAND = Command("benchmark serve", ServeBenchmarkRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
