"""SASRec and the loss of next items, against plain PyTorch."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rayrec.inference.folder.model_folder import ModelFolder, new_model_folder
from rayrec.inference.scorer import Scorer
from rayrec.models.common import next_item
from rayrec.models.common.next_item import ScoresNextItems, next_item_loss
from rayrec.models.registry import build_model
from rayrec.models.sasrec.config import SASRecConfig
from rayrec.sources.interactions.config import InteractionSourceConfig
from tests.builders import make_recipe, users_and_items

ITEMS, WIDTH = 40, 8


def sasrec(**options: object) -> SASRecConfig:
    return SASRecConfig.model_validate({"embedding_dim": WIDTH, "length": 6, "heads": 2, **options})


def network(**options: object) -> ScoresNextItems:
    config = sasrec(**options)
    model = build_model(config, users_and_items(7, ITEMS + 1))
    assert [table.name for table in model.tables] == ["item"] and model.tables[0].shape == (ITEMS + 1, WIDTH)
    assert isinstance(model.dense_network, ScoresNextItems)
    return model.dense_network.eval()


def test_a_later_event_changes_nothing_before_it() -> None:
    events = torch.randn(3, 6, WIDTH)
    changed = events.clone()
    changed[:, 4] = torch.randn(3, WIDTH)
    before, after = (network().position_vectors(x) for x in (events, changed))
    torch.testing.assert_close(before[:, :4], after[:, :4], rtol=0, atol=0)
    assert (before[:, 4:] - after[:, 4:]).abs().amin(2).min() > 0


def test_a_history_is_the_same_alone_and_among_longer_ones() -> None:
    events, lengths = torch.randn(4, 6, WIDTH), torch.tensor([6, 1, 3, 5])
    together = network().person_vectors(events, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = network().person_vectors(events[row : row + 1, :length], lengths[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone)


def test_the_order_of_events_counts() -> None:
    torch.manual_seed(0)
    events, lengths = torch.randn(1, 6, WIDTH), torch.tensor([6])
    swapped = events[:, [1, 0, 2, 3, 4, 5]]
    of_people = network(blocks=1)
    torch.nn.init.normal_(of_people.get_parameter("positions.weight"))  # which begin small
    vectors = [of_people.person_vectors(x, lengths) for x in (events, swapped)]
    assert (vectors[0] - vectors[1]).abs().max() > 1e-3


def draw(positions: int = 30) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    persons, items = (torch.randn(n, WIDTH, generator=generator) for n in (positions, ITEMS))
    targets = torch.randint(1, ITEMS + 1, (positions,), generator=generator)
    weights = (torch.rand(positions, generator=generator) > 0.3).float()
    return persons.requires_grad_(), items.requires_grad_(), targets, weights


def gradients(loss: Tensor, *inputs: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, inputs))


def test_with_all_items_as_candidates_it_is_the_softmax_over_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(next_item._LOGITS_AT_ONCE, "cpu", 7 * ITEMS)  # the last piece is a smaller one
    persons, items, targets, weights = draw()
    every = torch.arange(1, ITEMS + 1)
    loss = next_item_loss(persons, items[targets - 1], items, targets, every, weights)
    plain = (F.cross_entropy(persons @ items.T, targets - 1, reduction="none") * weights).sum()
    torch.testing.assert_close(loss, plain)
    for found, expected in zip(gradients(loss, persons, items), gradients(plain, persons, items), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_drawn_candidates_are_corrected_and_the_next_item_itself_does_not_count() -> None:
    persons, items, targets, weights = draw()
    drawn = torch.tensor([3, 9, 9, 17, 25, 3, 40])
    log_counts = torch.randn(len(drawn))
    loss = next_item_loss(persons, items[targets - 1], items[drawn - 1], targets, drawn, weights, log_counts)
    plain = torch.zeros(())
    for person, target, weight in zip(persons, targets.tolist(), weights, strict=True):
        others = [c for c, item in enumerate(drawn.tolist()) if item != target]
        logits = torch.stack([person @ items[drawn[c] - 1] - log_counts[c] for c in others])
        own = person @ items[target - 1]
        plain = plain + weight * (torch.cat([own.view(1), logits]).logsumexp(0) - own)
    torch.testing.assert_close(loss, plain)
    for found, expected in zip(gradients(loss, persons, items), gradients(plain, persons, items), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_mean_over_draws_is_the_sum_over_all_items() -> None:
    persons, items, targets, _ = draw(1)
    chances = torch.linspace(1, 3, ITEMS) / torch.linspace(1, 3, ITEMS).sum()
    drawn = torch.multinomial(chances, 200_000, replacement=True, generator=torch.Generator().manual_seed(5)) + 1
    log_counts = (chances * len(drawn)).log()[drawn - 1]
    one = torch.ones(1)
    found = next_item_loss(persons, items[targets - 1], items[drawn - 1], targets, drawn, one, log_counts)
    every = torch.arange(1, ITEMS + 1)
    exact = next_item_loss(persons, items[targets - 1], items, targets, every, one)
    torch.testing.assert_close(found, exact, rtol=0.01, atol=0)


def test_windows_predict_every_event_but_the_first() -> None:
    of_people, table = network(), torch.randn(ITEMS + 1, WIDTH)
    ids = torch.tensor([[5, 2, 9, 1], [7, 3, 7, 7]])  # the second has two events; padding repeats one
    weights = torch.tensor([[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    every = torch.arange(1, ITEMS + 1)
    loss = of_people(table[ids], ids, weights, table[1:], every, None)
    plain = torch.zeros(())
    for history, following in (([5], 2), ([5, 2], 9), ([5, 2, 9], 1), ([7], 3)):
        vector = of_people.person_vectors(table[torch.tensor([history])], torch.tensor([len(history)]))
        plain = plain + F.cross_entropy(vector @ table[1:].T, torch.tensor([following - 1]))
    torch.testing.assert_close(loss, plain)


def test_a_scorer_gives_the_vectors_of_people_and_of_all_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayrec.inference.scorer._CHUNK_EVENTS", 12)  # two people at once
    model = build_model(sasrec(), users_and_items(7, ITEMS + 1), seed=4).eval()
    table = model.embeddings.embedding_bags["item"].weight.detach()
    with new_model_folder(
        tmp_path / "model",
        schema=model.schema,
        tables=model.tables,
        recipe=make_recipe(name="next", model=sasrec(), source=InteractionSourceConfig()),
        metrics={},
        card="",
        vocabularies_in=tmp_path,
        dense=model.dense_network.state_dict(),
        fill_table=lambda _, weights: weights.copy_(table),
    ):
        pass
    scorer = Scorer(ModelFolder.open(tmp_path / "model"))
    assert scorer.scores_next_items
    np.testing.assert_array_equal(scorer.item_vectors, table[1:].numpy())
    histories = [np.array(history) for history in ([3], [40, 2, 2, 7], [9, 8, 7, 6, 5, 4, 3, 2, 1])]
    found = scorer.person_vectors(histories)
    of_people = model.dense_network
    assert isinstance(of_people, ScoresNextItems)
    for vector, history in zip(found, histories, strict=True):
        newest = torch.from_numpy(history[-6:])
        expected = of_people.person_vectors(table[newest].unsqueeze(0), torch.tensor([len(newest)]))
        np.testing.assert_allclose(vector, expected[0].detach().numpy(), rtol=1e-5, atol=1e-6)
    assert scorer.person_vectors([]).shape == (0, WIDTH)
