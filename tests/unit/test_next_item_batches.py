"""Epochs of windows: every event is told once, whatever the ranks; batches do not grow with the longest history."""

from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import rayrec
from rayrec.common.errors import ConfigError, UserError
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.interactions import Positives
from rayrec.ingest.next_item_batches import Candidates, NextItemLoader, Windows, events_before
from rayrec.ingest.order import BatchOrder, RowGroup
from rayrec.models.common.batch import NextItemBatch
from tests.builders import users_and_items

ITEMS, LENGTH, BATCH = 5_000, 6, 64
SCHEMA = users_and_items(200, ITEMS + 1)


def events_of(lengths: list[int]) -> Positives:
    """People with so many events; items are numbered through, so that each event is told apart."""
    users = torch.arange(1, len(lengths) + 1).repeat_interleave(torch.tensor(lengths)).int()
    return Positives(users, torch.arange(1, len(users) + 1).int())


PEOPLE = [1, 2, 3, LENGTH, LENGTH + 1, LENGTH + 2, 2 * LENGTH + 1, 40] * 12
POSITIVES = events_of(PEOPLE)
WINDOWS = Windows.of(POSITIVES, LENGTH)


def batches(
    windows: Windows = WINDOWS, *, drawn: int | None = None, rank: int = 0, world_size: int = 1, **order: int
) -> list[NextItemBatch]:
    options = {"seed": 3, "epoch": 0, "global_batch_size": BATCH, **order}
    rows = BatchOrder(
        row_groups=[RowGroup.of_samples(len(windows.items))],
        drop_last=True,
        rank=rank,
        world_size=world_size,
        **options,
    )
    candidates = Candidates.of(windows.items, ITEMS + 1, drawn)
    return list(NextItemLoader(windows, candidates, SCHEMA, rows))


def told(batch: NextItemBatch) -> list[tuple[int, int]]:
    """Return the pairs of an event and the next one that a batch tells."""
    ids = batch.event_ids
    weight = batch.weight[: ids.numel()].view(ids.shape)
    assert not weight[:, -1].any() and not batch.weight[ids.numel() :].any()
    return [(int(ids[w, e]), int(ids[w, e + 1])) for w, e in weight.nonzero().tolist()]


def test_every_event_but_a_first_one_is_told_once_from_the_one_before() -> None:
    pairs = Counter(pair for batch in batches() for pair in told(batch))
    users = POSITIVES.users.tolist()
    expected = {(place, place + 1) for place in range(1, len(users)) if users[place - 1] == users[place]}
    assert pairs == Counter(expected)
    assert all(batch.event_ids.shape[1] <= LENGTH + 1 for batch in batches())


@pytest.mark.parametrize("people", [[30], [2, 90, 3], PEOPLE], ids=["one", "mostly one", "many"])
@pytest.mark.parametrize("size", [2, 7])
def test_no_batch_is_empty_where_it_is_smaller_than_a_history(people: list[int], size: int) -> None:
    """Each event is told from as many others as in large batches."""
    length, positives = 40, events_of(people)
    found = batches(Windows.of(positives, length, batches=len(positives.users) // size), global_batch_size=size)
    numbers = [len(told(batch)) for batch in found]
    assert len(found) == len(positives.users) // size and min(numbers) > 0 and sum(numbers) == sum(people) - len(people)
    newest = sum(people[: people.index(max(people)) + 1])  # the last event of the longest history
    (row,) = [row for batch in found for row in batch.event_ids.tolist() if (newest - 1, newest) in told(batch)
              and newest in row]  # fmt: skip
    assert len(set(row)) == min(length + 1, max(people))


def test_the_newest_window_of_a_person_is_the_longest() -> None:
    windows = Windows.of(events_of([2 * LENGTH + 3]), LENGTH)
    assert windows.starts.tolist() == [LENGTH + 2, 2, 0] and windows.lengths.tolist() == [LENGTH + 1, LENGTH + 1, 3]


def test_a_new_day_is_told_from_all_that_came_before() -> None:
    """Each new event once, a person's first ever aside; earlier ones are read, those of others are left out."""
    numbers = [(9, 2), (0, 3), (4, 1), (2, 0), (1, 2 * LENGTH + 3), (0, 1)] * 6
    days: tuple[list[tuple[int, int]], ...] = ([], [])
    expected: Counter[tuple[int, int]] = Counter()
    # Users of the second day come in another order than their numbers.
    for user, of_days in reversed([*enumerate(numbers, 1)]):
        history = [100 * user + event for event in range(sum(of_days))]
        for day, part in enumerate((history[: of_days[0]], history[of_days[0] :])):
            days[day].extend((user, item) for item in part)
        expected.update([*pairwise(history)][max(0, of_days[0] - 1) :])
    before, new = (Positives(*torch.tensor(pairs).int().T) for pairs in (sorted(days[0]), days[1]))
    windows = Windows.of(new, LENGTH, before)
    made = batches(windows)
    assert Counter(pair for batch in made for pair in told(batch)) == expected
    # As much of a long past as fits.
    (row,) = [row for batch in made for row in batch.event_ids.tolist() if 110 in row]
    assert row[-LENGTH - 1 :] == [104, 105, 106, 107, 108, 109, 110] and len(row) == LENGTH + 1


@pytest.mark.parametrize("people", [1, 300])
def test_a_day_of_people_who_came_once_teaches_nothing(people: int) -> None:
    new, before = events_of([1] * people), Positives(*torch.tensor([[900, 7], [901, 8]]).int().T)
    made = batches(Windows.of(new, LENGTH, before, batches=people), global_batch_size=1)
    assert len(made) >= people and not any(told(batch) for batch in made)
    with pytest.raises(UserError, match="nobody has two events"):
        Windows.of(new, LENGTH)


def test_ranks_share_each_batch_and_its_candidates() -> None:
    alone = batches(drawn=10)
    shares = [batches(drawn=10, rank=rank, world_size=3) for rank in range(3)]
    for whole, *of_ranks in zip(alone, *shares, strict=True):
        assert sorted(told(whole)) == sorted(pair for share in of_ranks for pair in told(share))
        assert len({share.size for share in of_ranks}) == 1  # as collectives need
        for share in of_ranks:
            assert share.candidate_ids.equal(whole.candidate_ids)
            items = share.sparse["item"].values()
            assert items.equal(torch.cat([share.event_ids.view(-1), share.candidate_ids]))


def test_the_order_follows_from_seed_and_epoch_and_a_resumed_epoch_goes_on() -> None:
    first = batches(drawn=10)
    again, rest = batches(drawn=10), batches(drawn=10, start_batch=4)
    for whole, repeated in zip(first, again, strict=True):
        assert whole.event_ids.equal(repeated.event_ids) and whole.candidate_ids.equal(repeated.candidate_ids)
    for whole, resumed in zip(first[4:], rest, strict=True):
        assert whole.event_ids.equal(resumed.event_ids) and whole.candidate_ids.equal(resumed.candidate_ids)
    for other in (batches(drawn=10, epoch=1), batches(drawn=10, seed=4)):
        assert [told(batch) for batch in first] != [told(batch) for batch in other]
        assert not first[0].candidate_ids.equal(other[0].candidate_ids)


def test_little_is_padding_and_a_long_history_is_no_long_batch() -> None:
    longest = Windows.of(events_of([*PEOPLE, 3_000]), LENGTH)
    for windows in (WINDOWS, longest):
        found = batches(windows)
        places = sum(batch.event_ids[:, 1:].numel() for batch in found)
        assert places < 1.15 * sum(len(told(batch)) for batch in found)
        assert max(batch.event_ids.numel() for batch in found) < 3 * BATCH


def test_a_drawn_item_is_as_frequent_as_its_events_and_says_so() -> None:
    items = torch.cat([torch.full((900,), 7), torch.full((100,), 9)])
    found, log_counts = Candidates.of(items, 11, wanted=9).of_step(key=1, batch=5, device=torch.device("cpu"))
    assert log_counts is not None and set(found.tolist()) <= {7, 9}
    expected = torch.where(found == 7, 9 * 0.9, 9 * 0.1).log()
    torch.testing.assert_close(log_counts, expected, rtol=1e-5, atol=1e-6)
    everything, log_counts = Candidates.of(items, 11, wanted=None).of_step(key=1, batch=0, device=torch.device("cpu"))
    assert everything.tolist() == list(range(1, 11)) and log_counts is None


def test_what_cannot_be_learnt_from_is_said() -> None:
    users, items = torch.tensor([1, 2, 1]), torch.tensor([3, 4, 5])
    with pytest.raises(
        ConfigError,
        match=r"^model\.length: the rows of a user are not together .*; preprocess with a source of interactions$",
    ):
        Windows.of(Positives(users, items), LENGTH)
    with pytest.raises(UserError, match="nobody has two events"):
        Windows.of(events_of([1, 1]), LENGTH)


def test_what_came_before_a_day_is_in_order_of_time(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    history: dict[str, dict[str, None]] = {}
    over = {"preprocess.split": {"kind": "time", "test": 0.1}, "source.timestamp": "time"}
    parent = None
    for day in range(3):
        users, items = (rng.integers(0, size, 300) for size in (30, 40))
        pairs = [*zip(users.tolist(), items.tolist(), strict=True)]
        rows = [f"u{user},i{item},{1000 * day + number}" for number, (user, item) in enumerate(pairs)]
        (tmp_path / f"{day}.csv").write_text("\n".join(["user,item,time", *rows]) + "\n")
        folder = tmp_path / f"day-{day}"
        rayrec.preprocess(
            "sasrec", tmp_path / f"{day}.csv", folder, set=over, extend=parent, on="process", progress=False
        )
        parent = folder
        if day < 2:
            for user, item in pairs:
                history.setdefault(f"u{user}", {}).setdefault(f"i{item}")
    dataset = Dataset.open(folder)
    values = {}
    for feature in dataset.schema.categorical:
        content = pq.read_table(folder / "vocabulary" / f"{feature.name}.parquet").to_pydict()
        values[feature.name] = dict(zip(content["id"], content["value"], strict=True))
    own: dict[str, list[str]] = defaultdict(list)
    found: dict[str, list[str]] = defaultdict(list)
    for events, of in ((Positives.read(dataset, "train", torch.device("cpu"), in_memory=True), own),
                      (events_before(dataset, torch.device("cpu")), found)):  # fmt: skip
        for user, item in zip(events.users.tolist(), events.items.tolist(), strict=True):
            of[values["user"][user]].append(values["item"][item])
    expected = {user: [item for item in had if item not in own[user]] for user, had in history.items()}
    assert found == {user: had for user, had in expected.items() if had}
    assert sum(map(len, found.values())) > 300
