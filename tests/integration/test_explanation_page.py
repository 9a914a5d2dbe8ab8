"""The page of an explanation in a headless Chromium without a network: light and dark, wide and narrow."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from playwright.sync_api import sync_playwright

import rayrec
from rayrec.inference.predictor import load_model
from tests.builders import write_dataset
from tests.model_folders import make_model_folder, make_raw_rows

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine")
def test_the_page(tmp_path: Path) -> None:
    make_model_folder(tmp_path / "model", multi_hot=1)
    predictor = load_model(tmp_path / "model")
    rows = predictor.encode(predictor.columns_of(make_raw_rows(predictor.schema, 300)))
    labels = np.random.default_rng(0).random(300) < predictor.predict_encoded(rows)
    table = pa.Table.from_batches([rows]).append_column("label", pa.array(labels.astype(np.float32)))
    write_dataset(tmp_path / "data", predictor.schema, {"test": table})
    options = {"group": ["numbers=I1,I2,I3"], "feature": ["I1", "C2", "M1"], "permutations": 1, "progress": False}
    rayrec.explain(tmp_path / "model", tmp_path / "data", tmp_path / "out", **options)
    page_file = tmp_path / "out" / "report.html"
    assert page_file.stat().st_size < 5_000_000
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            for width in (1280, 400):
                context = browser.new_context(
                    viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
                )
                page = context.new_page()
                failures: list[str] = []
                page.on("console", lambda said, to=failures: to.append(said.text))
                page.on("pageerror", lambda error, to=failures: to.append(str(error)))
                page.goto(page_file.as_uri())
                for name in ("AUC worse by, when permuted", "AUC worse by, when permuted together", "I1", "C2", "M1"):
                    chart = page.get_by_role("img", name=name, exact=True)
                    chart.scroll_into_view_if_needed()
                    chart.locator("svg").first.wait_for()
                assert page.evaluate("document.documentElement.scrollWidth") == width
                assert failures == []
                context.close()
        browser.close()
