"""Histories that models read event by event: what encoders compute, that the scorer does the same, and errors."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from rayrec.common.errors import ConfigError
from rayrec.config.sequences import ReadsSequences
from rayrec.features.schema import MultiHotFeature, Schema
from rayrec.features.transforms import encode_multi_hot
from rayrec.inference.scorer import CheckpointModel, Scorer
from rayrec.models.common.batch import Batch
from rayrec.models.common.initialization import initialize_dense
from rayrec.models.common.ranking import RankingModel
from rayrec.models.common.sequences import DeepInterest, EventTransformer
from rayrec.models.dcnv2.config import DCNv2Config
from rayrec.models.dlrm.config import DLRMConfig
from rayrec.models.registry import build_model
from rayrec.models.wide_deep.config import WideDeepConfig
from tests.builders import history_source, make_recipe, make_schema, with_history
from tests.naive_models import random_batch

LISTS = make_schema(2, 3, 3, cardinalities=(11, 101, 23), shared={"M1": "C1", "M3": "C3"})
SCHEMA = with_history(with_history(LISTS, "seen", {"M1": "C1"}), "read", {"M3": "C3"})
"""Histories of one list each; M2 is an ordinary list."""
BOTH = with_history(LISTS, "seen", {"M1": "C1", "M3": "C3"})
"""One history of two lists."""
DIN, MEAN = {"kind": "din", "hidden": [5, 4]}, {"kind": "mean"}
TRANSFORMER = {"kind": "transformer", "blocks": 2, "heads": 1}
WIDTHS = {"C1": 3, "C3": 7, "M2": 5}
MODELS: dict[str, ReadsSequences] = {
    "dot": DLRMConfig(embedding_dim=6, bottom_mlp=(9, 6), top_mlp=(7, 5)),
    "cat": DLRMConfig(embedding_dim=6, bottom_mlp=(9, 4), top_mlp=(7, 5), interaction="cat", embedding_dims=WIDTHS),
    "cross": DCNv2Config(embedding_dim=6, bottom_mlp=(9, 4), cross_layers=2, cross_rank=5, top_mlp=(7, 5)),
    "wide_deep": WideDeepConfig(embedding_dim=6, embedding_dims=WIDTHS, mlp=(9, 5)),
    "deep": WideDeepConfig(embedding_dim=6, mlp=(9, 5), part="deep"),
}


def reading(name: str, sequences: dict[str, Any]) -> ReadsSequences:
    config = MODELS[name]
    return config.model_validate({**config.model_dump(), "sequences": sequences})


def lively(config: ReadsSequences, schema: Schema) -> RankingModel:
    """A model with every weight at random."""
    model = build_model(config, schema, seed=3).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5, generator=generator)
        for table in model.tables:
            model.embeddings.embedding_bags[table.name].weight[:, table.dim :] = 0
    return model


def aligned(batch: Batch, schema: Schema) -> Batch:
    """The batch with as many ids in the rows of M3 as in those of M1, and rows of no event and of the most."""
    bags = {f.name: batch.sparse[f.name].to_dense() for f in schema.categorical}
    bags["M1"][0] = bags["M1"][0][:0]
    if batch.size > 1:
        bags["M1"][1] = torch.tensor([1, 5, 2, 2], dtype=torch.int32)
    size = schema.categorical[-1].cardinality
    bags["M3"] = [(bag * 7 + 1) % size for bag in bags["M1"]]
    values = [id_ for feature in schema.categorical for id_ in bags[feature.name]]
    lengths = torch.tensor([len(bag) for bags_of in (bags[f.name] for f in schema.categorical) for bag in bags_of])
    sparse = type(batch.sparse)(
        [f.name for f in schema.categorical], torch.cat(values), lengths=lengths.int(), stride=batch.size
    )
    return Batch(batch.dense, sparse, batch.label, batch.weight)


# ---- the vectors of a row, one after the other


def naive_logits(model: RankingModel, histories: dict[str, tuple[str, ...]], batch: Batch) -> Tensor:
    """What the network makes of vectors that are computed row by row, by the name of each history and its lists."""
    first = {lists[0]: name for name, lists in histories.items()}
    later = {one for lists in histories.values() for one in lists[1:]}
    rows = []
    for row in range(batch.size):
        vectors = []
        for output in model.pooled:
            if output.feature in later and not output.table.name.endswith("_wide"):
                continue
            if output.feature in first and not output.table.name.endswith("_wide"):
                vectors.append(_vector(model, first[output.feature], histories, batch, row))
                continue
            found = _embeddings(model, output.feature, output.table.name, batch, row)
            vectors.append(found.mean(0) if output.pooling == "mean" and len(found) else found.sum(0))
        rows.append(torch.cat(vectors))
    # The network alone, without its first module.
    network, sequences = model.dense_network, model.dense_network.sequences
    network.sequences = torch.nn.Identity()
    logits: Tensor = network(batch.dense, torch.stack(rows))
    network.sequences = sequences
    return logits


def _embeddings(model: RankingModel, feature: str, table: str, batch: Batch, row: int) -> Tensor:
    stated = next(one for one in model.tables if one.name == table)
    ids = batch.sparse[feature].to_dense()[row].long()
    return model.embeddings.embedding_bags[table].weight[ids, : stated.dim]


def _vector(model: RankingModel, name: str, histories: dict[str, tuple[str, ...]], batch: Batch, row: int) -> Tensor:
    owners = {f.name: f.table or f.name for f in model.schema.categorical}
    tables = [owners[one] for one in histories[name]]
    read = [_embeddings(model, one, table, batch, row) for one, table in zip(histories[name], tables, strict=True)]
    # The newest event stands first.
    events = torch.cat(read, dim=1).flip(0)
    target = torch.cat([_embeddings(model, table, table, batch, row)[0] for table in tables])
    module = model.dense_network.sequences.encoders[name]
    if isinstance(module.encoder, DeepInterest):
        vector = torch.zeros_like(target)
        for event in events:
            hidden = torch.cat([event, target, event * target])
            hidden = module.encoder.others(module.encoder.first(hidden).relu())
            vector = vector + module.encoder.weight(hidden) * event
    elif isinstance(module.encoder, EventTransformer):
        x = torch.stack([target, *events])
        x = x + module.encoder.positions.weight[: len(x)]
        for block in module.encoder.blocks:
            query, key, value = block.inputs(block.attention_norm(x)).chunk(3, dim=1)
            x = x + block.output((query @ key.T / x.shape[1] ** 0.5).softmax(1) @ value)
            x = x + block.hidden_output(block.hidden(block.hidden_norm(x)))
        vector = module.encoder.norm(x[0])
    else:
        vector = events.mean(0) if len(events) else torch.zeros_like(target)
    return vector if module.projection is None else module.projection(vector)


KINDS = {
    "mean": {"seen": MEAN, "read": DIN},
    "din": {"seen": DIN, "read": TRANSFORMER},
    "transformer": {"seen": {**TRANSFORMER, "blocks": 1}, "read": MEAN},
}


@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_equals_a_computation_row_by_row(name: str, kind: str, rows: int) -> None:
    model = lively(reading(name, KINDS[kind]), SCHEMA)
    batch = random_batch(SCHEMA, rows)
    expected = naive_logits(model, {"seen": ("M1",), "read": ("M3",)}, batch)
    torch.testing.assert_close(model(batch), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [MEAN, DIN, TRANSFORMER])
@pytest.mark.parametrize("name", MODELS)
def test_several_lists_of_a_history_are_one_event_each(name: str, kind: dict[str, Any]) -> None:
    model = lively(reading(name, {"seen": kind}), BOTH)
    batch = aligned(random_batch(BOTH, 17), BOTH)
    expected = naive_logits(model, {"seen": ("M1", "M3")}, batch)
    torch.testing.assert_close(model(batch), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 23])
def test_lists_are_cut_out_and_not_filled_up(rows: int) -> None:
    """On a CPU the network of an event sees real events alone; what it finds is what it would with places of 0."""
    encoder = DeepInterest(6, (5, 4), torch.device("cpu"))
    numbers = torch.randint(0, 5, (rows, 1))
    events = (torch.randn(rows, 4, 6) * (torch.arange(4) < numbers).unsqueeze(2)).requires_grad_()
    target = torch.randn(rows, 6, requires_grad=True)
    inputs = (events, target, *encoder.parameters())
    grad = torch.randn(rows, 6)
    found = encoder(events, numbers, target)
    compiled = torch.compile(encoder, backend="eager", fullgraph=True)(events, numbers, target)
    torch.testing.assert_close(found, compiled)
    is_there = (torch.arange(4) < numbers).unsqueeze(2)
    pairs = zip(torch.autograd.grad(found, inputs, grad), torch.autograd.grad(compiled, inputs, grad), strict=True)
    for one, other in pairs:
        # What the empty places would be told goes nowhere.
        both = (one * is_there, other * is_there) if one.shape == events.shape else (one, other)
        torch.testing.assert_close(*both, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [MEAN, DIN, TRANSFORMER])
def test_under_autocast(kind: dict[str, Any]) -> None:
    model = lively(reading("deep", {"seen": kind}), SCHEMA)
    batch = random_batch(SCHEMA, 9)
    expected = model(batch)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected, rtol=0.1, atol=0.2)
    logits.sum().backward()
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in model.dense_network.parameters())


def test_rows_without_events() -> None:
    """Also in a batch without any event the gradients are numbers."""
    for kind in (MEAN, DIN, TRANSFORMER):
        model = lively(reading("deep", {"seen": kind, "read": kind}), SCHEMA)
        batch = random_batch(SCHEMA, 3)
        empty = [batch.sparse[f.name].lengths() * (f.name not in ("M1", "M3")) for f in SCHEMA.categorical]
        kept = [batch.sparse[f.name].values() for f in SCHEMA.categorical if f.name not in ("M1", "M3")]
        names = [f.name for f in SCHEMA.categorical]
        batch.sparse = type(batch.sparse)(names, torch.cat(kept), lengths=torch.cat(empty), stride=3)
        expected = naive_logits(model, {"seen": ("M1",), "read": ("M3",)}, batch)
        logits = model(batch)
        torch.testing.assert_close(logits, expected)
        logits.sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("seed", range(4))
def test_interest_starts_as_the_sum_of_the_events(seed: int) -> None:
    interest = DeepInterest(8, (32,), torch.device("cpu"))
    initialize_dense(interest, seed)
    generator = torch.Generator().manual_seed(seed)
    events, own = (0.02 * torch.randn(*shape, generator=generator) for shape in ((50, 6, 8), (50, 8)))
    vectors, sums = interest(events, torch.full((50, 1), 6), own), events.sum(1)
    assert torch.cosine_similarity(vectors, sums).min() > 0.99
    # With a weight near 0 the training of some seeds learned nothing from the events.
    assert 0.3 < vectors.norm() / sums.norm() < 2


def test_lists_of_a_history_have_an_id_for_each_event() -> None:
    """An event without a value has id 0 in a list beside others, so that it stands where it does in these."""
    assert (BOTH.event_lists, SCHEMA.event_lists) == ({"M1", "M3"}, set())
    feature = BOTH.categorical[3].model_copy(update={"keep": "last"})
    assert isinstance(feature, MultiHotFeature)
    column = pa.array([[1, 2, None, 4, None], [None], None], pa.list_(pa.int64()))
    found = [encode_multi_hot(feature, column, None, keeps_missing=keeps).to_pylist() for keeps in (True, False)]
    assert found == [[[2, 0, 4, 0], [0], []], [[1, 2, 4], [], []]]


# ---- the scorer


@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("name", MODELS)
def test_scores_as_the_model(name: str, rows: int, tmp_path: Path) -> None:
    config = reading(name, KINDS["din"])
    model, batch = lively(config, SCHEMA), random_batch(SCHEMA, rows)
    dcp.save({"model": model.state_dict()}, checkpoint_id=tmp_path / "checkpoint")
    recipe = make_recipe(model=config, source=history_source(SCHEMA))
    stored = CheckpointModel(tmp_path / "checkpoint", recipe, SCHEMA, files=tmp_path / "tables")
    columns: dict[str, pa.Array] = {f.name: pa.array(batch.dense[:, i].numpy()) for i, f in enumerate(SCHEMA.dense)}
    for feature in SCHEMA.categorical:
        ids = batch.sparse[feature.name]
        columns[feature.name] = pa.array(ids.values().numpy())
        if isinstance(feature, MultiHotFeature):
            columns[feature.name] = pa.ListArray.from_arrays(ids.offsets().int().numpy(), columns[feature.name])
    encoded = pa.RecordBatch.from_pydict(columns)
    scorer = Scorer(stored)
    np.testing.assert_allclose(scorer.logits_encoded(encoded), model(batch).detach(), rtol=1e-5, atol=1e-5)
    lone = np.concatenate([scorer.logits_encoded(encoded.slice(row, 1)) for row in range(rows)])
    np.testing.assert_allclose(lone, scorer.logits_encoded(encoded), rtol=1e-5, atol=1e-5)


# ---- what does not fit


@pytest.mark.parametrize(
    ("schema", "name", "sequences", "message"),
    [
        (LISTS, "dot", {"seen": MEAN}, "model.sequences.seen: no history 'seen'; the dataset has none"),
        (SCHEMA, "dot", {"sen": MEAN}, "model.sequences.sen: no history 'sen'; did you mean 'seen'?"),
        (with_history(LISTS, "seen", {}), "dot", {"seen": MEAN}, "seen: the history has no list; take"),
        (with_history(LISTS, "seen", {"M2": "C9"}), "cross", {"seen": DIN}, "seen: 'din' compares 'M2' with the row's"),
        (SCHEMA, "dot", {"seen": {**TRANSFORMER, "heads": 4}}, "seen.heads: 4 do not divide the 6 columns of an event"),
        (SCHEMA, "wide", {"seen": DIN}, "model.sequences.seen: the wide part alone pools all lists; remove the key"),
    ],
)
def test_what_does_not_fit(schema: Schema, name: str, sequences: dict[str, Any], message: str) -> None:
    config = WideDeepConfig(part="wide").model_copy(update={"sequences": sequences}) if name == "wide" else None
    with pytest.raises(ConfigError) as error:
        build_model(config or reading(name, sequences), schema, device="meta")
    assert message in str(error.value) and "\n" not in str(error.value)
