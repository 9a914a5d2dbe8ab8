"""What a recipe's histories take of events, and the rule of each of their columns that no rule names."""

from collections.abc import Mapping, Sequence

from rayrec.config.preprocess import seconds_of
from rayrec.config.table import (
    FitFill,
    FitQuantile,
    FitStandardize,
    HistoryConfig,
    ListRule,
    NumericRule,
    RateConfig,
    TableSourceConfig,
    Take,
    TakeLast,
    TakeRate,
    TimeColumn,
)
from rayrec.config.transforms import Log
from rayrec.features.events import listed, summed
from rayrec.features.raw_columns import SECOND, History, RawColumn, Taken


def plan_history(name: str, config: HistoryConfig, time: str) -> History:
    """Return the look-up of a history; `time`: the column of the rows' times."""
    return History(
        name=name,
        keys=config.by,
        time=time,
        delay=_microseconds(config.delay) or 0,
        window=_microseconds(config.window),
        known=_microseconds(config.known),
        takes=tuple(_taken(name, take) for take in config.take),
        where=config.where,
    )


def plan_rate_in_time(name: str, config: RateConfig, time: str) -> History:
    """Return the look-up of a label rate over earlier rows; its one column has its name."""
    taken = Taken(column=name, op="rate", smoothing=config.smoothing)
    return History(name=name, keys=config.keys, time=time, delay=_microseconds(config.delay) or 0, takes=(taken,))


def events_of_rate(config: RateConfig) -> HistoryConfig:
    """Return how the events of a label rate over earlier rows are read."""
    return HistoryConfig(by=config.keys, take=(TakeRate(smoothing=config.smoothing),))


def _microseconds(duration: str | None) -> int | None:
    return None if duration is None else seconds_of(duration) * SECOND


def _taken(history: str, take: Take) -> Taken:
    column = getattr(take, "column", None)
    name = f"{history}_{take.op}" if column is None else f"{history}_{take.op}_{column}"
    smoothing = take.smoothing if isinstance(take, TakeRate) else 0.0
    return Taken(
        column=name, op=take.op, of=column, smoothing=smoothing, length=take.length if isinstance(take, TakeLast) else 0
    )


def default_rule(taken: Taken, shared: str | None) -> NumericRule | ListRule:
    """Return the rule of a column that no rule names; `shared`: the feature whose table a list reads, if any."""
    columns = (taken.column,)
    match taken.op:
        case "last":
            return ListRule(columns=columns, max_length=taken.length, share=shared)
        case "count":
            return NumericRule(columns=columns, transforms=(Log(offset=1.0), FitStandardize()))
        case "rate" | "mean":
            return NumericRule(columns=columns, transforms=(FitFill(value="mean"), FitStandardize()))
    # Sums and ages may be of any size.
    return NumericRule(columns=columns, transforms=(FitFill(value="median"), FitQuantile()))


def event_columns(config: HistoryConfig, label: str) -> Sequence[str]:
    """Return the columns of events, beside key, time and label, that a history reads."""
    named = [taken.of for taken in plan_history("", config, "").takes if taken.of is not None]
    where = [] if config.where is None or config.where.column == label else [config.where.column]
    return list(dict.fromkeys([*named, *where]))


def with_fields(
    history: History, config: HistoryConfig, wanted: Mapping[str, RawColumn], log: TableSourceConfig
) -> History:
    """Return the history with the columns of its events; `wanted`: how the columns of the log are read, by name."""
    is_log = config.path is None
    files = log if is_log else config
    number = RawColumn(name="", type="number", null_values=files.null_words, number_format=files.number_format)
    text = RawColumn(name="", type="text", null_values=files.null_words)
    time, label, where = config.time or history.time, log.label_column if is_log else None, history.where
    if isinstance(time, TimeColumn):
        moment = {"type": "time", "time_format": time.format, "zone": time.zone}
        fields = {time.column: text.model_copy(update=moment)}
    else:
        fields = {time: wanted[history.time]}

    def add(name: str, field: RawColumn) -> None:
        if name not in fields:
            fields[name] = wanted[name] if is_log and name != label else field

    takes_label = label is not None and (None in summed(history) or (where is not None and where.column == label))
    if label is not None and takes_label:
        add(label, number.model_copy(update={"type": "text", "form": "number"}))
    for of in (of for of in summed(history) if of is not None):
        add(of, number)
    for of in listed(history):
        add(of, text)
    if where is not None:
        add(where.column, text if where.at_least is None else number)
    named = tuple(field.model_copy(update={"name": name}) for name, field in fields.items())
    return history.model_copy(update={"fields": named, "label": log.label if takes_label else None})
