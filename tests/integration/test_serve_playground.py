"""The page at `/` in a headless Chromium: forms from the schema, scores, recommendations, errors."""

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

from jobs.serve import ServeRequest, serving
from rayrec.common.progress import SilentProgress
from rayrec.inference.predictor import load_model
from rayrec.inference.recommender import load_recommender
from tests.model_folders import make_model_folder, make_recommender_folder

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TOKEN = "0123456789abcdef"
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("played")
    make_model_folder(base / "dlrm", multi_hot=1)
    make_recommender_folder(base / "neumf")
    (base / "tokens").write_text(TOKEN)
    return {name: base / name for name in ("dlrm", "neumf")}


@pytest.fixture(scope="module")
def url(ray_cluster: str, folders: dict[str, Path]) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    tokens = folders["dlrm"].parent / "tokens"
    with serving(ServeRequest(model=tuple(folders.values()), port=port, token_file=tokens), SilentProgress()) as url:
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
        page.goto(url)
        yield page
        assert elsewhere == []
        assert failures == []
        browser.close()


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
