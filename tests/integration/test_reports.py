"""Reports and comparisons of real runs, and all their pages in a headless Chromium that has no network."""

import itertools
import json
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

import rayrec
from jobs.command import load_command
from jobs.command.runner import run_command
from jobs.tune import BEST_FILE
from rayrec.common.errors import ConfigError, UserError
from rayrec.pages.page import write_page
from rayrec.pages.runs import sweep_page
from rayrec.recipes import read_recipe
from tests.builders import make_dataset
from tests.training_runs import Case, recipe, run_cases
from tests.unit.test_tune_report import SPACE, _outcomes
from tune.results import sweep_figures
from tune.sweep_folder import Sweep

RUNS = ("good-1", "good-2", "good-3", "bad-1", "bad-2")
KINDS = ("dataset", "run", "model", "explanation", "comparison", "sweep")
MOST_BYTES = 5_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, runs of two recipes on it that differ in their learning rate, and each run's seed in its name."""
    base = tmp_path_factory.mktemp("reports")
    dataset = make_dataset(
        base / "data",
        {"train": 6_000, "validation": 3_000, "test": 500},
        numeric=2,
        categorical=3,
        multi_hot=1,
        group=True,
    )
    cases = [
        Case(
            base / name,
            recipe(
                seed=int(name[-1]),
                epochs=2,
                log_every_steps=10,
                evaluations_per_epoch=2,
                dense_optimizer={"kind": "adam", "lr": 0.01 if name.startswith("good") else 1e-5},
                embedding_optimizer={"kind": "sgd", "lr": 0.5 if name.startswith("good") else 1e-4},
            ),
        )
        for name in RUNS
    ]
    run_cases(1, dataset.folder, cases)
    return base


def figures(report: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((report / "report.json").read_text())
    return content


@pytest.fixture(scope="module")
def pages(folder: Path) -> dict[str, Path]:
    """A folder with a page of each kind."""
    made = {kind: folder / f"page-{kind}" for kind in KINDS}
    data, runs = folder / "data", [folder / name for name in RUNS]
    rayrec.report(data, made["dataset"], against=data, expect=("drifted_features == 0",), progress=False)
    rayrec.report(runs[0], made["run"], expect=("auc > 0.5", "test.log_loss < 0.1"), progress=False)
    rayrec.export(runs[0], folder / "model", progress=False)
    rayrec.report(folder / "model", made["model"], data=data, progress=False)
    features = {"feature": ["I1", "C2", "M1"], "group": ["numbers=I1,I2"]}
    rayrec.explain(folder / "model", data, made["explanation"], permutations=1, progress=False, **features)
    rayrec.compare([str(run) for run in runs], made["comparison"], progress=False)
    sweep = Sweep(read_recipe("dlrm-criteo-debug"), SPACE, folder, "auc", 30, "optuna", "asha")
    content = sweep_figures(sweep, _outcomes(30), [], f"# {BEST_FILE}\n")
    write_page(made["sweep"], sweep_page(content), content)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_pages_draw_without_a_network(pages: dict[str, Path], browser: Browser, kind: str) -> None:
    """On a large screen and on a small one, in light and dark, between which an open page changes."""
    file = pages[kind] / "report.html"
    assert file.stat().st_size < MOST_BYTES
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light", offline=True)
    page = context.new_page()
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.on("console", lambda message: failures.append(message.text))
    page.goto(file.as_uri())
    charts = page.locator(".chart")
    assert charts.count() > 2
    for number in range(charts.count()):
        charts.nth(number).scroll_into_view_if_needed()
        charts.nth(number).locator(".main-svg").first.wait_for()
    for scheme, width in itertools.product(("light", "dark"), (1280, 400)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        background = brightness(page, "document.body", "backgroundColor")
        text = brightness(page, "document.querySelector('.xtick text')", "fill")
        assert (background > 200, text > 150) == ((True, False) if scheme == "light" else (False, True))
        widest = page.evaluate("Math.max(...[...document.querySelectorAll('figure')].map(f => f.clientWidth))")
        assert widest <= width
    assert failures == []
    context.close()


@pytest.mark.parametrize("kind", ["dataset", "run"])
def test_a_printed_page_has_all_charts(pages: dict[str, Path], browser: Browser, kind: str) -> None:
    """Also those that nobody has scrolled to, no wider than the paper, and light."""
    context = browser.new_context(viewport={"width": 1280, "height": 400}, color_scheme="dark", offline=True)
    page = context.new_page()
    page.goto((pages[kind] / "report.html").as_uri())
    page.evaluate(
        """addEventListener("beforeprint", () => {
            const charts = [...document.querySelectorAll(".chart")];
            window.printed = charts.map(c => c.querySelector(".main-svg")?.getBoundingClientRect().width ?? null);
            window.ink = getComputedStyle(document.querySelector(".xtick text")).fill;
        })"""
    )
    assert page.evaluate("document.querySelectorAll('.chart:not(:has(.main-svg))').length"), "none is drawn too early"
    page.pdf()
    printed = page.evaluate("window.printed")
    assert None not in printed and max(printed) <= 700
    assert sum(map(int, re.findall(r"\d+", page.evaluate("window.ink"))[:3])) / 3 < 150
    context.close()


def brightness(page: Page, element: str, color: str) -> float:
    """The mean of red, green and blue of an element's color, from 0 to 255."""
    found = page.evaluate(f"getComputedStyle({element}).{color}")
    return sum(map(int, re.findall(r"\d+", found)[:3])) / 3


def test_the_report_of_a_run(folder: Path, pages: dict[str, Path]) -> None:
    found = figures(pages["run"])
    held_out, exact = found["held_out"], found["metrics"]["validation"]
    assert held_out["rows_scored"] == 3_000 and held_out["has_groups"]
    for name in ("auc", "log_loss", "normalized_entropy", "calibration"):
        assert held_out["metrics"][name]["value"] == pytest.approx(exact[name], rel=1e-4), name
    by: dict[str, int] = {}
    for one in held_out["slices"]:
        by[one["by"]] = by.get(one["by"], 0) + one["rows"]
    assert by == dict.fromkeys(["score", "I1", "I2", "C1", "C2", "C3", "M1"], 3_000)
    assert [check["is_met"] for check in found["expectations"]] == [True, False]
    seconds = found["resources"]["seconds"]
    assert seconds["steps"] > 0 and found["resources"]["peak_memory_bytes"] > 10**8
    assert found["plan"]["world_size"] == 1
    assert len(found["curves"]["evaluations"]["validation"]["auc"]) == 4
    assert rayrec.evaluate(folder / RUNS[0], folder / "data", split="validation", progress=False).metrics["validation"][
        "auc"
    ] == pytest.approx(held_out["metrics"]["auc"]["value"], rel=1e-6)


def test_a_report_of_a_model_has_the_scores_of_its_run(pages: dict[str, Path]) -> None:
    model, run = figures(pages["model"]), figures(pages["run"])
    assert model["held_out"] == run["held_out"]
    assert [table["rows"] for table in model["tables"]] == [11, 101, 1_009, 23]


def test_a_better_recipe_is_better_and_a_seed_is_not(folder: Path, pages: dict[str, Path], tmp_path: Path) -> None:
    found = figures(pages["comparison"])
    assert [run["recipe"] for run in found["runs"]] == ["good-1"] * 3 + ["bad-1"] * 2
    assert {d["metric"]: d["verdict"] for d in found["differences"]} == {"auc": "worse", "log_loss": "worse"}
    assert set(found["config"]) == {"train.dense_optimizer.lr", "train.embedding_optimizer.lr"}
    seeds = rayrec.compare([str(folder / "good-1"), str(folder / "good-2")], tmp_path / "seeds", progress=False)
    assert seeds.details["differences"] == []
    assert seeds.details["seed_deviation"]["auc"]["degrees_of_freedom"] == 1
    pair = [str(folder / "good-1"), str(folder / "bad-1")]
    of_test = rayrec.compare(pair, tmp_path / "test", split="test", progress=False)
    assert (of_test.details["split"], of_test.rows, seeds.details["split"]) == ("test", 500, "validation")
    with pytest.raises(UserError, match="no rows in split 'other'; it has train, validation, test"):
        rayrec.compare(pair, tmp_path / "other", split="other", progress=False)
    alone = rayrec.compare(pair, tmp_path / "alone", progress=False)
    assert {d["verdict"] for d in alone.details["differences"]} == {"no difference shown"}
    assert "train one again with another train.seed" in alone.details["differences"][0]["why"]


def run_in_shell(*values: Any, capfd: pytest.CaptureFixture[str], **options: Any) -> tuple[int, str, str]:
    (name,) = values
    code = run_command(load_command(name), options)
    out, err = capfd.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("expect", "code", "line"),
    [
        (["auc >= 0.5"], 0, "pass: auc >= 0.5 (it is "),
        (["auc >= 0.5", "validation.auc < 0.5"], 1, "fail: validation.auc < 0.5 (it is "),
        (["auc"], 2, "error: --expect 'auc': write it as METRIC OPERATOR NUMBER"),
    ],
)
def test_what_is_expected_decides_the_exit_code(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], expect: Sequence[str], code: int, line: str
) -> None:
    output = tmp_path / "report"
    found, _, err = run_in_shell(
        "report", capfd=capfd, source=str(folder / RUNS[0]), output=str(output), expect=tuple(expect)
    )
    assert found == code
    assert any(text.startswith(line) for text in err.splitlines()), err
    assert (output / "report.html").exists() == (code < 2)


def test_a_run_without_a_checkpoint_shows_what_there_is(folder: Path, tmp_path: Path) -> None:
    unfinished = tmp_path / "unfinished"
    shutil.copytree(folder / RUNS[0], unfinished, ignore=shutil.ignore_patterns("checkpoints", "metrics.json"))
    rayrec.report(unfinished, tmp_path / "report", progress=False)
    found = figures(tmp_path / "report")
    assert (found["held_out"], found["metrics"]) == (None, {})
    assert found["curves"]["train"]["loss"]


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        ("good-1", {"against": "data"}, ConfigError, "--against: compares datasets; use `rayrec compare` for runs"),
        ("good-1", {"data": "data"}, ConfigError, "--data: only a model scores other rows than its own"),
    ],
)
def test_mistakes_get_a_line(
    folder: Path, tmp_path: Path, source: str, options: dict[str, str], error: type[Exception], message: str
) -> None:
    given = {name: folder / value for name, value in options.items()}
    with pytest.raises(error, match=re.escape(message)):
        rayrec.report(folder / source, tmp_path / "report", progress=False, **given)
    assert not (tmp_path / "report").exists()


@pytest.mark.minutes
def test_a_million_rows_take_less_than_a_minute(tmp_path: Path) -> None:
    dataset = make_dataset(
        tmp_path / "data", {"train": 900_000, "test": 100_000}, numeric=13, categorical=26,
        rows_per_part=200_000, rows_per_row_group=32_768,
    )  # fmt: skip
    started = time.perf_counter()
    rayrec.report(dataset.folder, tmp_path / "report", progress=False)
    assert time.perf_counter() - started < 60
    assert (tmp_path / "report" / "report.html").stat().st_size < MOST_BYTES
    found = figures(tmp_path / "report")
    assert found["splits"]["train"]["label_rate"] == pytest.approx(dataset.split("train").positives / 900_000)
