"""Recognizes how the values of a column are written: as numbers, times, lists, vectors or other texts."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config.base import NumberFormat
from rayrec.features.raw_columns import RawColumn
from rayrec.features.raw_values import read_column
from rayrec.features.text_forms import BOOLEANS, in_form, plain_numbers, split_lists
from rayrec.features.transforms import lengths_of
from rayrec.inspection.table.columns import (
    INEXACT,
    MOST_MISFITS,
    NULL_WORDS,
    PERHAPS_LISTS,
    ColumnProfile,
    Form,
    find_null_words,
    find_number_formats,
    read_texts,
)

_LEADING_ZERO = r"^[+-]?0[0-9]+$"
_LONG, _LONG_INTEGER, _TOO_LONG = 1e16, r"^[+-]?[0-9]{17,}$", "integers too long for numbers, which are texts"
_LONG_FLOAT = r"^[+-]?[0-9]\.[0-9]{14,}[eE]\+1[6-9]$"
_DIGIT_FORMATS = ("%Y%m%d%H%M%S", "%Y%m%d%H%M", "%Y%m%d%H", "%y%m%d%H%M", "%Y%m%d", "%y%m%d%H", "%Y%m", "%y%m%d")
_DIGITS = {"%Y": 4}
_DAYS = (
    "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y-%m-%d", "%d/%b/%Y", "%d %b %Y",
    "%d-%b-%Y", "%b %d, %Y", "%a %b %d %Y", "%a, %d %b %Y",
)  # fmt: skip
_CLOCKS = ("", " %H:%M", " %H:%M:%S", ":%H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
_TEXT_FORMATS = (*(day + clock for day in _DAYS for clock in _CLOCKS), "%a %b %d %H:%M:%S %Y", "%Y-%m", "%Y/%m")
_WITH_ZONE = r"( GMT| UTC|Z| ?[+-][0-9]{2}:?[0-9]{2})$"
_ZONED_FORMATS = tuple(
    day + clock + zone for day in _DAYS for clock in _CLOCKS[2:4] for zone in (" GMT", " UTC", "Z", " %z", "%z")
)
"""As servers write times: in headers of HTTP, mails and logs of Apache."""
_TEXT_YEARS, _DIGIT_YEARS = (1900, 2100), (1990, 2040)
"""Plausible years: integers could as well be something else than times."""
_EPOCHS = ("s", "ms", "us", "ns")
FAR_AWAY = "years away from all other times are"
_NO_DATE = r"^0{2,4}[-/.]00[-/.]0{2,4}([ T][0:.]+Z?)?$"
_ENOUGH_TIMES, _FEW_ABSURD, _FREQUENT = 10, 5, 20
_FAR_SPANS, _FAR_SECONDS = 3, 5 * 365 * 86_400
_EMPTY_TIMES = [datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in (1, 1900, 1970, 2000)]
"""What databases write where there is no time, beside 9999."""
_TRIED = 2_000
"""Distinct values that a pattern is tried on before all of them."""
_SEPARATORS = ("|", ";", ",", " ")
_BRACKETS = ("[;]", "[|]", "[ ]", "[,]")
"""Separators of lists in brackets; the last one is that of lists with one value each."""
_WORD_SEPARATORS = (" ", "/", "-", "_")
_WORD = r"^\PN*\pL"
"""A letter before any digit, which most parts of titles and names have, but not those of dates, uuids and numbers."""
_LEAST_JOINED = 0.3
"""Share of the rows whose value has the separator of lists or words inside."""
_IN_BRACKETS = r"(?s)^([\w.]+\()?[\[{(].*[\])}]$"
_OBJECTS = re.compile(r"""[\[{]\s*(["'\[{].*)?[\]}]""", re.DOTALL)
_FORMATS_OF_VECTORS: dict[str, tuple[NumberFormat, ...]] = {".": ("plain", "1,234.5"), ",": ("1.234,5",)}
"""The formats of decimals, by the mark that they have."""


def profile_column(name: str, values: pa.ChunkedArray, *, delimited: bool, named: bool = True) -> ColumnProfile:
    """Return the profile of a column of the sample; `delimited` columns are texts, others have Arrow's types.

    `named`: the name comes from the files, so that it can say what the values are.
    """
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(array, pa.ChunkedArray):  # more than 2 GiB
        array = pa.concat_arrays(array.chunks)
    kind = array.type
    if pa.types.is_dictionary(kind):
        array, kind = array.dictionary_decode(), kind.value_type
    shown = "text" if delimited else str(kind)
    # The type decides, as far as the file has one.
    if pa.types.is_nested(kind) and hasattr(kind, "value_type"):
        return _lists(name, array, shown)
    if pa.types.is_null(kind):
        return ColumnProfile(name, shown, "text", np.full(len(array), -1), [])
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        times, _ = read_column(array, RawColumn(name=name, type="time"))
        codes, distinct = _encoded(times.cast(pa.timestamp("us")))
        seconds = distinct.cast(pa.int64()).to_numpy(zero_copy_only=False) / 1e6
        texts = [text.removesuffix(".000000") for text in distinct.cast(pa.string()).to_pylist()]
        counts = np.bincount(codes[codes >= 0], minlength=len(texts))
        notes = _far_away(texts, counts, _are_absurd(seconds, counts))
        return ColumnProfile(name, shown, "time", codes, texts, time_format="iso", seconds=seconds, notes=notes)
    if pa.types.is_duration(kind):
        array, _ = read_column(array, RawColumn(name=name, type="number"))
        return _typed_numbers(name, array, shown)
    if pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return _with_time(_typed_numbers(name, array, shown), named)
    # Whatever else preprocessing reads as texts: those of delimited files say themselves what they are.
    as_texts = _as_texts(array)
    if as_texts is None:
        is_null = array.is_null().to_numpy(zero_copy_only=False)
        return ColumnProfile(name, shown, "nested", np.where(is_null, -1, 0), [shown])
    if not (pa.types.is_temporal(kind) or pa.types.is_boolean(kind)):
        return _with_time(_texts(name, as_texts, shown), named)
    codes, distinct = _encoded(as_texts)
    return _plain(name, shown, codes, distinct.to_pylist())


def _as_texts(array: pa.Array) -> pa.Array | None:
    """Return the texts that preprocessing reads; None if it can read none or few of the values."""
    try:
        texts, unreadable = read_column(array, RawColumn(name="", type="text"))
    except UserError:
        return None
    return texts.cast(pa.large_string()) if 2 * unreadable.sum() <= len(array) else None


def _encoded(array: pa.Array) -> tuple[NDArray[np.int64], pa.Array]:
    encoded = array.dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary


def _recoded(codes: NDArray[np.int64], spelled: pa.Array) -> tuple[NDArray[np.int64], pa.Array]:
    """Return codes and distinct texts where `spelled` are the distinct texts in a spelling that some of them share."""
    new, distinct = _encoded(spelled)
    return np.append(new, -1)[codes], distinct


def _typed_numbers(name: str, array: pa.Array, shown: str) -> ColumnProfile:
    if pa.types.is_floating(array.type):
        array = pc.if_else(pc.is_finite(array), array, pa.scalar(None, array.type))
    codes, distinct = _encoded(array)
    numbers = distinct.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    texts = in_form(distinct.cast(pa.string()), "number").to_pylist()
    is_whole = bool(np.isfinite(numbers).all()) and all("." not in text and "e" not in text for text in texts)
    if is_whole and np.mean(np.abs(numbers[codes[codes >= 0]]) >= _LONG) > MOST_MISFITS:
        notes = (_TOO_LONG, INEXACT) if pa.types.is_floating(array.type) else (_TOO_LONG,)
        return ColumnProfile(name, shown, "text", codes, texts, notes=notes)
    return ColumnProfile(name, shown, "integer" if is_whole else "number", codes, texts, numbers=numbers)


def _lists(name: str, array: pa.Array, shown: str) -> ColumnProfile:
    array = array.cast(pa.list_(array.type.value_type))
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    is_null = array.is_null().to_numpy(zero_copy_only=False)
    flat = array.flatten()
    present = lengths[~is_null]
    codes = np.where(is_null, -1, 0)
    if pa.types.is_floating(flat.type) and not pc.all(pc.equal(flat, pc.floor(flat))).as_py():
        usual = np.bincount(present).argmax() if len(present) else 0
        examples = [str(v) for v in flat.slice(0, 3).to_pylist()]
        if usual and (present == usual).mean() > 0.99:
            return ColumnProfile(name, shown, "vector", codes, [f"[{', '.join(examples)}, ...]"], lengths=lengths)
        return ColumnProfile(name, shown, "nested", codes, [shown])
    texts = _as_texts(flat)
    if texts is None:
        return ColumnProfile(name, shown, "nested", codes, [shown])
    return _list_column(name, shown, texts, lengths, is_null, None)


def _list_column(
    name: str, shown: str, flat: pa.Array, lengths: NDArray[np.int64], is_null: NDArray[np.bool_], separator: str | None
) -> ColumnProfile:
    """Return a column of lists; its codes are those of the first item, so that a row without one counts as missing."""
    item_codes, items = _encoded(flat)
    starts = np.cumsum(lengths) - lengths
    filled = ~is_null & (lengths > 0)
    codes = np.full(len(lengths), -1)
    codes[filled] = item_codes[starts[filled]]
    texts = items.to_pylist()
    frequent = np.argsort(-np.bincount(item_codes[item_codes >= 0], minlength=len(texts)), kind="stable")
    order = np.argsort(frequent)  # place of each item when the most frequent comes first
    codes = np.where(codes >= 0, order[np.maximum(codes, 0)] if len(order) else codes, -1)
    return ColumnProfile(
        name, shown, "list", codes, [texts[i] for i in frequent], separator=separator, lengths=lengths,
        items=len(texts),
    )  # fmt: skip


def _texts(name: str, array: pa.Array, shown: str) -> ColumnProfile:
    """Return what texts are written as: the first of these that nearly all of them are."""
    codes, distinct = _encoded(array)
    texts: list[str] = distinct.to_pylist()
    # Booleans.
    is_boolean = pc.is_in(distinct, pa.array(list(BOOLEANS), distinct.type)).to_numpy(zero_copy_only=False)
    if texts and is_boolean.all():
        codes, distinct = _recoded(codes, in_form(distinct, "boolean"))
        return _plain(name, shown, codes, distinct.to_pylist())
    if not texts:
        return ColumnProfile(name, shown, "text", codes, texts)
    # Numbers, as programs or people write them.
    counts = np.bincount(codes[codes >= 0], minlength=len(texts))
    is_word = pc.is_in(distinct, pa.array(NULL_WORDS, distinct.type)).to_numpy(zero_copy_only=False)
    formats, words, notes = find_number_formats(distinct, counts, is_word, is_boolean)
    if formats:
        spelled = pc.coalesce(plain_numbers(distinct, formats[0]), distinct)
        column = _number_texts(name, shown, *_recoded(codes, spelled), words)
        return replace(column, number_formats=formats, notes=(*column.notes, *notes))
    if notes:
        found = _list(name, shown, codes, texts, counts) if notes[0].startswith(PERHAPS_LISTS) else None
        return found or ColumnProfile(name, shown, "text", codes, texts, notes=notes)
    # Times, in the first format that most are written in.
    for form in _text_time_formats(distinct):
        seconds, is_time = _times(distinct, form, _TEXT_YEARS)
        is_absurd = _are_absurd(np.where(is_time, seconds, read_texts(distinct, "time", form)[0] / 1e6), counts)
        is_absurd |= pc.match_substring_regex(distinct, _NO_DATE).to_numpy(zero_copy_only=False)
        null_words = find_null_words(texts, counts, is_time & ~is_absurd, is_word | is_absurd)
        if null_words is not None:
            notes = ("day and month could be the other way round",) if _is_ambiguous(distinct, is_time, form) else ()
            if is_absurd.any():
                notes += (f"{_absurd_rows(texts, counts, is_absurd)} are taken for missing values",)
            column = ColumnProfile(name, shown, "time", codes, texts, time_format=form, seconds=seconds, notes=notes)
            return column.without(null_words)
    # Vectors, lists, or one value each.
    if 2 * pc.mean(pc.match_substring_regex(distinct[:_TRIED], _IN_BRACKETS)).as_py() > 1:
        found = _bracketed(name, shown, codes, distinct, is_word)
    else:
        found = _vector(name, shown, codes, texts) or _list(name, shown, codes, texts, counts)
    return found or _plain(name, shown, codes, texts)


def _number_texts(
    name: str,
    shown: str,
    codes: NDArray[np.int64],
    distinct: pa.Array,
    null_words: tuple[str, ...],
) -> ColumnProfile:
    counts = np.bincount(codes[codes >= 0], minlength=len(distinct))
    for pattern, note in (
        (_LEADING_ZERO, "digits with leading zeros, which are texts"),
        (_LONG_INTEGER, _TOO_LONG),
    ):
        found = pc.match_substring_regex(distinct, pattern).to_numpy(zero_copy_only=False)
        if counts[found].sum() > MOST_MISFITS * counts.sum():
            return ColumnProfile(name, shown, "text", codes, distinct.to_pylist(), notes=(note,)).without(null_words)
    is_inexact = pc.match_substring_regex(distinct, _LONG_FLOAT).to_numpy(zero_copy_only=False)
    if 2 * counts[is_inexact].sum() > counts.sum():
        return ColumnProfile(name, shown, "text", codes, distinct.to_pylist(), notes=(INEXACT,)).without(null_words)
    codes, distinct = _recoded(codes, in_form(distinct, "number"))
    numbers, _ = read_texts(distinct, "number")
    is_missing = ~np.isfinite(numbers)  # infinity, too, is a missing value to preprocessing
    is_digits = pc.match_substring_regex(distinct, r"^[+-]?[0-9]+$").to_numpy(zero_copy_only=False)
    form: Form = "integer" if is_digits[~is_missing].all() else "number"
    texts = distinct.to_pylist()
    column = ColumnProfile(name, shown, form, codes, texts, numbers=np.where(is_missing, np.nan, numbers))
    without = column.without([text for text, missing in zip(texts, is_missing, strict=True) if missing])
    return replace(without, null_words=null_words)


def _plain(name: str, shown: str, codes: NDArray[np.int64], texts: Sequence[str]) -> ColumnProfile:
    notes = []
    if all(re.fullmatch(r"[0-9a-f]{6,}|[0-9A-F]{6,}", t) for t in texts[:_TRIED]):
        notes.append("hexadecimal")
    elif texts and all(map(_OBJECTS.fullmatch, texts[:_TRIED])):
        notes.append("JSON in a text, which is read as one value")
    return ColumnProfile(name, shown, "text", codes, texts, notes=tuple(notes))


def _with_time(column: ColumnProfile, named: bool) -> ColumnProfile:
    """Return a column of numbers as one of times, if nearly all are times of a known format within plausible years."""
    is_long = _TOO_LONG in column.notes
    if (column.numbers is None and not is_long) or not len(column.texts):
        return column
    texts, counts = pa.array(column.texts, pa.string()), column.counts
    formats: list[str] = []
    if column.has_time_name and column.form == "integer":
        length = np.bincount(pc.utf8_length(texts).to_numpy(), counts).argmax()
        formats = [
            f for f in _DIGIT_FORMATS if sum(_DIGITS.get(f[i : i + 2], 2) for i in range(0, len(f), 2)) == length
        ]
    # Seconds could as well be ids, so the name must speak of a time, or there is none and most rows differ.
    says_time = column.has_time_name or (not named and column.distinct > column.present / 5)
    # So could nanoseconds: ids of 19 digits that begin with a time are common.
    formats += [form for form in _EPOCHS if says_time or (form in ("ms", "us") and column.form == "integer")]
    formats = formats if not is_long else ["ns"] if column.has_time_name else []
    for form in formats:
        seconds, is_time = _times(texts, form, _DIGIT_YEARS)
        if is_time.any() and counts[~is_time].sum() <= MOST_MISFITS * counts.sum():
            notes = tuple(note for note in column.notes if note != _TOO_LONG)
            notes += _far_away(column.texts, counts, ~is_time | _are_absurd(seconds, counts))
            return replace(column, form="time", time_format=form, seconds=seconds, notes=notes)
    return column


def _text_time_formats(distinct: pa.Array) -> list[str]:
    """Return the formats in which most of the first texts are times, by which day and month are the likeliest first."""
    tried = distinct[:_TRIED]
    if pc.mean(pc.match_substring_regex(tried, r"^.{0,12}[0-9].{0,3}[-/. :T]")).as_py() < 0.5:
        return []
    has_zone = pc.mean(pc.match_substring_regex(tried, _WITH_ZONE)).as_py() > 0.5
    formats = ("iso", *(_ZONED_FORMATS if has_zone else _TEXT_FORMATS))
    return [form for form in formats if _times(tried, form, _TEXT_YEARS)[1].mean() > 0.5]


def _is_ambiguous(distinct: pa.Array, is_time: NDArray[np.bool_], form: str) -> bool:
    return form.startswith("%d/%m") and bool(
        (_times(distinct, form.replace("%d/%m", "%m/%d"), _TEXT_YEARS)[1] | ~is_time).all()
    )


def _times(values: pa.Array, form: str, years: tuple[int, int]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return (n,) seconds since 1970, NaN if not a time of this format in plausible years; and which are one."""
    first, last = (datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in years)
    micros, is_readable = read_texts(values, "time", form)
    seconds = micros / 1e6
    with np.errstate(invalid="ignore"):
        is_time = is_readable & (seconds >= first) & (seconds < last)
    return np.where(is_time, seconds, np.nan), is_time


def _are_absurd(seconds: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell which of (n,) distinct times, NaN if none, stand for none: a few that are years away from all others, or the
    first of a century or of 1970 if it is by far the most frequent.
    """
    known = seconds[np.isfinite(seconds)]
    if len(known) < _ENOUGH_TIMES:
        return np.zeros(len(seconds), bool)
    first, median, last = np.quantile(known, [0.02, 0.5, 0.98])
    with np.errstate(invalid="ignore"):
        is_absurd = np.abs(seconds - median) > max(_FAR_SPANS * (last - first), _FAR_SECONDS)
    is_absurd |= np.isin(seconds, _EMPTY_TIMES) & (counts > _FREQUENT * np.median(counts))
    return is_absurd & (np.count_nonzero(is_absurd) <= _FEW_ABSURD)


def _absurd_rows(texts: Sequence[str], counts: NDArray[np.int64], is_absurd: NDArray[np.bool_]) -> str:
    """Return how many rows have such times, with the most frequent one: `12 rows of '1970-01-01' and the like`."""
    most = texts[int(np.argmax(np.where(is_absurd, counts, -1)))]
    return f"{counts[is_absurd].sum():,} rows of '{most}'{' and the like' if is_absurd.sum() > 1 else ''}"


def _far_away(texts: Sequence[str], counts: NDArray[np.int64], is_absurd: NDArray[np.bool_]) -> tuple[str, ...]:
    """Return what a person should know of absurd times that no text can be named for."""
    if not (is_absurd & (counts > 0)).any():
        return ()
    return (f"{FAR_AWAY} {_absurd_rows(texts, counts, is_absurd)}; make them missing in the files if they mean none",)


def _vector(name: str, shown: str, codes: NDArray[np.int64], texts: Sequence[str]) -> ColumnProfile | None:
    """Return the column as vectors, if every text has the same number, at least 3, of decimals in it."""
    tried = texts[:_TRIED]
    for separator in _SEPARATORS:
        size = tried[0].count(separator) + 1
        if size < 3 or any(t.count(separator) + 1 != size for t in tried):
            continue
        items = pa.array([item for t in tried for item in t.split(separator)])
        for mark, formats in _FORMATS_OF_VECTORS.items():
            is_number = read_texts(items, "number", number_format=formats[0])[1]
            if is_number.all() and pc.any(pc.match_substring(items, mark)).as_py():
                lengths = np.where(codes >= 0, size, 0)
                found = ColumnProfile(name, shown, "vector", codes, texts, separator=separator, lengths=lengths)
                return replace(found, number_formats=formats)
    return None


def _bracketed(
    name: str, shown: str, codes: NDArray[np.int64], distinct: pa.Array, is_word: NDArray[np.bool_]
) -> ColumnProfile | None:
    """Return the column as lists in brackets, or vectors, if nearly all texts are such and some show it: by several
    values, quotes, or no value.
    """
    counts = np.bincount(codes[codes >= 0], minlength=len(distinct))
    for separator in _BRACKETS:
        lists, no_list = split_lists(distinct.cast(pa.string()), separator)
        words = find_null_words(distinct.to_pylist(), counts, ~no_list, is_word)
        sizes = lengths_of(lists)
        are_lists = (sizes[~no_list] > 1).any() or (separator == _BRACKETS[-1] and _are_quoted(distinct))
        if words is None or not are_lists:
            continue
        column = ColumnProfile(name, shown, "vector", codes, distinct.to_pylist(), separator=separator).without(words)
        codes = np.where((codes >= 0) & ~no_list[codes], column.codes, -1)
        lengths = np.where(codes >= 0, sizes[codes], 0).astype(np.int64)
        items = lists.flatten()
        has_one_size = len(set(sizes[~no_list])) == 1 and pc.any(pc.match_substring(items, ".")).as_py()
        if has_one_size and read_texts(items, "number")[1].all():
            return replace(column, codes=codes, lengths=lengths, number_formats=_FORMATS_OF_VECTORS["."])
        flat = lists.take(pa.array(codes, mask=codes < 0)).flatten().cast(pa.large_string())
        found = _list_column(name, shown, flat, lengths, codes < 0, separator)
        return replace(found, null_words=words)
    return None


def _are_quoted(distinct: pa.Array) -> bool:
    """Tell whether texts in brackets are lists of one value or none, as quotes in them or nothing shows."""
    return bool(pc.any(pc.match_substring_regex(distinct, r"""^[\[{(]\s*(["']|[\]})]$)""")).as_py())


def _list(
    name: str, shown: str, codes: NDArray[np.int64], texts: Sequence[str], counts: NDArray[np.int64]
) -> ColumnProfile | None:
    """Return the column as lists, if a separator stands inside of many values and few items make up many different
    values.
    """
    rows = counts.sum()
    for separator in _SEPARATORS:
        joined = np.array([separator in t for t in texts])
        if counts[joined].sum() < _LEAST_JOINED * rows:
            continue
        parts = [t.split(separator) for t in texts]
        sizes = np.array([len(p) for p in parts])
        if len(np.unique(sizes[joined])) < 2 and joined.all():
            continue  # always as many parts: the levels of one value
        items: dict[str, int] = {}
        for part in parts:
            for item in part:
                items[item] = items.get(item, 0) + 1
        # The same items again in other company; texts of free words have many that occur once.
        if "" in items or len(items) > 0.5 * len(texts) or sizes.sum() < 5 * len(items):
            continue
        if separator == " " and max(map(len, items)) > 30:
            continue
        of_row = codes[codes >= 0]
        starts, ends = (np.cumsum(sizes) - sizes)[of_row], np.cumsum(sizes[of_row])
        taken = np.arange(ends[-1]) + np.repeat(starts - (ends - sizes[of_row]), sizes[of_row])
        flat = pa.array([item for part in parts for item in part], pa.large_string()).take(pa.array(taken))
        lengths = np.where(codes >= 0, sizes[codes], 0)
        return _list_column(name, shown, flat, lengths, codes < 0, separator)
    return None


def words_of(column: ColumnProfile) -> tuple[ColumnProfile, NDArray[np.int64]] | None:
    """Return a column of texts as lists of words, and (sum of the lengths,) the place of each word, row after row.

    None if few texts have several parts, or most parts are no words.
    """
    texts = pa.array(column.texts, pa.large_string())
    for separator in _WORD_SEPARATORS:
        joined = pc.match_substring(texts, separator).to_numpy(zero_copy_only=False)
        if column.counts[joined].sum() <= _LEAST_JOINED * column.present:
            continue
        tried = pc.split_pattern(texts[:_TRIED], separator).flatten()
        if 2 * pc.mean(pc.match_substring_regex(tried, _WORD)).as_py() < 1:
            return None
        is_null = column.codes < 0
        lists = pc.split_pattern(texts, separator).take(pa.array(column.codes, mask=is_null))
        flat, lengths = lists.flatten(), lengths_of(lists).astype(np.int64)
        return _list_column(column.name, column.type, flat, lengths, is_null, separator), _encoded(flat)[0]
    return None
