"""Exact metrics of a model as a server answers for it: labelled raw rows go there over HTTP, in batches."""

import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import requests
from requests.adapters import HTTPAdapter, Retry

from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from rayrec.features.schema import Schema
    from rayrec.inference.raw_rows import RawRows
    from rayrec.raw.input_files import InputFile
    from rayrec.raw.rows import ExampleReader
    from rayrec.recipes import Recipe

_CHUNK_BYTES = 2**26
_TIMEOUT_SECONDS = 60.0
_BUSY_SECONDS = 60.0
"""How long a request that is answered 503 is sent again."""


@dataclass(frozen=True)
class BatchScores:
    """The scores of a batch."""

    scores: "NDArray[np.float32]"
    version: str
    began: float
    seconds: float
    """Between the start of the request and the last byte of its answer."""


@dataclass(frozen=True)
class ServedModelClient:
    """Asks a server for the scores of a model; every thread has a session of its own."""

    url: str
    """Address of the model: http://HOST:PORT/v1/models/NAME."""
    token: str | None = None
    _own: threading.local = field(default_factory=threading.local)

    @classmethod
    def at(cls, address: str, name: str, token: str | None = None) -> "ServedModelClient":
        """Return the client of `address`, to which the model's name is added if it ends before. Raises ConfigError."""
        try:
            parts = urlsplit(address)
            is_good = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        except ValueError:
            is_good = False
        if not is_good:
            raise ConfigError(f"--server {address}: write it as http://HOST:PORT, or http://HOST:PORT/v1/models/NAME")
        path = parts.path.rstrip("/")
        if "/v1/models/" not in path:
            path = f"{path}/v1/models/{quote(name, safe='')}"
        return cls(f"{parts.scheme}://{parts.netloc}{path}", token)

    def score(self, rows: "pa.RecordBatch") -> BatchScores:
        """Return the scores of raw rows. Raises UserError if the server does not answer, or refuses them."""
        import pyarrow as pa

        from serve import arrow

        body = arrow.stream_of(rows)
        headers = {"Content-Type": arrow.MEDIA_TYPE}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            began = time.perf_counter()
            response = self._post(body, headers)
            seconds = time.perf_counter() - began
            if response.status_code != 503 or time.monotonic() > deadline:
                break
            pause = 1.0
            with suppress(ValueError):  # it may be a date
                pause = float(response.headers.get("Retry-After", pause))
            time.sleep(min(pause, _BUSY_SECONDS))
        if response.status_code != 200:
            raise UserError(f"--server {self.url}: answered {response.status_code}: {self._reason(response)}")
        try:
            table = pa.ipc.open_stream(response.content).read_all()
            scores = table[arrow.SCORE].to_numpy()
        except (pa.ArrowException, KeyError):
            raise UserError(f"--server {self.url}: answered no scores; is it a server of `rayrec serve`?") from None
        version = (table.schema.metadata or {}).get(b"version", b"").decode()
        return BatchScores(scores, version, began, seconds)

    def _post(self, body: bytes, headers: dict[str, str]) -> requests.Response:
        if not hasattr(self._own, "session"):
            self._own.session = requests.Session()
            # Once more over a new connection, if the server has closed the kept one meanwhile.
            again = Retry(1, allowed_methods=None, respect_retry_after_header=False)
            self._own.session.mount(self.url, HTTPAdapter(max_retries=again))
        try:
            return self._own.session.post(f"{self.url}:predict", body, headers=headers, timeout=_TIMEOUT_SECONDS)
        except requests.RequestException as error:
            cause: BaseException = error
            while cause.__context__ is not None:  # what went wrong is the innermost of several errors
                cause = cause.__context__
            reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
            raise UserError(f"--server {self.url}: no answer ({reason}); is the server running there?") from None

    def _reason(self, response: requests.Response) -> str:
        """Return what the server says of an error, with what can be done about it here."""
        try:
            said = str(response.json()["error"])
        except (ValueError, KeyError, TypeError):
            said = " ".join(response.content[:300].decode(errors="replace").split()) or response.reason
        if response.status_code == 401:
            said += "; give --token-file, or RAYREC_SERVE_TOKENS"
        elif response.status_code == 404:
            said += "; name the model by --server http://HOST:PORT/v1/models/NAME"
        return said


def evaluate_server(
    client: ServedModelClient,
    recipe: "Recipe",
    schema: "Schema",
    paths: Sequence[str],
    *,
    connections: int,
    batch_rows: int,
    progress: Progress,
) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Measure the scores that a server gives the labelled rows of raw files, each once; return metrics and details.

    `recipe` and `schema` are the model's, which say how the files are read. Raises UserError if a path gives no file,
    if there are no labels, if too many rows cannot be used, or as `ServedModelClient.score`.
    """
    import numpy as np
    import torch

    from jobs.benchmark_serve import percentiles
    from rayrec.inference.raw_rows import RawRows
    from rayrec.metrics.binary import BinaryMetrics
    from rayrec.raw.input_files import list_inputs
    from rayrec.raw.rows import LEFT_OUT, describe_reasons
    from rayrec.sources.registry import source_of

    if schema.interactions is not None:
        raise ConfigError(
            "--server: cannot measure a model of users and items, which needs ranked lists; give --data instead"
        )
    files = list_inputs(paths)
    reader = source_of(recipe.source.kind).reader(recipe.source, schema, files)
    raw_rows = RawRows(schema, recipe.unneeded_columns)
    metrics, lost = BinaryMetrics.from_config(recipe.evaluate), Counter[str]()
    answers: list[tuple[BatchScores, int]] = []
    waiting: deque[tuple[Future[BatchScores], NDArray[np.float32]]] = deque()

    def count_first() -> None:
        """Take the answer of the batch that was sent first."""
        future, labels = waiting.popleft()
        answer = future.result()
        # Probabilities of 0 and 1 are rounded ones: their logits lie beyond, but not at infinity.
        scores = np.clip(answer.scores.astype(np.float64), 2.0**-150, 1.0 - 2.0**-26)
        logits = torch.from_numpy(np.log(scores) - np.log1p(-scores))
        metrics.update(logits, torch.from_numpy(labels.copy()), torch.ones(len(labels)))
        answers.append((answer, len(labels)))
        progress.advance(len(labels))

    # Batches go out over all connections at once; their answers are counted in the order of the rows.
    progress.stage(f"evaluate at {client.url}")
    with ThreadPoolExecutor(connections, "rayrec-evaluate") as pool:
        try:
            for rows, labels in _labelled_batches(files, reader, raw_rows, batch_rows, lost):
                waiting.append((pool.submit(client.score, rows), labels))
                # As many again are ready, so that no connection waits for rows to be read.
                if len(waiting) >= 2 * connections:
                    count_first()
            while waiting:
                count_first()
        finally:
            pool.shutdown(cancel_futures=True)
    # Metrics of few of the rows would mislead: as in preprocessing, too many bad ones are an error.
    total = sum(count for _, count in answers)
    bad = {reason: n for reason, n in lost.items() if n and reason not in LEFT_OUT}
    every = total + sum(bad.values())
    if not total:
        raise UserError(f"--input {', '.join(paths)}: no labelled row can be used ({describe_reasons(lost)})")
    if every - total > recipe.preprocess.max_rejected_fraction * every:
        raise UserError(
            f"--input: {every - total:,} of {every:,} rows cannot be used ({describe_reasons(bad)}); fix them"
        )
    # How fast it was, from the first request to the last answer.
    took = max(one.began + one.seconds for one, _ in answers) - min(one.began for one, _ in answers)
    speed, latencies = round(total / took), percentiles([one.seconds for one, _ in answers])
    shown = ", ".join(f"{name} {value:.1f} ms" for name, value in latencies.items())
    notes = [f"{speed:,} rows/s over {connections} connections; a request: {shown}"]
    if getattr(recipe.source, "weight", None) is not None:
        notes.append("source.weight: ignored, because a server's answers have no weights; every row counts once")
    versions = Counter[str]()
    for one, count in answers:
        versions[one.version] += count
    details: dict[str, Any] = {
        "server": client.url,
        "versions": dict(versions),
        "lost": {reason: n for reason, n in lost.items() if n},
        "rows_per_second": speed,
        "latency_ms": latencies,
        "requests": len(answers),
        "connections": connections,
        "notes": notes,
    }
    return metrics.compute(), details


def _labelled_batches(
    files: "Sequence[InputFile]", reader: "ExampleReader", raw_rows: "RawRows", size: int, lost: Counter[str]
) -> "Iterator[tuple[pa.RecordBatch, NDArray[np.float32]]]":
    """Yield up to `size` raw rows that have a label, and the labels; count in `lost` why others cannot be used."""
    from rayrec.raw.input_files import plan_chunks

    for chunk in plan_chunks(files, _CHUNK_BYTES):
        for block in reader.read(chunk):
            lost.update(block.rejected["reason"].to_pylist())
            if reader.label not in block.rows.schema.names:
                raise ConfigError(f"--input {chunk.file.name}: no column '{reader.label}', the label of the model")
            rows = block.rows.filter(block.rows[reader.label].is_valid())
            lost["no label"] += block.rows.num_rows - rows.num_rows
            # The server is sent what a model reads, in the types of a request.
            features = rows.select([name for name in rows.schema.names if name in raw_rows.columns.names])
            for start in range(0, rows.num_rows, size):
                batch = raw_rows.from_batch(features.slice(start, size))
                yield batch, rows[reader.label].slice(start, size).to_numpy()
