"""Held-out events with what was before them, and full ranking of the next item, against plain Python."""

import math
import random
from collections import Counter
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import rayrec
from jobs.benchmark import BenchmarkRequest
from jobs.benchmark import run as run_benchmark
from jobs.stored_model import stored_model
from rayrec.common.errors import UserError
from rayrec.common.progress import SilentProgress
from rayrec.config import EvaluateConfig, RankingConfig, TrainConfig
from rayrec.config.base import ModelConfig
from rayrec.inference.batch.pool import ScoringPool
from rayrec.inference.batch.scoring import measure_split, score_next_items
from rayrec.inference.folder.model_folder import ModelFolder
from rayrec.inference.scorer import Scorer
from rayrec.ingest.dataset import KNOWN_SPLIT, Dataset
from rayrec.ingest.next_items import NextItems, item_counts
from rayrec.inspection.runs import ComparedRun, compare_runs, group_by_recipe, next_item_figures
from rayrec.inspection.split_checks import baselines, ranking_notes, selection_notes
from rayrec.metrics.next_items import NextItemMetrics
from rayrec.models.neumf.config import NeuMFConfig
from rayrec.models.sasrec.config import SASRecConfig
from rayrec.pages.page import percent
from rayrec.pages.training import held_out_sections
from rayrec.sources.interactions.config import InteractionSourceConfig
from rayrec.training.run.folder import RunFolder
from tests.builders import make_recipe, users_and_items, write_dataset
from tests.model_folders import make_recommender_folder

USERS, ITEMS = 12, 14
"""Ids below these; 0 is unknown."""
NEW = range(101, 104)
"""Groups of people who are not in the vocabulary."""
ROWS = list[tuple[int, int, int, int]]
"""(label, user, item, group)"""
CONFIG = RankingConfig(k=(1, 3), metrics=("hr", "recall", "ndcg", "mrr", "map"))


def rows_of(seed: int, people: list[int], share: float, *, negatives: bool = False) -> ROWS:
    """A few rows of some people, together and in order of time, some with unknown items."""
    rng = random.Random(seed)
    rows: ROWS = []
    for person in people:
        user = person if person < USERS else 0
        for item in rng.sample(range(ITEMS), rng.randint(0, 7)) if rng.random() < share else []:
            rows.append((1, user, item, person))
            rows += [(0, user, rng.randrange(1, ITEMS), person)] * (2 if negatives else 0)
    return rows


PEOPLE = list(range(1, USERS))
SPLITS: dict[str, ROWS] = {
    "train": rows_of(1, PEOPLE, 0.8),
    "validation": rows_of(2, [*PEOPLE, *NEW], 0.5, negatives=True),
    "test": [*rows_of(3, [*PEOPLE, *NEW], 0.8, negatives=True), (1, 0, 4, 0)],
}
NO_CHOICES = [(0, user, 1 + user % (ITEMS - 1), user) for user in range(1, USERS, 3)]
KNOWN = sorted([*SPLITS["train"], *NO_CHOICES], key=lambda row: row[3])


def to_table(rows: ROWS) -> pa.Table:
    label, user, item, group = (np.array(column) for column in zip(*rows, strict=True))
    columns = {"item": item.astype(np.int32), "user": user.astype(np.int32), "label": label.astype(np.float32)}
    return pa.table({**columns, "group": group.astype(np.int64)})


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Dataset]:
    """By whether there is a split of known pairs."""
    schema = users_and_items(USERS, ITEMS, group="group", item_first=True)
    folder = tmp_path_factory.mktemp("events")
    return {
        known: write_dataset(
            folder / str(known),
            schema,
            {name: to_table(rows) for name, rows in ({**SPLITS, KNOWN_SPLIT: KNOWN} if known else SPLITS).items()},
            rows_per_row_group=4,
        )
        for known in (False, True)
    }


Event = tuple[int, int, tuple[int, ...], tuple[int, ...], bool]
"""Person, target, history, what is no choice, and whether the person is new."""


def expected_events(split: str, with_known: bool) -> list[Event]:
    """Every held-out event, by the definition."""
    found: list[Event] = []
    for person in dict.fromkeys(group for _, _, _, group in SPLITS[split] if group):
        names = ["train", "validation", "test"] if split == "test" else ["train", "validation"]
        chosen = [(name, i) for name in names for y, _, i, group in SPLITS[name] if y and i and group == person]
        others = tuple(i for _, _, i, group in NO_CHOICES if with_known and group == person)
        is_new = not any(name == "train" for name, _ in chosen)
        for place, (name, item) in enumerate(chosen):
            if name == split:
                before = tuple(i for _, i in chosen[:place])
                found.append((person if person < USERS else -person, item, before, others, is_new))
    return found


def events_of(items: NextItems, size: int) -> list[Event]:
    return [
        (int(person), int(target), tuple(history.tolist()), tuple(others.tolist()), bool(is_new))
        for batch in items.batches(size)
        for person, target, history, others, is_new in zip(
            batch.persons, batch.targets, batch.histories, batch.not_chosen, batch.is_new, strict=True
        )
    ]


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("with_known", [False, True])
def test_each_event_knows_what_its_person_had_before(
    datasets: dict[bool, Dataset], split: str, world_size: int, with_known: bool
) -> None:
    ranks = [NextItems.read(datasets[with_known], split, rank=r, world_size=world_size) for r in range(world_size)]
    for size in (1, 4, 100):
        found = [event for items in ranks for event in events_of(items, size)]
        # Those of a person stay in order.
        assert sorted(found, key=lambda event: event[0]) == sorted(
            expected_events(split, with_known), key=lambda event: event[0]
        )
        assert len({len(list(items.batches(size))) for items in ranks}) == 1, (
            "look-ups in sharded tables are collectives"
        )


# ---- metrics


def score(person: int, item: int, length: int, ties: bool) -> float:
    """A score of an item, of few values if `ties`."""
    value = random.Random(f"{person} {item} {length}").random()
    return float(round(3 * value)) if ties else float(np.float32(value))


def scores_of(batch, ties: bool) -> torch.Tensor:
    rows = [
        [score(int(person), item, len(history), ties) for item in range(1, ITEMS)]
        for person, history in zip(batch.persons, batch.histories, strict=True)
    ]
    return torch.tensor(rows).reshape(-1, ITEMS - 1)


def ranked(event: Event, ties: bool, order: str) -> tuple[list[int], list[int]]:
    """The items that the person did not have, as a rank counts them and as they are shown."""
    person, target, history, others, _ = event
    candidates = [i for i in range(1, ITEMS) if i == target or i not in {*history, *others}]
    scores = {i: score(person, i, len(history), ties) for i in candidates}
    last = {"pessimistic": lambda i: i == target, "optimistic": lambda i: i != target}[order]
    return sorted(candidates, key=lambda i: (-scores[i], last(i))), sorted(candidates, key=lambda i: (-scores[i], i))


def by_definition(events: list[Event], ties: bool, order: str) -> dict[str, float]:
    lists = [(event[1], *ranked(event, ties, order)) for event in events]
    found = {"rows": float(len(lists)), "groups": float(len(lists))}
    for k in CONFIG.k:
        hits = [(target, items.index(target) + 1) for target, items, _ in lists]
        hits = [rank for _, rank in hits if rank <= k]
        found[f"hr@{k}"] = found[f"recall@{k}"] = len(hits) / len(lists)
        found[f"mrr@{k}"] = found[f"map@{k}"] = sum(1 / rank for rank in hits) / len(lists)
        found[f"ndcg@{k}"] = sum(1 / math.log2(rank + 1) for rank in hits) / len(lists)
        shown = [item for *_, items in lists for item in items[:k]]
        found[f"coverage@{k}"] = len(set(shown)) / (ITEMS - 1)
        found[f"top_share@{k}"] = max(shown.count(item) for item in set(shown)) / len(lists)
    return found


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("order", ["pessimistic", "optimistic"])
@pytest.mark.parametrize(("world_size", "size"), [(1, 100), (1, 3), (3, 2)])
def test_metrics_are_those_of_the_definitions(
    datasets: dict[bool, Dataset], ties: bool, order: str, world_size: int, size: int
) -> None:
    accumulators = []
    for rank in range(world_size):
        items = NextItems.read(datasets[True], "test", rank=rank, world_size=world_size)
        accumulators.append(NextItemMetrics(CONFIG.model_copy(update={"ties": order}), items.num_items))
        for batch in items.batches(size):
            accumulators[-1].update(accumulators[-1].rank(scores_of(batch, ties), batch))
    measured, *others = accumulators
    for other in others:
        measured.add(other)
    assert measured.compute() == pytest.approx(by_definition(expected_events("test", True), ties, order))


def test_errors_take_the_events_of_a_person_for_one_piece_of_evidence(datasets: dict[bool, Dataset]) -> None:
    items = NextItems.read(datasets[False], "test")
    measured = NextItemMetrics(CONFIG, items.num_items)
    for batch in items.batches():
        measured.update(measured.rank(scores_of(batch, False), batch))
    events = expected_events("test", False)
    hits = [(event[0], float(ranked(event, False, "pessimistic")[0].index(event[1]) < 3)) for event in events]
    mean = sum(hit for _, hit in hits) / len(hits)
    persons = [list(group) for _, group in groupby(sorted(hits), key=lambda hit: hit[0])]
    squares = sum(sum(hit - mean for _, hit in of_person) ** 2 for of_person in persons)
    estimate = measured.estimates()["hr@3"]
    assert estimate is not None
    assert (estimate.value, estimate.error) == pytest.approx((mean, math.sqrt(squares) / len(hits)))


def test_slices_are_the_metrics_of_their_events(datasets: dict[bool, Dataset]) -> None:
    items = NextItems.read(datasets[False], "test")
    measured = NextItemMetrics(CONFIG, items.num_items)
    for batch in items.batches():
        measured.update(measured.rank(scores_of(batch, False), batch))
    events = expected_events("test", False)
    parts = {
        "new people": [event for event in events if event[4]],
        "0 earlier events": [event for event in events if not event[2]],
        "1-4 earlier events": [event for event in events if 1 <= len(event[2]) < 5],
        "5-19 earlier events": [event for event in events if 5 <= len(event[2]) < 20],
    }
    assert all(parts.values()), "a case that tests nothing"
    found = {part.name: part for part in measured.slices()}
    assert found.keys() == parts.keys()
    for name, some in parts.items():
        assert found[name].events == len(some)
        expected = by_definition(some, False, "pessimistic")
        for metric, estimate in found[name].metrics.items():
            assert estimate.value == pytest.approx(expected[metric]), (name, metric)


MODELS = {
    "users and items": NeuMFConfig(factors=4, mlp=(8, 4)),
    "histories": SASRecConfig(embedding_dim=8, blocks=1, length=3),
}


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_a_stored_model_is_measured_event_by_event(config: ModelConfig, tmp_path: Path) -> None:
    """By several workers, as if each event were scored alone; the page says how alike lists are."""
    make_recommender_folder(tmp_path / "model", users=USERS - 1, items=ITEMS - 1, config=config)
    model = ModelFolder.open(tmp_path / "model")
    data = write_dataset(
        tmp_path / "data", users_and_items(USERS, ITEMS, group="group"), {n: to_table(r) for n, r in SPLITS.items()}
    )
    ranking = CONFIG.model_copy(update={"candidates": "next"})
    found = measure_split(
        model, data, "test", EvaluateConfig(ranking=ranking), ScoringPool(workers=3), SilentProgress()
    )
    one_by_one, scorer = NextItemMetrics(ranking, ITEMS - 1), Scorer(model)
    for event in NextItems.read(data, "test").batches(1):
        (history,), catalogue = event.histories, np.arange(1, ITEMS)
        if isinstance(config, SASRecConfig):
            scores = scorer.person_vectors([history.astype(np.int64)]) @ scorer.item_vectors.T
        else:
            rows = {"user": np.full(ITEMS - 1, event.users[0]), "item": catalogue}
            scores = scorer.logits_encoded(pa.RecordBatch.from_pydict(rows)).reshape(1, -1)
        one_by_one.update(one_by_one.rank(torch.from_numpy(scores), event))
    expected = one_by_one.compute()
    assert found == pytest.approx(expected, abs=1e-6) and 0 < (expected["hr@3"] or 0) < 1

    figures = next_item_figures(model, data, "test", ranking, SilentProgress())
    assert figures["events"] == expected["rows"] and figures["metrics"]["hr@3"]["value"] == found["hr@3"]
    # What lists with fewer popular items cost: each of them measured as if its scores were the model's.
    popularity, by_penalty = (
        np.log1p(item_counts(data)),
        {row["popularity_penalty"]: row for row in figures["penalties"]},
    )
    assert sorted(by_penalty) == [0.0, 0.25, 0.5, 1.0]
    for penalty, row in by_penalty.items():
        metrics = NextItemMetrics(ranking, ITEMS - 1)
        for event in NextItems.read(data, "test").batches(1):
            logits = score_next_items(scorer, event, ITEMS - 1)
            metrics.update(metrics.rank(logits - torch.from_numpy(np.float32(penalty) * popularity), event))
        less = metrics.compute()
        assert {name: row[name] for name in ("hr@3", "ndcg@3", "coverage@3", "top_share@3")} == pytest.approx(
            {name: less[name] for name in ("hr@3", "ndcg@3", "coverage@3", "top_share@3")}, abs=1e-6
        )
    assert by_penalty[0.0]["hr@3"] == found["hr@3"]
    assert by_penalty[1.0] != by_penalty[0.0] | {"popularity_penalty": 1.0}
    (measured,) = held_out_sections(figures)
    assert f"One item is among the best 3 of {percent(found['top_share@3'] or 0)} of them" in measured.text


def test_runs_that_are_measured_by_next_items_are_not_compared(datasets: dict[bool, Dataset], tmp_path: Path) -> None:
    data, ranking = datasets[False], CONFIG.model_copy(update={"candidates": "next"})
    recipe = make_recipe(
        source=InteractionSourceConfig(), model=NeuMFConfig(), evaluate=EvaluateConfig(ranking=ranking)
    )
    folder = RunFolder.create(tmp_path / "run", recipe, data, data.schema)
    recipes = group_by_recipe([ComparedRun("run", folder, data)])
    with pytest.raises(UserError, match="what people choose next, and rows of one label cannot be compared"):
        compare_runs(recipes, "test", stored_model, SilentProgress())


def test_what_measures_rows_refuses_a_model_of_next_items(datasets: dict[bool, Dataset], tmp_path: Path) -> None:
    data = datasets[False].folder
    make_recommender_folder(tmp_path / "model", config=SASRecConfig(embedding_dim=8, length=6))
    with pytest.raises(UserError, match="scores the next items of people, and no rows"):
        rayrec.explain(tmp_path / "model", data=data, output=tmp_path / "out")
    with pytest.raises(UserError, match="scores the next items of people, and no rows"):
        run_benchmark(BenchmarkRequest(what="inference", recipe="sasrec", data=data), SilentProgress())


def test_popularity_is_a_baseline_and_what_is_not_ranked_is_said(datasets: dict[bool, Dataset]) -> None:
    recipe = make_recipe(evaluate=EvaluateConfig(ranking=CONFIG.model_copy(update={"candidates": "next"})))
    events = expected_events("test", False)
    counts = Counter(item for label, _, item, _ in SPLITS["train"] if label and item)
    hits = 0
    for _, target, history, _, _ in events:
        others = [item for item in range(1, ITEMS) if item not in {*history, target}]
        hits += sum(counts[item] >= counts[target] for item in others) < 3
    metrics = {"test": {"hr@3": 0.5, "groups": float(len(events)), "rows": float(len(events))}}
    assert baselines(recipe, datasets[False], metrics) == {"test": {"popularity": {"hr@3": hits / len(events)}}}
    chosen = sum(label for label, *_ in SPLITS["test"])
    assert ranking_notes(recipe, datasets[False], metrics) == [
        f"split 'test': {chosen - len(events)} of {chosen} events are not ranked, as train does not have their item"
    ]
    sampled = make_recipe(evaluate=EvaluateConfig(ranking=CONFIG))
    counted = {"test": {"rows": 400.0, "positives": 4.0, "groups": 4.0}}
    (note,) = ranking_notes(sampled, datasets[False], counted)
    assert "are ranks among 99 sampled negatives" in note


@pytest.mark.parametrize(
    ("train", "is_said"),
    [
        ({"epochs": 3}, True),
        ({"epochs": 1}, False),
        ({"epochs": 3, "checkpoint": {"keep_best": None}}, False),
        ({"epochs": 3, "evaluation_split": "test"}, False),
    ],
    ids=["the best of three", "no choice", "the last", "as the recipe says"],
)
def test_it_is_said_that_the_checkpoint_was_chosen_by_what_judges_it(
    train: dict[str, Any], is_said: bool, datasets: dict[bool, Dataset]
) -> None:
    """Where `validation` has no rows, `test` chooses in its place."""
    recipe, dataset = make_recipe(train=TrainConfig.model_validate(train)), datasets[False]
    splits = dataset.manifest.splits
    without = {name: split for name, split in splits.items() if name != "validation"}
    alone = replace(dataset, manifest=dataset.manifest.model_copy(update={"splits": without}))
    assert bool(selection_notes(recipe, alone)) == is_said
    validated = {**without, "validation": splits["test"]}
    both = replace(dataset, manifest=dataset.manifest.model_copy(update={"splits": validated}))
    assert not selection_notes(recipe, both)


def test_nothing_held_out_has_no_metrics() -> None:
    measured = NextItemMetrics(CONFIG, ITEMS - 1).compute()
    assert (measured.pop("rows"), measured.pop("groups")) == (0, 0)
    assert measured.keys() >= {"hr@1", "coverage@3", "top_share@3"}
    assert set(measured.values()) == {None}


def test_a_model_that_has_diverged_is_named(datasets: dict[bool, Dataset]) -> None:
    items = NextItems.read(datasets[False], "test")
    measured = NextItemMetrics(CONFIG, items.num_items)
    for batch in items.batches():
        measured.update(measured.rank(torch.full((len(batch), items.num_items), math.nan), batch))
    with pytest.raises(UserError, match="scores are infinite or NaN: the model has diverged"):
        measured.compute()
