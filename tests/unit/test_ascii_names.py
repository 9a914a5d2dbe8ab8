"""Users' names become ASCII for tags of metrics, and come back whole."""

import pytest

from rayrec.common.names import ascii_name, with_names


@pytest.mark.parametrize(
    "name", ["", "ctr", "a b/c:d", 'x"y\\z\n', "50%", "%41", "Straße", "点击率", "🛒", "e\u0301", "é"]
)
def test_a_name_comes_back(name: str) -> None:
    assert ascii_name(name).isascii()
    assert with_names(ascii_name(name).encode()) == name.encode()


def test_names_of_ascii_stay_readable() -> None:
    assert ascii_name("run-7/trial 3") == "run-7/trial 3"
    assert ascii_name("Straße 50%") == "Stra%C3%9Fe 50%25"


def test_a_file_name_that_is_no_utf_8_has_a_tag() -> None:
    assert ascii_name("caf\udce9") == "caf\\udce9"
