"""One value has one spelling, however a tool wrote it; what is meant as text stays."""

import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayrec.common.errors import UserError
from rayrec.features.raw_columns import RawColumn
from rayrec.features.raw_values import read_values
from rayrec.features.text_forms import TextFacts, TextForm, form_of, in_form, without_blanks

SPELLED: dict[TextForm, dict[str, str]] = {
    "number": {
        "517": "517", "517.0": "517", "517.": "517", "+517": "517", "-0.0": "0", "3.50": "3.5", ".5": "0.5",
        "1e+16": "10000000000000000", "1.5e-07": "0.00000015", "True": "1", "FALSE": "0", "true": "1",
        "12345678901234567890.0": "12345678901234567890",
    },
    "boolean": {"True": "true", "FALSE": "false", "1": "true", "0.0": "false", "1.0": "true", "2.0": "2"},
    "time": {
        "517.0": "517", "2024-05-01 00:00:00": "2024-05-01", "2024-05-01T00:00:00.000": "2024-05-01",
        "2024-05-01T00:00": "2024-05-01", "2024-05-01T10:00:00.500": "2024-05-01 10:00:00.5",
        "2024-05-01 10:00": "2024-05-01 10:00:00", "2024-05-01T00:00:00+00:00": "2024-05-01 00:00:00Z",
        "2024-05-01T10:00:00+02:00": "2024-05-01 10:00:00+02:00", "2024-05-01": "2024-05-01",
    },
    "text": {},
}  # fmt: skip
STAYS = (
    "007",
    "-007",
    "1e5",
    "1E5",
    "0x1F",
    "1,5",
    "v1.0",
    "1.0.0",
    "yes",
    "tRUE",
    "truest",
    "1_000",
    "e",
    "-",
    "1e+999",
)


@pytest.mark.parametrize("form", SPELLED)
def test_spellings(form: TextForm) -> None:
    cases = {**SPELLED[form], **dict.fromkeys(STAYS, ""), **({} if form != "text" else {"1.10": "", "True": ""})}
    expected = [spelled or given for given, spelled in cases.items()]
    assert in_form(pa.array(list(cases)), form).to_pylist() == expected
    assert in_form(pa.array(expected), form).to_pylist() == expected, "spelled once is spelled for ever"
    many = [given for given in cases for _ in range(20)]
    assert in_form(pa.array(many), form).to_pylist() == [text for text in expected for _ in range(20)]


TEXTS = st.lists(
    st.none() | st.text(max_size=6) | st.floats().map(repr) | st.integers().map(str) | st.sampled_from([" a", "True "]),
    max_size=12,
)


@given(TEXTS, st.sampled_from(["number", "boolean", "text"]))
def test_a_text_is_spelled_alike_in_any_array(texts: list[str | None], form: TextForm) -> None:
    def spell(values: pa.Array) -> list[str | None]:
        return in_form(without_blanks(values), form).to_pylist()

    alone = [spell(pa.array([text], pa.string()))[0] for text in texts]
    array = pa.array([None, *texts, "x"], pa.string())[1:-1]
    assert spell(array) == alone
    assert spell(array.cast(pa.large_string())) == alone
    assert spell(pa.array(texts * 9, pa.string())) == alone * 9, "more than are spelled one by one"
    spelled = in_form(without_blanks(array), form)
    lists = pa.array([["y"], texts, None], pa.list_(pa.string()))[1:]
    assert in_form(pa.array([spelled.to_pylist(), None], lists.type), form).to_pylist() == [alone, None]
    assert in_form(spelled.dictionary_encode(), form).to_pylist() == alone


FORMS: dict[str, tuple[list[str], TextForm]] = {
    "ids": (["517", "12"], "number"),
    "ids with gaps by pandas": (["517.0", "12.0"], "number"),
    "ids by both": (["517.0", "12"], "number"),
    "words among ids": (["517.0", "unknown"], "number"),
    "half stars": (["3.5", "4.0", "0.5"], "number"),
    "fixed decimals": (["3.50", "4.00", "12.25"], "number"),
    "versions": (["1.0", "1.1", "1.10", "2.0"], "text"),
    "flags": (["True", "False"], "boolean"),
    "flags and others": (["true", "maybe"], "boolean"),
    "days": (["2024-05-01", "unknown"], "time"),
    "days and flags": (["2024-05-01T00:00:00", "true"], "boolean"),
    "long ids": (["12345678901234567", "1.5"], "number"),
    "long floats": (["1.2345678901234567e+18", "7"], "number"),
    "nothing": ([], "number"),
}


def test_ids_that_are_integers_here_and_floats_there_are_refused() -> None:
    for written in ("1.2345678901234568e+18", "1.23457E+18"):
        parts = [TextFacts.of(pa.array([text, "7"])) for text in ("1234567890123456789", written)]
        with pytest.raises(
            UserError, match=f"column 'user': has .* 1234567890123456789 .* {re.escape(written)}, which do"
        ):
            form_of("user", parts)


@pytest.mark.parametrize("case", FORMS)
def test_the_form_follows_from_all_values_however_they_are_cut(case: str) -> None:
    texts, form = FORMS[case]
    for cut in range(len(texts) + 1):
        parts = [TextFacts.of(pa.array(part, pa.string())) for part in (texts[:cut], texts[cut:])]
        assert form_of("x", parts) == form


WAYS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda value: value,
    "JSON": lambda value: json.loads(json.dumps(value)),
    "Python's text": str,
    "blanks": lambda value: f" {value}\t",
    "JSON's text": json.dumps,
    "float": lambda value: float(value) if isinstance(value, int) else value,
    "pandas' text": lambda value: str(float(value)) if type(value) is int else str(value),
    "decimal": lambda value: value if isinstance(value, bool) else Decimal(str(value)),
    "NumPy": lambda value: np.array([value])[0],
    "bytes": lambda value: str(value).encode(),
    "signed": lambda value: f"{value:+}" if not isinstance(value, bool) else value,
}
VALUES = {
    "number": st.integers(-(2**53), 2**53) | st.integers(-1_000, 1_000).map(lambda half: half / 2),
    "boolean": st.booleans(),
}


@pytest.mark.parametrize("form", VALUES)
@given(st.data())
def test_a_value_is_one_text_in_every_way_in(form: TextForm, data: st.DataObject) -> None:
    values = data.draw(st.lists(VALUES[form], min_size=1, max_size=5))
    raw = RawColumn(name="x", type="text", form=form)
    expected, _ = read_values(pa.array([str(value) for value in values]), raw)
    for name, way in WAYS.items():
        for given_values in ([way(value) for value in values], [None, *map(way, values)]):
            found, unreadable = read_values(given_values, raw)
            assert not unreadable.any(), name
            assert found.to_pylist()[-len(values) :] == expected.to_pylist(), name
    lists = RawColumn(name="x", type="texts", form=form, separator="|")
    whole, _ = read_values([values], lists)
    assert whole.to_pylist() == [expected.to_pylist()]
    assert read_values(["|".join(map(str, values))], lists)[0].to_pylist() == whole.to_pylist()


def test_typed_columns_of_arrow() -> None:
    raw = RawColumn(name="x", type="text", form="number")
    for values in (
        pa.array([7, None], pa.uint8()), pa.array([7.0, np.nan]), pa.array([7.0, None], pa.float32()),
        pa.array([Decimal("7.00"), None]), pa.array(["7.0", ""]).dictionary_encode(),
        pa.array(["7", " "], pa.large_string()), pa.array([b"7.0", None]), pa.array([b"7", None], pa.binary(1)),
        pa.array(["7", None], pa.string_view()),
        pa.array([np.float16(7), None], pa.float16()), pa.RunEndEncodedArray.from_arrays([1, 2], pa.array([7, None])),
    ):  # fmt: skip
        found, unreadable = read_values(values, raw)
        assert (found.to_pylist(), unreadable.any()) == (["7", None], False), values.type
    with_words = RawColumn(name="x", type="text", null_values=("NA",))
    assert read_values(["NA", " NA", "a"], with_words)[0].to_pylist() == [None, None, "a"]
