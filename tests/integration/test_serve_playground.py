"""The page at `/` in a headless Chromium: forms from the schema, scores, recommendations, errors; the dashboard."""

import re
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import requests
from playwright.sync_api import Locator, Page, sync_playwright

from jobs.serve import ServeRequest, serving
from rayrec.common.background import in_background
from rayrec.common.ports import free_port
from rayrec.common.progress import SilentProgress
from rayrec.features.schema import Schema
from rayrec.inference.folder.origin import Origin
from rayrec.inference.folder.reference_traffic import ReferenceTraffic, unknown_counts
from rayrec.inference.predictor import load_model
from rayrec.inference.recommender import load_recommender
from tests.model_folders import make_model_folder, make_recommender_folder

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TOKEN = "0123456789abcdef"
KNOWN, OTHER = (
    {"I1": 1, "C1": "C1-1", "C2": "C2-3", "C3": "C3-1", "C4": "C4-1"},
    {"I1": 9, "C1": "C1-1", "C3": "C3-7", "C4": "C4-9"},
)
"""Two rows, of which the second lacks one of four categories."""
ROWS = [*[KNOWN] * 80, *[OTHER] * 20]
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("played")
    make_model_folder(base / "dlrm", multi_hot=1)
    make_recommender_folder(base / "neumf")
    make_model_folder(base / "watched")
    scores = load_model(base / "watched").predict([KNOWN, OTHER])
    reference = ReferenceTraffic(
        split="test",
        rows=100,
        score_edges=(float(scores.mean()),),
        score_shares=(0.5, 0.5),
        unknown_share=dict.fromkeys(("C1", "C2", "C3", "C4"), 0.03),
    )
    reference.save(base / "watched")
    Origin(run="run", checkpoint="1", dataset="0", data_time=time.time() - 3 * 86_400).save(base / "watched")
    (base / "tokens").write_text(TOKEN)
    return {name: base / name for name in ("dlrm", "neumf", "watched")}


@pytest.fixture(scope="module")
def url(ray_cluster: str, folders: dict[str, Path]) -> Iterator[str]:
    tokens = folders["dlrm"].parent / "tokens"
    request = ServeRequest(model=tuple(folders.values()), port=free_port(), token_file=tokens)
    with serving(request, SilentProgress()) as url:
        yield url


@pytest.fixture
def page(url: str) -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 760})
        elsewhere: list[str] = []
        failures: list[str] = []
        page.on("request", lambda request: None if request.url.startswith(url) else elsewhere.append(request.url))
        page.on("pageerror", lambda error: failures.append(str(error)))
        page.on("console", lambda said: failures.append(said.text) if _is_error(said.type, said.text) else None)
        page.goto(url)
        yield page
        assert elsewhere == []
        assert failures == []
        browser.close()


def _is_error(kind: str, text: str) -> bool:
    """Chromium itself says so of every answer that is an error, which the page shows."""
    return kind == "error" and not text.startswith("Failed to load resource")


@pytest.mark.minutes
def test_the_playground(page: Page, folders: dict[str, Path]) -> None:
    page.get_by_role("alert").filter(has_text="401: no valid token").wait_for()
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_label("Token").press("Tab")
    page.get_by_label("M1").wait_for()
    assert page.get_by_label("Model").input_value() == "dlrm"
    assert [label.strip() for label in page.locator("#features label").all_inner_texts()] == [
        "I1", "I2", "I3", "C1", "C2", "C3", "C4", "M1"
    ]  # fmt: skip
    page.get_by_role("button", name="Example 2").click()
    page.get_by_label("C2").fill("C2-3")
    page.get_by_label("I2").fill("")
    page.get_by_label("M1").fill("M1-0, M1-4")
    page.get_by_role("button", name="Score").click()
    page.locator("#latency").filter(has_text="version 1").wait_for()
    row = {"I1": 1, "I3": 1, "C1": "C1-1", "C2": "C2-3", "C3": "C3-1", "C4": "C4-1", "M1": ["M1-0", "M1-4"]}
    (expected,) = load_model(folders["dlrm"]).predict([row])
    assert float(page.locator("#score").inner_text()) == pytest.approx(expected, rel=1e-3)

    page.get_by_label("I1").fill("1e39")
    page.get_by_role("button", name="Score").click()
    page.get_by_role("alert").filter(has_text="422: row 0, 'I1'").wait_for()

    page.get_by_label("Model").select_option("neumf")
    page.locator("#user").fill("u-17")
    page.get_by_role("button", name="Recommend").click()
    page.locator("#items tr").nth(4).wait_for()
    best = load_recommender(folders["neumf"]).recommend("u-17", 5)
    assert [cells.split("\t")[1] for cells in page.locator("#items tr").all_inner_texts()] == best.items


@pytest.mark.minutes
def test_the_dashboard(page: Page, url: str, folders: dict[str, Path]) -> None:
    """A hundred rows ten times a second, and every tenth request a bad one: the figures are those of this traffic."""
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("link", name="Dashboard").click()
    sent: list[int] = []

    def send(ended: threading.Event) -> None:
        while not ended.wait(0.1):
            body = {"instances": [{"I1": "bad"}] if len(sent) % 10 == 9 else ROWS}
            headers = {"Authorization": f"Bearer {TOKEN}"}
            answer = requests.post(f"{url}/v1/models/watched:predict", json=body, headers=headers, timeout=60)
            sent.append(answer.status_code)

    model = page.get_by_role("region", name="watched")
    counts = unknown_counts(*_encoded(folders["watched"])).values()
    unknown, ids = np.sum(list(counts), axis=0)
    with in_background(send, "load"):
        # Drift is shown after 1,000 rows, the other figures after the second report of Ray's.
        _figure(model, "Score drift").filter(has_text=f"{0.3 * np.log(4):.3g}a large change").wait_for()
        share = _figure(model, "Unknown values").filter(has_text=f"{100 * unknown / ids:.3g} %at export 3 %")
        share.filter(has_text="furthest above: C2 20 %, at export 3 %").wait_for()
        began, sent_before = time.monotonic(), len(sent)
        time.sleep(30)
        rate = (len(sent) - sent_before) / (time.monotonic() - began)
        page.wait_for_timeout(5_000)
        assert _value(model, "Requests a second") == pytest.approx(rate, rel=0.3)
        assert _value(model, "Errors a second") == pytest.approx(rate / 10, rel=0.5)
        assert "422: " in _figure(model, "Errors a second").inner_text()
        median, slowest = re.findall(r"p\d\d ([\d.]+)", _figure(model, "Latency").inner_text())
        assert 0 < float(median) <= float(slowest)
        assert model.locator("td").all_inner_texts()[:3] == ["1", "ready", "100 %"]
        assert model.locator("td").all_inner_texts()[4:] == ["3 days old", "0"]
    assert set(sent) == {200, 422}
    _figure(model, "Requests a second").filter(has_text=f"{len(sent):,} since the start").wait_for()
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    page.get_by_role("link", name="Playground").click()
    page.get_by_role("button", name="Score").wait_for()
    assert not model.is_visible()


def _encoded(folder: Path) -> tuple[Schema, pa.RecordBatch]:
    predictor = load_model(folder)
    return predictor.schema, predictor.encode(predictor.raw_rows.from_rows(ROWS))


def _figure(model: Locator, title: str) -> Locator:
    return model.get_by_role("figure", name=title)


def _value(model: Locator, title: str) -> float:
    return float(_figure(model, title).locator("p").inner_text())
