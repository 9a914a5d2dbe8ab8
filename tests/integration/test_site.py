"""The site of the documentation, built by `make docs`' command and read in a headless Chromium without a network."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

REPOSITORY = Path(__file__).resolve().parents[2]
LOADED = re.compile(r"""<(?:script|img|iframe)[^>]*\ssrc=["']?([^"'\s>]+)|<link[^>]*\shref=["']?([^"'\s>]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documentation") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(params=["light", "dark"])
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page that must not ask the network for anything, nor complain."""
    context = browser.new_context(offline=True, color_scheme=request.param)
    problems: list[str] = []
    page = context.new_page()
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda sent: problems.append(sent.url) if sent.url.startswith("http") else None)
    yield page
    assert problems == []
    context.close()


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = {path.relative_to(site).as_posix(): path.read_text() for path in site.rglob("*.html")}
    some = {"index.html", "CHANGELOG.html", "docs/examples/ads.ipynb.html", "rayrec/models/dlrm/index.html"}
    assert some <= set(pages)
    elsewhere = {
        (name, link)
        for name, text in pages.items()
        for links in LOADED.findall(text)
        for link in links
        if "//" in link and not link.startswith("data:")
    }
    assert elsewhere == set()


@pytest.mark.parametrize("width", [1280, 400])
def test_pages_are_read_from_files(site: Path, page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    for name in (
        "index",
        "docs/architecture",
        "docs/recipe",
        "docs/api",
        "docs/examples/ads.ipynb",
        "docs/examples/shop.ipynb",
    ):
        page.goto((site / f"{name}.html").as_uri())
        assert page.locator("h1").first.is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    page.goto((site / "docs" / "architecture.html").as_uri())
    diagram = page.locator("div.mermaid")
    diagram.wait_for()
    assert diagram.bounding_box()["height"] > 100, "it is drawn"


def test_the_search_finds_keys_of_recipes(site: Path, page: Page) -> None:
    page.goto((site / "docs" / "tuning.html").as_uri())
    # Key by key: the page loads its index when the field has the focus, and looks at the field then and after each key.
    page.get_by_label("Search", exact=True).first.press_sequentially("rows_per_row_group")
    page.locator(".md-search-result__link[href*='recipe.html#']").first.wait_for()
