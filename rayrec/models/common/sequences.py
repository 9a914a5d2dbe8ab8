"""Histories that a model reads event by event: each becomes one vector beside the pooled embeddings.

Shapes: B rows, L places for events, of which the first ones are filled with the newest events; W width of an event, the
embeddings of a history's lists side by side; E events of all rows.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rayrec.common.errors import ConfigError, did_you_mean
from rayrec.config.sequences import DINSequence, MeanSequence, SequenceConfig, TransformerSequence
from rayrec.features.raw_columns import History
from rayrec.features.schema import CategoricalFeature, MultiHotFeature, Schema
from rayrec.models.common.embedding_tables import EmbeddingTable, PooledFeature, can_name_module
from rayrec.models.common.initialization import copy_normal
from rayrec.models.common.layers import Linear, hidden_layers
from rayrec.models.common.transformer import Block, LayerNorm, Positions


@dataclass(frozen=True)
class ReadHistory:
    """A history that a model reads event by event."""

    name: str
    config: SequenceConfig
    lists: tuple[str, ...]
    """The features of its lists, of which each has one value an event."""
    targets: tuple[str, ...]
    """For each list the feature of the row's own value in the same table; none where the config needs none."""
    length: int
    """The most events of a row."""


def read_histories(configs: Mapping[str, SequenceConfig], schema: Schema) -> tuple[ReadHistory, ...]:
    """Return the histories of `model.sequences`. Raises ConfigError where the features of `schema` do not suit it."""
    return tuple(_read_history(name, config, schema) for name, config in configs.items())


def lengths_of(histories: Iterable[ReadHistory]) -> dict[str, int]:
    """Return the lists that are not pooled, and their most values, as `pooled_features` takes them."""
    return {name: history.length for history in histories for name in history.lists}


def _read_history(name: str, config: SequenceConfig, schema: Schema) -> ReadHistory:
    where, known = f"model.sequences.{name}", {history.name: history for history in schema.histories}
    if name not in known:
        hint = did_you_mean(name, known, "the dataset has") if known else "the dataset has none"
        raise ConfigError(f"{where}: no history '{name}'; {hint}")
    lists = _lists(known[name], schema)
    if not lists:
        raise ConfigError(f"{where}: the history has no list; take {{op: last, column: ...}} of it, or remove this key")
    if not can_name_module(name):
        raise ConfigError(f"{where}: a module cannot have this name; rename the history")
    length = lists[0].hotness
    for feature in lists:
        if feature.hotness != length:
            raise ConfigError(
                f"{where}: '{lists[0].name}' has up to {length} values and '{feature.name}' {feature.hotness}; "
                "give all lists of the history one `length`"
            )
        if feature.weights is not None:
            raise ConfigError(f"{where}: the values of '{feature.name}' have weights; leave them out")
    needs_target = not isinstance(config, MeanSequence)
    targets = tuple(_target(feature, where, config, schema) for feature in lists) if needs_target else ()
    return ReadHistory(name, config, tuple(feature.name for feature in lists), targets, length)


def _lists(history: History, schema: Schema) -> list[MultiHotFeature]:
    columns = {taken.column for taken in history.takes if taken.op == "last"}
    multi_hot = (feature for feature in schema.features if isinstance(feature, MultiHotFeature))
    return [feature for feature in multi_hot if feature.columns[0] in columns]


def _target(feature: MultiHotFeature, where: str, config: SequenceConfig, schema: Schema) -> str:
    table = feature.table or feature.name
    for other in schema.categorical:
        if type(other) is CategoricalFeature and (other.table or other.name) == table:
            return other.name
    raise ConfigError(
        f"{where}: '{config.kind}' compares '{feature.name}' with the row's own value, but no categorical feature "
        f"shares its table; add one of the column that the list is taken of, or use kind: mean"
    )


@dataclass(frozen=True)
class _Vector:
    """What a dense network takes as one vector: the columns of a pooled feature, or the vector of a history."""

    width: int
    part: str
    piece: int
    """Its columns, as a number in those that the columns are split into; of a history the first of them."""
    history: str | None = None
    lists: tuple[int, ...] = ()
    """The columns of a history's lists, each with their number of events in the piece behind it."""
    targets: tuple[int, ...] = ()


class HistoryEncoders(nn.Module):
    """The first module of a dense network: the events of each history become one vector; the other columns stay."""

    def __init__(
        self,
        histories: Sequence[ReadHistory],
        pooled: Sequence[PooledFeature],
        device: torch.device,
        *,
        width: int | None = None,
    ) -> None:
        """`width`: that of each history's vector, to which a linear layer brings it; None leaves it as its events."""
        super().__init__()
        # The columns are split once: a backward pass of many slices would fill the whole width as often.
        self._split: list[int] = []
        pieces: list[int] = []
        """The first piece of each output."""
        tables: dict[str, tuple[int, EmbeddingTable]] = {}
        for output in pooled:
            pieces.append(len(self._split))
            # Of the tables of a feature the first one has its embeddings.
            tables.setdefault(output.feature, (len(self._split), output.table))
            self._split += [output.width - 1, 1] if output.pooling == "sequence" else [output.width]
        owners = {history.lists[0]: history for history in histories}
        self.encoders = nn.ModuleDict()
        self._vectors: list[_Vector] = []
        """What is returned, in order: a history stands where its first list does."""
        for output, piece in zip(pooled, pieces, strict=True):
            if output.pooling != "sequence":
                self._vectors.append(_Vector(output.width, output.table.part, piece))
            elif (history := owners.get(output.feature)) is not None:
                own = sum(tables[name][1].dim for name in history.lists)
                lists, targets = (tuple(tables[name][0] for name in of) for of in (history.lists, history.targets))
                self._vectors.append(
                    _Vector(width or own, output.table.part, piece, history.name, lists=lists, targets=targets)
                )
                self.encoders[history.name] = _HistoryEncoder(history, own, width or own, device)

    @property
    def widths(self) -> list[int]:
        """Return the widths of the vectors side by side."""
        return [vector.width for vector in self._vectors]

    @property
    def computed_columns(self) -> int:
        """Return how many numbers of a row are computed on the way to the vectors."""
        encoders = (module for module in self.encoders.values() if isinstance(module, _HistoryEncoder))
        return sum(module.length * module.encoder.columns_of_event for module in encoders)

    def width_of(self, part: str) -> int:
        """Return the sum of the widths of the vectors of a part of the model (`RankingModel.parts`)."""
        return sum(vector.width for vector in self._vectors if vector.part == part)

    def forward(self, pooled: Tensor) -> Tensor:
        """Return (B, sum of `widths`) of (B, sum of the outputs' widths)."""
        if not self.encoders:
            return pooled
        pieces = pooled.split(self._split, dim=1)
        vectors = []
        for vector in self._vectors:
            if vector.history is None:
                vectors.append(pieces[vector.piece])
                continue
            # Rows may bring lists of their own, some shorter: where a list has no value, its embeddings are 0.
            numbers = reduce(torch.maximum, (pieces[place + 1] for place in vector.lists)).detach().long()
            lists, targets = ([pieces[place] for place in places] for places in (vector.lists, vector.targets))
            vectors.append(self.encoders[vector.history](lists, numbers, targets).to(pooled.dtype))
        return torch.cat(vectors, dim=1)


class _HistoryEncoder(nn.Module):
    """The events of one history as one vector."""

    def __init__(self, history: ReadHistory, own: int, width: int, device: torch.device) -> None:
        super().__init__()
        self.length = history.length
        self.encoder = _encoder(history, own, device)
        self.projection = Linear(own, width, device=device) if width != own else None

    def forward(self, lists: list[Tensor], numbers: Tensor, targets: list[Tensor]) -> Tensor:
        """Return (B, width) of the lists (B, L * W'), the numbers of events (B, 1) and the rows' own values (B, W')."""
        blocks = [columns.unflatten(1, (self.length, -1)) for columns in lists]
        events = blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=2)
        target = None if not targets else targets[0] if len(targets) == 1 else torch.cat(targets, dim=1)
        vector: Tensor = self.encoder(events, numbers, target)
        return vector if self.projection is None else self.projection(vector)


class _Encoder(nn.Module):
    """Makes one vector of a row's events."""

    columns_of_event = 0
    """How many numbers are computed for each event."""


def _encoder(history: ReadHistory, width: int, device: torch.device) -> _Encoder:
    where = f"model.sequences.{history.name}"
    match config := history.config:
        case MeanSequence():
            return MeanOfEvents()
        case DINSequence():
            return DeepInterest(width, config.hidden, device)
        case TransformerSequence():
            if width % config.heads:
                raise ConfigError(f"{where}.heads: {config.heads} do not divide the {width} columns of an event")
            return EventTransformer(history.length, width, config, device)


class MeanOfEvents(_Encoder):
    """The mean of the events; 0 without any."""

    def forward(self, events: Tensor, numbers: Tensor, target: Tensor | None) -> Tensor:
        """Return (B, W) of events (B, L, W), which are 0 where there is none, and their numbers (B, 1)."""
        return events.sum(1) / numbers.clamp(min=1)


class DeepInterest(_Encoder):
    """The activation unit of the Deep Interest Network (Zhou et al. 2018, arXiv:1706.06978, section 4.3).

    A network weighs each event e for the row's own value t. The sum of the weighted events is no mean, so its length
    says how strong the interest is (equation 3, without softmax); without events it is 0. The network takes e, t and
    e * t; e - t, which the paper has, too, is a sum of these in its first layer.
    """

    def __init__(self, width: int, hidden: Sequence[int], device: torch.device) -> None:
        super().__init__()
        self.columns_of_event = 3 * width + sum(hidden)
        self.first = Linear(3 * width, hidden[0], device=device)
        self.others = hidden_layers(hidden[0], hidden[1:], device, linear=_LinearOfEvents)
        self.weight = _EventWeight(hidden[-1], device)

    def forward(self, events: Tensor, numbers: Tensor, target: Tensor) -> Tensor:
        """Return (B, W) of events (B, L, W), their numbers (B, 1), and the rows' own values (B, W)."""
        is_there = torch.arange(events.shape[1], device=events.device) < numbers
        if events.device.type == "cpu" and not torch.compiler.is_compiling():
            starts = nn.functional.pad(numbers.squeeze(1).cumsum(0), (1, 0))
            places = is_there.nonzero(as_tuple=True)
            hidden, found = _FirstLayer.apply(events, target, self.first.weight, self.first.bias, places, starts)
            weights = self.weight(self.others(hidden)).to(events.dtype)
            return cast(Tensor, _WeightedSums.apply(weights.squeeze(1), found, places[0], starts))
        # To leave the empty places out, a GPU would have to be asked how many there are.
        own = target.unsqueeze(1).expand_as(events)
        hidden = self.first(torch.cat([events, own, events * own], dim=2), relu=True)
        weights = self.weight(self.others(hidden)).to(events.dtype)
        return (weights * is_there.unsqueeze(2) * events).sum(1)


class _LinearOfEvents(Linear):
    """A linear layer of as many rows as there are events: oneDNN would compile a kernel for each of their numbers, and
    keep a thousand.
    """

    def forward(self, input: Tensor, relu: bool = False) -> Tensor:
        """Map (..., in_features) to (..., out_features)."""
        output = nn.functional.linear(input, self.weight, self.bias)
        return output.relu() if relu else output


class _EventWeight(_LinearOfEvents):
    """The layer that returns the weight of an event. It starts near 1, so that training begins with the sum of the
    events: from a random bias, which may be near 0, the network may never find out that they matter.
    """

    def __init__(self, in_features: int, device: torch.device) -> None:
        super().__init__(in_features, 1, device=device)

    def initialize(self, generator: torch.Generator) -> None:
        """Draw weights as in other layers; the bias is 1."""
        copy_normal(self.weight, math.sqrt(2 / (self.in_features + 1)), generator)
        nn.init.ones_(self.bias)


class EventTransformer(_Encoder):
    """Blocks over the row's own value and its events, the newest first; returned is what becomes of the own value.

    Without events this attends to itself alone.
    """

    def __init__(self, length: int, width: int, config: TransformerSequence, device: torch.device) -> None:
        super().__init__()
        # Queries, keys, values and what is attended to; between blocks also the wide layer.
        self.columns_of_event = 4 * width + 9 * width * (config.blocks - 1)
        self.positions = Positions(length + 1, width, device)
        self.blocks = nn.ModuleList(Block(width, config.heads, 0.0, device) for _ in range(config.blocks))
        self.norm = LayerNorm(width, device=device)

    def forward(self, events: Tensor, numbers: Tensor, target: Tensor) -> Tensor:
        """Return (B, W) of events (B, L, W), their numbers (B, 1), and the rows' own values (B, W)."""
        x_BLW = self.positions(torch.cat([target.unsqueeze(1), events], dim=1))
        is_there_BL = torch.arange(x_BLW.shape[1], device=events.device) <= numbers
        *blocks, last = self.blocks
        for block in blocks:
            x_BLW = block(x_BLW, is_there_BL=is_there_BL)
        vector: Tensor = self.norm(last(x_BLW, is_there_BL=is_there_BL, first=1).squeeze(1))
        return vector


class _FirstLayer(torch.autograd.Function):
    """The first layer of `DeepInterest`, with its ReLU, for the events that there are, and these events.

    Made of single operators, this takes twice the time. What a row's own value adds is computed once a row.
    """

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(
        ctx: Any,
        events: Tensor,
        target: Tensor,
        weight: Tensor,
        bias: Tensor,
        places: tuple[Tensor, Tensor],
        starts: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """(B, L, W), (B, W), (H, 3 W), (H,), rows and places (E,) of events, (B + 1,) -> (E, H), (E, W)."""
        rows, width = places[0], target.shape[1]
        of_events, of_target, of_products = weight.split(width, dim=1)
        weights = torch.cat([of_events, of_products], dim=1)
        found, own = events[places], target.index_select(0, rows)
        inputs = torch.cat([found, found * own], dim=1)
        hidden = torch.addmm(bias, target, of_target.T).index_select(0, rows).addmm_(inputs, weights.T).relu_()
        ctx.save_for_backward(target, weights, of_target, inputs, own, hidden, *places, starts)
        ctx.shape = events.shape
        return hidden, found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_found: Tensor) -> tuple[Tensor | None, ...]:
        target, weights, of_target, inputs, own, hidden, rows, places, starts = ctx.saved_tensors
        width = target.shape[1]
        grad = torch.ops.aten.threshold_backward(grad, hidden, 0)
        grad_rows = _sums(grad, starts)
        of_events, of_products = (grad.T @ inputs).split(width, dim=1)
        grad_weight = torch.cat([of_events, grad_rows.T @ target, of_products], dim=1)
        grad_inputs, grad_products = (grad @ weights).split(width, dim=1)
        grad_target = torch.addmm(_sums(grad_products * inputs[:, :width], starts), grad_rows, of_target)
        grad_events = grad.new_zeros(ctx.shape)
        grad_events[rows, places] = torch.addcmul(grad_found + grad_inputs, grad_products, own)
        return grad_events, grad_target, grad_weight, grad_rows.sum(0), None, None


class _WeightedSums(torch.autograd.Function):
    """The sums (B, W) of each row's events (E, W), times their weights (E,)."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, events: Tensor, rows: Tensor, starts: Tensor) -> Tensor:
        ctx.save_for_backward(weights, events, rows)
        return _sums(events, starts, weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        weights, events, rows = ctx.saved_tensors
        of_events = grad.index_select(0, rows)
        return (of_events * events).sum(1), of_events.mul_(weights.unsqueeze(1)), None, None


def _sums(vectors: Tensor, starts: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return (B, W) sums of the vectors (E, W), perhaps times weights, from each start up to the next one."""
    places = torch.arange(len(vectors))
    return nn.functional.embedding_bag(
        places, vectors, starts, mode="sum", per_sample_weights=weights, include_last_offset=True
    )
