"""What a sweep leaves: the table, the page, how much each parameter mattered."""

import csv
import json
import random
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from rayrec.common.errors import UserError
from rayrec.pages.page import Chart, html_of
from rayrec.pages.runs import sweep_page
from rayrec.recipes import read_recipe
from tests.builders import make_dataset
from tests.unit.test_pages import Parsed
from tune.results import _comparable_parameters, sweep_figures, write_csv
from tune.search import study_of
from tune.space import Scalar, parse_space
from tune.sweep_folder import Sweep, SweepSettings, TrialOutcome, TrialRecord, owned_folder, read_outcomes

SPACE = parse_space(
    "s.yaml",
    """
train.dense_optimizer.lr: {loguniform: [1.0e-4, 0.1]}
train.schedule.warmup_steps: {integer: [0, 200]}
train.dense_optimizer.kind: {choice: [adam, sgd]}
train.dense_optimizer.momentum: {uniform: [0, 0.9], when: {train.dense_optimizer.kind: sgd}}
""",
)


def _settings(folder: Path, metric: str = "auc") -> SweepSettings:
    recipe = read_recipe("dlrm-criteo-debug")
    return SweepSettings(recipe, SPACE, folder, metric, 30, "optuna", "asha", folder, lambda *_: None)


def _outcome(number: int, assignment: dict[str, Scalar], curve: tuple[float, ...]) -> TrialOutcome:
    state, message = ("finished", None) if curve else ("refused", "the loss is <not> finite")
    value = max(curve) if curve else None
    folder = Path(f"trials/{number}")
    return TrialOutcome(str(number), number, state, message, assignment, value, curve, 1.5, folder, folder / "run")


def _outcomes(count: int) -> list[TrialOutcome]:
    """The learning rate decides the value, the warm-up does nothing; the last trial has no evaluation."""
    chance = random.Random(0)
    outcomes = []
    for number in range(count):
        kind = chance.choice(["adam", "sgd"])
        lr = 10 ** chance.uniform(-4, -1)
        assignment: dict[str, Scalar] = {
            "train.dense_optimizer.lr": lr,
            "train.schedule.warmup_steps": chance.randrange(201),
            "train.dense_optimizer.kind": kind,
        }
        if kind == "sgd":
            assignment["train.dense_optimizer.momentum"] = chance.uniform(0, 0.9)
        outcomes.append(_outcome(number, assignment, (0.6 + 10 * lr / 3, 0.6 + 10 * lr / 2)[: 1 + number % 2]))
    outcomes.append(_outcome(count, outcomes[0].assignment, ()))
    return sorted(outcomes, key=lambda o: -(o.value or 0))


@pytest.mark.parametrize("trials", [1, 3, 30])
def test_the_page_shows_every_trial(trials: int, tmp_path: Path) -> None:
    outcomes = _outcomes(trials)
    confirmed = [
        {"candidate": "trial 7", "auc": 0.75, "gain": 0.01, "standard_error": 0.002},
        {"candidate": "recipe", "auc": 0.74, "gain": None, "standard_error": None},
    ]
    figures = sweep_figures(_settings(tmp_path), outcomes, confirmed, "name: tuned\ntrain: {epochs: 2}\n")
    page = sweep_page(json.loads(json.dumps(figures)))
    parsed = Parsed(html_of(page))
    assert parsed.open == []
    assert parsed.seen["tr"] == 1 + len(outcomes) + 1 + len(confirmed)
    charts = {block.title: block for section in page.sections for block in section.blocks if isinstance(block, Chart)}
    assert ("Importance of parameters" in charts) == (trials == 30)
    assert "name: tuned" in parsed.text and "the loss is <not> finite" in parsed.text and "trial 7" in parsed.text
    for name in SPACE.names[:3]:
        assert name in parsed.text
    assert f"{outcomes[0].value:.3f}" in parsed.text
    coordinates = charts["Parallel coordinates"]
    # A line for each evaluated trial, the best one drawn last, and a labelled axis for each parameter.
    assert len(coordinates.traces) == trials
    assert coordinates.traces[-1]["y"][0] == (1.0 if trials > 1 else 0.5)
    assert [text.split("<br>")[-1] for text in coordinates.layout["xaxis"]["ticktext"]][:4] == [
        "auc", "lr", "warmup_steps", "kind"
    ]  # fmt: skip
    assert all(height is None or 0 <= height <= 1 for trace in coordinates.traces for height in trace["y"])
    assert coordinates.min_width >= 100 * len(coordinates.layout["xaxis"]["tickvals"])


def test_a_sweep_without_an_evaluation_has_no_page(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no trial has been evaluated yet"):
        sweep_figures(_settings(tmp_path), [_outcome(0, {}, ())], [], None)


def test_a_sweep_is_read_from_its_folder(tmp_path: Path) -> None:
    """What the page needs, as the settings of the sweep that ran had it."""
    settings = _settings(make_dataset(tmp_path / "data", 200).folder)
    settings = replace(settings, folder=tmp_path / "sweep")
    with owned_folder(settings, resume=False):
        settings.trials_folder.mkdir()
    opened = Sweep.open(settings.folder)
    assert opened.space.parameters == SPACE.parameters
    assert opened.recipe.resolve() == settings.recipe.resolve()
    outcomes = _outcomes(30)
    read, ran = (sweep_figures(sweep, outcomes, [], None) for sweep in (opened, settings))
    assert read == ran
    with pytest.raises(UserError, match="not a sweep"):
        Sweep.open(tmp_path)


def test_what_decides_is_the_most_important(tmp_path: Path) -> None:
    settings, outcomes = _settings(tmp_path), _outcomes(30)
    names = _comparable_parameters(settings, outcomes)
    assert set(names) == {"train.dense_optimizer.lr", "train.schedule.warmup_steps", "train.dense_optimizer.kind"}
    shares = optuna.importance.get_param_importances(study_of(settings, outcomes), params=names)
    assert sum(shares.values()) == pytest.approx(1)
    assert next(iter(shares)) == "train.dense_optimizer.lr"
    assert shares["train.dense_optimizer.lr"] > 0.6
    assert _comparable_parameters(settings, _outcomes(3)) == []


def test_the_table_has_a_row_a_trial(tmp_path: Path) -> None:
    outcomes = _outcomes(3)
    write_csv(tmp_path / "trials.csv", outcomes, "auc")
    with (tmp_path / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["auc"]) for row in rows[:3]] == sorted((o.value for o in outcomes[:3] if o.value), reverse=True)
    assert (rows[3]["auc"], rows[3]["state"], rows[3]["message"]) == ("", "refused", "the loss is <not> finite")
    assert {row["train.dense_optimizer.momentum"] for row, o in zip(rows, outcomes, strict=True)
            if o.assignment["train.dense_optimizer.kind"] == "adam"} <= {""}  # fmt: skip


@pytest.mark.parametrize(("metric", "expected"), [("auc", ["b", "a", "c"]), ("log_loss", ["a", "b", "c"])])
def test_outcomes_are_read_best_first(metric: str, expected: list[str], tmp_path: Path) -> None:
    """From what trials wrote; an evaluation in which the metric is undefined does not count."""
    histories = {
        "a": '{"event": "evaluate", "step": 5, "seconds": 1.0, "auc": 0.6, "log_loss": 0.4}\n',
        "b": '{"event": "evaluate", "step": 5, "seconds": 1.0, "auc": 0.7, "log_loss": 0.5}\n'
        '{"event": "train", "step": 9, "loss": 0.1}\n'
        '{"event": "evaluate", "step": 9, "seconds": 2.5, "auc": null, "log_loss": 0.6}\n',
        "c": "",
    }
    for index, (trial, history) in enumerate(histories.items()):
        folder = tmp_path / "trials" / trial
        (folder / "run").mkdir(parents=True)
        (folder / "run" / "history.jsonl").write_text(history)
        TrialRecord(trial, {"train.epochs": 1}, started=10.0 - index).save(folder)
    outcomes = read_outcomes(_settings(tmp_path, metric))
    assert [outcome.trial for outcome in outcomes] == expected
    assert [outcome.number for outcome in sorted(outcomes, key=lambda o: o.trial)] == [2, 1, 0]
    by_trial = {outcome.trial: outcome for outcome in outcomes}
    assert by_trial["b"].curve == ((0.7,) if metric == "auc" else (0.5, 0.6))
    assert by_trial["c"].value is None


@pytest.mark.parametrize(("run", "value"), [("run", 0.9), ("run-b-5", 0.8), ("run-b-9", None)])
def test_what_another_trial_reached_does_not_count(run: str, value: float | None, tmp_path: Path) -> None:
    """Under population based training a run goes on from the donor's history with other values."""
    folder = tmp_path / "trials" / "a"
    (folder / run).mkdir(parents=True)
    lines = (f'{{"event": "evaluate", "step": {s}, "seconds": 1.0, "auc": {auc}}}\n' for s, auc in ((5, 0.9), (9, 0.8)))
    (folder / run / "history.jsonl").write_text("".join(lines))
    TrialRecord("a", {"train.epochs": 1}, state="finished", run=run).save(folder)
    (outcome,) = read_outcomes(_settings(tmp_path))
    assert (outcome.value, outcome.curve) == (value, (0.9, 0.8))


def test_a_trial_that_went_wrong_later_is_never_the_best(tmp_path: Path) -> None:
    """Its recipe could not be trained again."""
    for state, auc in (("refused", 0.9), ("stopped", 0.6)):
        folder = tmp_path / "trials" / state
        (folder / "run").mkdir(parents=True)
        (folder / "run" / "history.jsonl").write_text(
            f'{{"event": "evaluate", "step": 5, "seconds": 1.0, "auc": {auc}}}\n'
        )
        TrialRecord(state, {"train.epochs": 1}, state=state).save(folder)
    best, other = read_outcomes(_settings(tmp_path))
    assert (best.state, best.value) == ("stopped", 0.6)
    assert (other.value, other.curve) == (None, (0.9,))
