"""HTTP: the scores of the predictor, one-line errors, and bad requests that hurt nobody else."""

import json
import math
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import requests
import schemathesis
import tritonclient.grpc
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance, unsupported_method
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

import rayrec
import serve
from jobs.serve import ServeRequest, serving
from rayrec.common.errors import UserError
from rayrec.common.machine import free_port
from rayrec.common.progress import SilentProgress
from rayrec.inference.explanation import load_explainer
from rayrec.inference.folder.facts import KnownItems
from rayrec.inference.predictor import Predictor, load_model
from rayrec.inference.recommender import load_recommender
from rayrec.models.sasrec.config import SASRecConfig
from rayrec.sources.registry import load_ranker
from serve import arrow
from tests.display_models import ADS, CONTEXT, make_ranker
from tests.model_folders import make_model_folder, make_raw_rows, make_recommender_folder, set_lists

TIMEOUT = 60


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("served")
    for name in ("dlrm", "dcnv2"):
        make_model_folder(base / name, model=name, multi_hot=1)
    make_recommender_folder(base / "neumf")
    make_recommender_folder(base / "sasrec", config=SASRecConfig(embedding_dim=8, length=6))
    # The same model, whose best 20 another one ranks again.
    shutil.copytree(base / "sasrec", base / "ranked")
    set_lists(base / "ranked", rank="neumf", retrieve=20)
    make_ranker(base / "displays")
    names = ("dlrm", "dcnv2", "neumf", "sasrec", "ranked")
    return {**{name: base / name for name in names}, "ads": base / "displays" / "model"}


@pytest.fixture(scope="module")
def grpc_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def url(ray_cluster: str, folders: dict[str, Path], grpc_port: int) -> Iterator[str]:
    named = tuple(Path(f"{name}={folder}") for name, folder in folders.items())
    request = ServeRequest(model=named, host="0.0.0.0", port=free_port(), grpc_port=grpc_port)
    with serving(request, SilentProgress()) as address:
        yield address


@pytest.fixture(scope="module")
def predictors(folders: dict[str, Path]) -> dict[str, Predictor]:
    return {name: load_model(folder) for name, folder in folders.items()}


@pytest.mark.parametrize("name", ["dlrm", "dcnv2"])
def test_scores_are_the_predictors(url: str, predictors: dict[str, Predictor], name: str) -> None:
    rows = make_raw_rows(predictors[name].schema, 300)
    answer = requests.post(f"{url}/v1/models/{name}:predict", json={"instances": rows}, timeout=TIMEOUT)
    assert answer.status_code == 200
    assert answer.json()["model"] == name
    np.testing.assert_allclose(answer.json()["predictions"], predictors[name].predict(rows), rtol=0, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 300])
def test_an_arrow_stream_gets_the_predictors_scores(url: str, predictors: dict[str, Predictor], rows: int) -> None:
    predictor = predictors["dlrm"]
    columns = predictor.raw_rows.from_rows(make_raw_rows(predictor.schema, rows))
    address, headers = f"{url}/v1/models/dlrm:predict", {"Content-Type": arrow.MEDIA_TYPE}
    answer = requests.post(address, arrow.stream_of(columns), headers=headers, timeout=TIMEOUT)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, arrow.MEDIA_TYPE)
    table = pa.ipc.open_stream(answer.content).read_all()
    np.testing.assert_array_equal(table["score"].to_numpy(), predictor.predict(columns))
    assert table.schema.metadata == {b"model": b"dlrm", b"version": b"1"}
    refused = requests.post(address, b"{}", headers=headers, timeout=TIMEOUT)
    assert refused.status_code == 400 and refused.json()["error"].startswith("the body is not a valid Arrow IPC stream")
    elsewhere = requests.post(f"{url}/v1/models/dlrm:rank", b"{}", headers=headers, timeout=TIMEOUT)
    assert (elsewhere.status_code, elsewhere.json()["error"]) == (415, "':rank' takes JSON; send Arrow to :predict")


def test_recommendations_are_the_recommenders(url: str, folders: dict[str, Path]) -> None:
    expected = load_recommender(folders["neumf"]).recommend("u-17", 5)
    answer = requests.post(f"{url}/v1/models/neumf:recommend", json={"user": "u-17", "k": 5}, timeout=TIMEOUT)
    assert answer.status_code == 200
    assert (answer.json()["model"], answer.json()["user"]) == ("neumf", "u-17")
    assert [entry["item"] for entry in answer.json()["items"]] == expected.items
    np.testing.assert_allclose([e["score"] for e in answer.json()["items"]], expected.scores, rtol=0, atol=1e-6)


def test_anybody_is_answered_as_a_batch_is(url: str, folders: dict[str, Path], tmp_path: Path) -> None:
    rayrec.predict(folders["sasrec"], tmp_path / "out", top_k=5)
    batch = pq.read_table(tmp_path / "out/recommendations").to_pylist()
    known = KnownItems.load(load_model(folders["sasrec"]).model_folder)
    for number in (1, 9, 17, 29):
        expected = [{"item": row["item"], "score": row["score"]} for row in batch if row["user"] == f"u-{number}"]
        events = [f"i-{item - 1}" for item in known.events_of(number + 1).tolist()]
        for body in ({"user": f"u-{number}"}, {"events": events}, {"user": "somebody new", "events": events}):
            answer = requests.post(f"{url}/v1/models/sasrec:recommend", json={**body, "k": 5}, timeout=TIMEOUT)
            assert (answer.status_code, answer.json()["items"]) == (200, expected)


def test_what_another_model_ranks_is_what_it_answers_for_the_same_candidates(url: str) -> None:
    def ask(name: str, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = requests.post(f"{url}/v1/models/{name}:{verb}", json=body, timeout=TIMEOUT)
        assert answer.status_code == 200, answer.text
        content: dict[str, Any] = answer.json()
        return content

    for user in ("u-9", "u-28"):
        best = ask("sasrec", "recommend", {"user": user, "events": ["i-2"], "k": 20})["items"]
        candidates = [{"item": entry["item"]} for entry in best]
        expected = ask("neumf", "rank", {"context": {"user": user}, "candidates": candidates, "k": 6})["candidates"]
        found = ask("ranked", "recommend", {"user": user, "events": ["i-2"], "k": 6})
        assert found["ranked_by"] == {"model": "neumf", "version": "1"}
        assert found["items"] == [{"item": one["candidate"]["item"], "score": one["score"]} for one in expected]


def test_parts_add_up_to_the_logit_of_the_score(url: str, folders: dict[str, Path]) -> None:
    explainer = load_explainer(folders["dlrm"])
    rows = make_raw_rows(explainer.predictor.schema, 5)
    answer = requests.post(f"{url}/v1/models/dlrm:explain", json={"instances": rows}, timeout=TIMEOUT)
    scored = requests.post(f"{url}/v1/models/dlrm:predict", json={"instances": rows}, timeout=TIMEOUT)
    assert (answer.status_code, answer.json()["model"], answer.json()["version"]) == (200, "dlrm", "1")
    explained = zip(answer.json()["explanations"], scored.json()["predictions"], explainer.explain(rows), strict=True)
    for found, score, expected in explained:
        assert found["score"] == pytest.approx(score, abs=1e-6)
        assert sum(found["parts"].values()) == pytest.approx(found["logit"] - found["base"], abs=1e-9)
        assert sum(found["parts"].values()) == pytest.approx(math.log(score / (1 - score)) - found["base"], abs=1e-5)
        assert found["parts"] == pytest.approx(expected.parts, abs=1e-4)


@pytest.mark.parametrize("k", [None, 2])
def test_ads_are_ranked_as_the_ranker_does(url: str, folders: dict[str, Path], k: int | None) -> None:
    expected = load_ranker(folders["ads"]).rank(CONTEXT, ADS, k)
    body = {"context": CONTEXT, "candidates": ADS, **({} if k is None else {"k": k})}
    answer = requests.post(f"{url}/v1/models/ads:rank", json=body, timeout=TIMEOUT)
    assert answer.status_code == 200
    assert [entry["candidate"] for entry in answer.json()["candidates"]] == expected.candidates
    np.testing.assert_allclose([e["score"] for e in answer.json()["candidates"]], expected.scores, rtol=0, atol=1e-6)


def test_objects_are_ranked_by_any_model(url: str, folders: dict[str, Path], predictors: dict[str, Predictor]) -> None:
    candidates = make_raw_rows(predictors["dlrm"].schema, 6)
    context = {"I1": 4}
    expected = load_ranker(folders["dlrm"]).rank(context, candidates, 3)
    body = {"context": context, "candidates": candidates, "k": 3}
    answer = requests.post(f"{url}/v1/models/dlrm:rank", json=body, timeout=TIMEOUT)
    assert answer.status_code == 200
    assert [entry["candidate"] for entry in answer.json()["candidates"]] == expected.candidates
    np.testing.assert_allclose([e["score"] for e in answer.json()["candidates"]], expected.scores, rtol=0, atol=1e-6)


def test_an_answer_has_the_id_of_its_request(url: str) -> None:
    given = requests.get(f"{url}/healthz", headers={"X-Request-Id": "abc-1"}, timeout=TIMEOUT)
    assert given.headers["X-Request-Id"] == "abc-1"
    assert len(requests.get(f"{url}/healthz", timeout=TIMEOUT).headers["X-Request-Id"]) > 20


@pytest.mark.parametrize(
    "header", ["X-Request-Id", "Serve_Multiplexed_Model_Id", "traceparent", "X-Session-Id", "X-Any"]
)
def test_headers_that_are_no_text(url: str, predictors: dict[str, Predictor], header: str) -> None:
    """They are left out, wherever Ray Serve would read them."""
    (row,) = make_raw_rows(predictors["dlrm"].schema, 1)
    headers = {header: b"caf\xe9\xff".decode("latin-1")}
    for answer in (
        requests.post(f"{url}/v1/models/dlrm:predict", json=row, headers=headers, timeout=TIMEOUT),
        requests.get(f"{url}/v1/models/dlrm", headers=headers, timeout=TIMEOUT),
    ):
        assert (answer.status_code, len(answer.headers["X-Request-Id"])) == (200, 32), answer.text


def test_one_object_alone(url: str, predictors: dict[str, Predictor]) -> None:
    (row,) = make_raw_rows(predictors["dlrm"].schema, 1)
    answer = requests.post(f"{url}/v1/models/dlrm:predict", json=row, timeout=TIMEOUT)
    np.testing.assert_allclose(answer.json()["predictions"], predictors["dlrm"].predict([row]), rtol=0, atol=1e-6)


def test_what_is_served(url: str, predictors: dict[str, Predictor]) -> None:
    assert requests.get(f"{url}/healthz", timeout=TIMEOUT).json() == {"status": "ok"}
    assert requests.get(f"{url}/v1/models", timeout=TIMEOUT).json() == {"models": sorted(predictors)}
    described = requests.get(f"{url}/v1/models/dlrm", timeout=TIMEOUT).json()
    assert described["ready"] is True
    assert described["metrics"] == {"test": {"auc": 0.75}}
    assert described["version"] == "1"
    assert described["versions"] == {"1": {"state": "ready", "traffic": 1.0}}
    assert described["schema"] == predictors["dlrm"].schema.model_dump(mode="json")


@pytest.fixture(scope="module")
def triton(url: str) -> Iterator[InferenceServerClient]:
    client = InferenceServerClient(url.removeprefix("http://"), network_timeout=TIMEOUT, connection_timeout=TIMEOUT)
    yield client
    client.close()


def test_triton_client_reads_what_is_served(triton: InferenceServerClient) -> None:
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready("dlrm")
    assert triton.is_model_ready("dlrm", "1")
    assert not triton.is_model_ready("dlrm", "2")
    assert not triton.is_model_ready("other")
    assert triton.get_server_metadata()["extensions"] == ["binary_tensor_data", "model_repository"]
    told = triton.get_model_metadata("dlrm", "1")
    assert told["versions"] == ["1"]
    assert [entry["name"] for entry in told["inputs"]] == ["I1", "I2", "I3", "C1", "C2", "C3", "C4", "M1"]


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
def test_triton_client_gets_the_predictors_scores(
    triton: InferenceServerClient, predictors: dict[str, Predictor], binary: bool
) -> None:
    rows = make_raw_rows(predictors["dlrm"].schema, 300)
    inputs = []
    for name in ("I1", "I2", "I3"):
        numbers = [row.get(name) for row in rows]
        # JSON has no NaN: a missing number of a tensor can only be told in bytes.
        missing = float("nan") if binary else 0.0
        values = np.array([missing if number is None else number for number in numbers], np.float64)
        rows = [{**row, name: None if np.isnan(value) else value} for row, value in zip(rows, values, strict=True)]
        inputs.append(InferInput(name, [300], "FP64").set_data_from_numpy(values, binary_data=binary))
    for name in ("C1", "C2", "C3", "C4"):
        texts = np.array([(row.get(name) or "").encode() for row in rows], object)
        inputs.append(InferInput(name, [300], "BYTES").set_data_from_numpy(texts, binary_data=binary))
    bags = [(row.get("M1") or [])[:4] for row in rows]
    padded = np.array([[text.encode() for text in bag] + [b""] * (4 - len(bag)) for bag in bags], object)
    inputs.append(InferInput("M1", [300, 4], "BYTES").set_data_from_numpy(padded, binary_data=binary))
    outputs = [InferRequestedOutput("score", binary_data=binary)]
    answer = triton.infer("dlrm", inputs, "1", outputs, request_id="7")
    assert answer.get_response()["id"] == "7"
    assert answer.get_response()["model_version"] == "1"
    np.testing.assert_allclose(answer.as_numpy("score"), predictors["dlrm"].predict(rows), rtol=0, atol=1e-6)


def test_triton_client_gets_the_scores_of_encoded_rows(
    triton: InferenceServerClient, predictors: dict[str, Predictor]
) -> None:
    predictor = predictors["neumf"]
    encoded = predictor.encode(predictor.raw_rows.from_rows(make_raw_rows(predictor.schema, 50)))
    inputs = [
        InferInput(name, [50], "INT32").set_data_from_numpy(encoded.column(name).to_numpy())
        for name in ("user", "item")
    ]
    answer = triton.infer("neumf", inputs, parameters={"encoded": True})
    np.testing.assert_allclose(answer.as_numpy("score"), predictor.predict_encoded(encoded), rtol=0, atol=1e-6)


def test_triton_client_is_told_what_is_wrong(triton: InferenceServerClient) -> None:
    wrong = InferInput("C11", [1], "BYTES").set_data_from_numpy(np.array([b"a"], object))
    with pytest.raises(InferenceServerException, match=r"\[422\] unknown feature 'C11'; did you mean 'C1'\?"):
        triton.infer("dlrm", [wrong])


@pytest.fixture(scope="module")
def triton_grpc(url: str, grpc_port: int) -> Iterator[tritonclient.grpc.InferenceServerClient]:
    client = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{grpc_port}")
    yield client
    client.close()


def test_triton_client_over_grpc(
    triton_grpc: tritonclient.grpc.InferenceServerClient, predictors: dict[str, Predictor]
) -> None:
    assert triton_grpc.is_server_live(client_timeout=TIMEOUT)
    assert triton_grpc.is_server_ready(client_timeout=TIMEOUT)
    assert triton_grpc.is_model_ready("dlrm", "1", client_timeout=TIMEOUT)
    told = triton_grpc.get_model_metadata("dlrm", client_timeout=TIMEOUT)
    assert [entry.name for entry in told.inputs] == ["I1", "I2", "I3", "C1", "C2", "C3", "C4", "M1"]
    rows = [{"I1": float(index), "C2": f"C2-{index}"} for index in range(300)]
    numbers = np.array([row["I1"] for row in rows])
    texts = np.array([str(row["C2"]).encode() for row in rows], object)
    inputs = [
        tritonclient.grpc.InferInput("I1", [300], "FP64").set_data_from_numpy(numbers),
        tritonclient.grpc.InferInput("C2", [300], "BYTES").set_data_from_numpy(texts),
    ]
    answer = triton_grpc.infer("dlrm", inputs, request_id="7", client_timeout=TIMEOUT)
    assert (answer.get_response().id, answer.get_response().model_version) == ("7", "1")
    np.testing.assert_allclose(answer.as_numpy("score"), predictors["dlrm"].predict(rows), rtol=0, atol=1e-6)


def test_triton_client_over_grpc_is_told_what_is_wrong(triton_grpc: tritonclient.grpc.InferenceServerClient) -> None:
    wrong = tritonclient.grpc.InferInput("C11", [1], "BYTES").set_data_from_numpy(np.array([b"a"], object))
    with pytest.raises(InferenceServerException, match=r"INVALID_ARGUMENT\] unknown feature 'C11'"):
        triton_grpc.infer("dlrm", [wrong], client_timeout=TIMEOUT)
    with pytest.raises(InferenceServerException, match=r"NOT_FOUND\] no model 'other'"):
        triton_grpc.get_model_metadata("other", client_timeout=TIMEOUT)


def test_the_server_does_what_its_document_says(url: str) -> None:
    """Requests made from the document, right and wrong: no 500, no status and no answer that it does not describe."""
    # A tensor's data must fit its shape, which JSON Schema cannot say; a method that is not there is 405 or 404.
    excluded = [positive_data_acceptance, unsupported_method]
    refused = {"negative_data_rejection": {"expected-statuses": [400, 404, 405, 413, 422]}}
    config = schemathesis.config.SchemathesisConfig.from_dict({"checks": refused})
    document = schemathesis.openapi.from_url(f"{url}/openapi.json", config=config)
    operations = [operation.ok() for operation in document.get_all_operations()]
    assert len(operations) > 15
    for operation in operations:
        wrong_too = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE] if operation.body else [GenerationMode.POSITIVE]
        for mode in wrong_too:

            @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask(case: schemathesis.Case) -> None:
                case.call_and_validate(timeout=TIMEOUT, excluded_checks=excluded)

            ask()


PREDICT = "/v1/models/dlrm:predict"
BAD_REQUESTS: dict[str, tuple[str, str, bytes, int, str]] = {
    "not JSON": ("POST", PREDICT, b"I1=3&C1=a", 400, "not valid JSON"),
    "deep nesting": ("POST", PREDICT, b'{"a":' * 50_000, 400, "recursion limit exceeded"),
    "string for list": ("POST", PREDICT, b'{"M1": "a"}', 422, "row 0, 'M1': the string 'a'; needs a list"),
    "too many rows": ("POST", PREDICT, json.dumps({"instances": [{}] * 8193}).encode(), 413, "8193 rows, at most 8192"),
    "too large a body": ("POST", PREDICT, b" " * (64 * 2**20 + 1), 413, "larger than 16 MiB"),
    "unknown model": ("POST", "/v1/models/dlrn:predict", b"{}", 404, "no model 'dlrn'; did you mean 'dlrm'?"),
    "unknown model described": ("GET", "/v1/models/zzz", b"", 404, "no model 'zzz'; models: ads, dcnv2"),
    "GET": ("GET", PREDICT, b"", 405, "use POST"),
    "PUT": ("PUT", PREDICT, b"{}", 405, "use POST"),
    "unknown user": ("POST", "/v1/models/neumf:recommend", b'{"user": "u-99"}', 404, "no user 'u-99' in the model's"),
    "unknown version": ("POST", "/v1/models/dlrm/versions/2:predict", b"{}", 404, "no version '2' of model 'dlrm'; "),
    "unknown method": ("POST", "/v1/models/dlrm:sort", b"{}", 404, "no verb ':sort'; there are :predict, :recommend"),
    "too many rows to explain": (
        "POST",
        "/v1/models/dlrm:explain",
        json.dumps({"instances": [{}] * 9}).encode(),
        413,
        "instances: 9 rows, at most 8 a request",
    ),
    "an explanation by GET": ("GET", "/v1/models/dlrm:explain", b"", 405, "use POST"),
    "no recommender": ("POST", "/v1/models/dlrm:recommend", b'{"user": "u-1"}', 404, "it cannot recommend"),
    "v2, not JSON": ("POST", "/v2/models/dlrm/infer", b"x", 400, "not valid JSON"),
    "v2, GET": ("GET", "/v2/models/dlrm/infer", b"", 405, "use POST"),
    "v2, unknown model": ("POST", "/v2/models/x/infer", b"{}", 404, "no model 'x'"),
    "an id that says nothing": (
        "POST",
        "/v1/models/dlrm:rank",
        b'{"candidates": [1]}',
        422,
        "candidates[0]: give an object of raw features",
    ),
    "ad of another type": (
        "POST",
        "/v1/models/ads:rank",
        b'{"candidates": [1, "two"]}',
        422,
        "candidates[1]: the string 'two'",
    ),
    "unknown context": (
        "POST",
        "/v1/models/ads:rank",
        b'{"candidates": [1], "context": {"id": 1}}',
        422,
        "unknown field 'id'",
    ),
    "unknown path": ("GET", "/v3/health", b"", 404, "Not Found; there are POST /v1/models/NAME:predict"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_bad_requests(url: str, case: str) -> None:
    method, path, body, status, message = BAD_REQUESTS[case]
    answer = requests.request(method, f"{url}{path}", data=body, timeout=TIMEOUT)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert message in answer.json()["error"]
    assert "\n" not in answer.json()["error"]
    assert "Traceback" not in answer.text


def test_bad_requests_do_not_fail_those_beside_them(url: str, predictors: dict[str, Predictor]) -> None:
    rows = make_raw_rows(predictors["dlrm"].schema, 120)
    expected = predictors["dlrm"].predict(rows)

    def ask(index: int) -> tuple[int, Any]:
        body = {"I1": "bad"} if index % 3 == 0 else rows[index]
        answer = requests.post(f"{url}{PREDICT}", json=body, timeout=TIMEOUT)
        return answer.status_code, answer.json()

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(len(rows))))
    for index, (status, content) in enumerate(answers):
        if index % 3 == 0:
            assert (status, list(content)) == (422, ["error"])
        else:
            assert status == 200
            assert content["predictions"][0] == pytest.approx(expected[index], abs=1e-6)


def test_metrics(url: str, predictors: dict[str, Predictor]) -> None:
    """What the dashboard shows is what Ray exports."""
    rows = make_raw_rows(predictors["dlrm"].schema, 100)
    rows = [{**row, "C2": "never seen"} for row in rows]
    requests.post(f"{url}{PREDICT}", json={"instances": rows}, timeout=TIMEOUT)
    dashboard = (Path(serve.__file__).parent / "grafana_dashboard.json").read_text()
    shown = set(re.findall(r"ray_rayrec_\w+", dashboard))
    assert len(shown) > 8
    # These need what `rayrec export` writes, which models made without training lack.
    shown -= {"ray_rayrec_score_drift", "ray_rayrec_reference_unknown_share", "ray_rayrec_model_data_time_seconds"}
    (node,) = ray.nodes()
    deadline = time.monotonic() + 60
    while True:
        text = requests.get(f"http://127.0.0.1:{node['MetricsExportPort']}/metrics", timeout=TIMEOUT).text
        missing = {name for name in shown if f"\n{name}{{" not in text}
        counted = re.findall(r"\nray_rayrec_unknown_ids_total{([^}]*)} ([\d.]+)", text)
        # Replicas of other tests have series of their own.
        unknown = [float(value) for tags, value in counted if 'feature="C2"' in tags and 'model="dlrm"' in tags]
        given = re.findall(r"\nray_rayrec_unknown_values_total{[^}]*column=\"C2\"[^}]*} ([\d.]+)", text)
        if not missing and max(unknown) >= 100 and max(map(float, given), default=0.0) >= 100:
            break
        assert time.monotonic() < deadline, (missing, unknown)
        requests.post(f"{url}{PREDICT}", json={"instances": rows}, timeout=TIMEOUT)
        time.sleep(1)


def test_a_port_in_use(url: str, folders: dict[str, Path]) -> None:
    request = ServeRequest(model=(folders["dlrm"],), port=int(url.rpartition(":")[2]))
    with pytest.raises(UserError, match="cannot listen on"), serving(request, SilentProgress()):
        pass
