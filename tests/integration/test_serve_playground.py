"""The page at `/` in a headless Chromium: forms from the schema, scores, recommendations, errors; the dashboard."""

import re
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import requests
from playwright.sync_api import Locator, Page, sync_playwright

from jobs.serve import ServeRequest, serving
from rayrec.common.machine import free_port
from rayrec.common.process import in_background
from rayrec.common.progress import SilentProgress
from rayrec.features.schema import Schema
from rayrec.inference.examples import ReferenceTraffic, unknown_counts
from rayrec.inference.explanation import load_explainer
from rayrec.inference.folder.versions import ModelManifest
from rayrec.inference.predictor import load_model
from rayrec.inference.recommender import load_recommender
from rayrec.ingest.held_out_rows import HELD_OUT_ROWS_FILE, HeldOutRows
from rayrec.store.files import write_json
from tests.model_folders import make_model_folder, make_recommender_folder

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TOKEN = "0123456789abcdef"
MINUS, NOT_KNOWN = "\N{MINUS SIGN}", "\N{EN DASH}"
KNOWN, OTHER = (
    {"I1": 1, "C1": "C1-1", "C2": "C2-3", "C3": "C3-1", "C4": "C4-1"},
    {"I1": 9, "C1": "C1-1", "C3": "C3-7", "C4": "C4-9"},
)
"""Two rows, of which the second lacks one of four categories."""
HELD_OUT = HeldOutRows(
    split="test",
    rows=(
        {"I1": 3, "C1": "C1-1", "M1": ["M1-2"]},
        {"I1": 1, "I2": 0.5, "I3": 1, "C1": "C1-1", "C3": "C3-1", "C4": "C4-1"},
    ),
    labels=(1.0, 0.0),
    looked_at=100,
    ranges={"I1": (-2.0, 40.0)},
)
ROWS = [*[KNOWN] * 80, *[OTHER] * 20]
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("played")
    make_model_folder(base / "dlrm", multi_hot=1)
    write_json(base / "dlrm" / HELD_OUT_ROWS_FILE, HELD_OUT.model_dump(mode="json"))
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
    manifest = ModelManifest.load(base / "watched")
    manifest.model_copy(update={"data_time": time.time() - 3 * 86_400}).save(base / "watched")
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
    page.get_by_role("alert").filter(has_text="401: this server asks for a token").wait_for()
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_label("Token").press("Tab")
    page.get_by_label("M1").wait_for()
    assert page.get_by_label("Model").input_value() == "dlrm"
    assert page.locator("#features label").all_inner_texts() == ["I1", "I2", "I3", "C1", "C2", "C3", "C4", "M1"]
    assert page.get_by_label("I1").input_value() == str(HELD_OUT.rows[0]["I1"])
    page.get_by_text("Row 1 of 2 from the held-out split 'test'").wait_for()
    assert page.locator("#features small").nth(0).inner_text() == f"number, {MINUS}2 to 40"
    assert page.locator("#features small").nth(4).inner_text() == "text, 33 known values"
    page.get_by_role("button", name="Score").click()
    page.locator("#note").filter(has_text="Label of this row: 1. Version 1").wait_for()
    _has_score(page, folders, HELD_OUT.rows[0])

    page.get_by_role("button", name="Another row").click()
    page.get_by_label("C2").fill("C2-3")
    page.get_by_label("I2").fill("")
    page.get_by_label("M1").fill("M1-0, M1-4")
    page.get_by_label("M1").press("Enter")
    page.locator("#note").filter(has_text="Version 1").wait_for()
    row = {**HELD_OUT.rows[1], "C2": "C2-3", "M1": ["M1-0", "M1-4"]}
    row.pop("I2")
    _has_score(page, folders, row)
    assert "Label" not in page.locator("#note").inner_text(), "the row is another one now"

    page.get_by_role("button", name="Explain").click()
    parts = page.get_by_role("region", name="Contributions").locator("dd")
    parts.nth(7).wait_for()
    (expected,) = load_explainer(folders["dlrm"]).explain([row])
    found = [float(text.replace(MINUS, "-")) for text in parts.all_inner_texts()]
    assert found == pytest.approx(sorted(expected.parts.values(), key=abs, reverse=True), rel=1e-2)

    page.get_by_label("I1").fill("1e39")
    page.get_by_role("button", name="Score").click()
    page.get_by_role("alert").filter(has_text="422: row 0, 'I1'").wait_for()

    page.get_by_label("Model").select_option("neumf")
    page.get_by_text("A made-up row").wait_for()
    page.get_by_label("User", exact=True).fill("u-17")
    page.get_by_role("button", name="Recommend").click()
    page.locator("#items tr").nth(5).wait_for()
    best = load_recommender(folders["neumf"]).recommend("u-17", 5)
    assert [cells.split("\t")[1] for cells in page.locator("#items tr").all_inner_texts()[1:]] == best.items


@pytest.mark.minutes
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_window_and_the_answer_is_in_view(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 700})
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_label("Token").press("Tab")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for view in ("Dashboard", "Playground"):
            page.get_by_role("link", name=view).click()
            page.wait_for_timeout(300)
            assert page.evaluate("document.documentElement.scrollWidth") == width
        page.get_by_label("I1").scroll_into_view_if_needed()
        page.get_by_role("button", name="Score").click()
        box = page.locator("#score").bounding_box()
        assert box is not None and 0 <= box["y"] < 700
    fields = "[...document.querySelectorAll('input, select, button')]"
    assert page.evaluate(f"{fields}.filter(e => !(e.labels?.length || e.ariaLabel || e.textContent)).length") == 0


@pytest.mark.minutes
def test_the_dashboard(page: Page, url: str, folders: dict[str, Path]) -> None:
    """A hundred rows ten times a second, and every tenth request a bad one: the figures are those of this traffic."""
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
        # Nobody looks at the page meanwhile.
        began, sent_before = time.monotonic(), len(sent)
        time.sleep(35)
        rate = (len(sent) - sent_before) / (time.monotonic() - began)
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_label("Token").press("Tab")
        page.get_by_role("link", name="Dashboard").click()
        _figure(model, "Score drift").filter(has_text="A large change since export").wait_for()
        assert float(_value(model, "Score drift")) == pytest.approx(0.3 * np.log(4), rel=0.01)
        share = _figure(model, "Unknown or missing")
        share.filter(has_text="Furthest above export: C2, 20.0 % instead of 3.00 %").wait_for()
        shown = [float(text) for text in re.findall(r"([\d.]+) %", _value(model, "Unknown or missing"))]
        assert shown == pytest.approx([100 * unknown / ids, 3.0], abs=0.01)
        assert float(_value(model, "Requests per second")) == pytest.approx(rate, rel=0.3)
        assert float(_value(model, "Errors per second")) == pytest.approx(rate / 10, rel=0.5)
        assert "status 422: " in _figure(model, "Errors per second").inner_text()
        median, slowest = re.findall(r"(?:median|p99) ([\d.]+)", _figure(model, "Latency").inner_text())
        assert 0 < float(median) <= float(slowest)
        assert model.locator("td").all_inner_texts()[:3] == ["1", "ready", "100 %"]
        assert model.locator("td").all_inner_texts()[4].endswith("3 days ago")
        line = _figure(model, "Requests per second").locator("path.first").get_attribute("d")
        assert line is not None and line.count("L") >= 3, "the chart is filled when the page is opened"
    assert set(sent) == {200, 422}
    _figure(model, "Requests per second").filter(has_text=f"{len(sent):,} in the time shown").wait_for()
    # 35 seconds later nothing is asked: zero is zero, and what nobody knows has no figure.
    page.wait_for_timeout(45_000)
    assert _value(model, "Requests per second") == _value(model, "Errors per second") == "0"
    assert _value(model, "Latency in ms").split() == ["median", NOT_KNOWN, "p99", NOT_KNOWN]
    page.get_by_role("link", name="Playground").click()
    page.get_by_role("button", name="Score").wait_for()
    assert not model.is_visible()


def _has_score(page: Page, folders: dict[str, Path], row: dict[str, Any]) -> None:
    (expected,) = load_model(folders["dlrm"]).predict([row])
    assert float(page.locator("#score").inner_text()) == pytest.approx(expected, rel=1e-2)


def _encoded(folder: Path) -> tuple[Schema, pa.RecordBatch]:
    predictor = load_model(folder)
    return predictor.schema, predictor.encode(predictor.raw_rows.from_rows(ROWS))


def _figure(model: Locator, title: str) -> Locator:
    return model.get_by_role("figure", name=title)


def _value(model: Locator, title: str) -> str:
    return _figure(model, title).locator("p").inner_text()
