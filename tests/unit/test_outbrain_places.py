"""Offsets from UTC, against the machine's copy of the tz database."""

from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from rayrec.sources.outbrain.places import OFFSET_BY_COUNTRY, OFFSET_BY_STATE

ZONES = Path("/usr/share/zoneinfo/zone.tab")
STATES = {
    "US>NY": "America/New_York", "US>TX": "America/Chicago", "US>CO": "America/Denver", "US>AZ": "America/Phoenix",
    "US>CA": "America/Los_Angeles", "US>AK": "America/Anchorage", "US>HI": "Pacific/Honolulu",
    "US>MI": "America/Detroit", "US>ID": "America/Boise", "US>IN": "America/Indiana/Indianapolis",
    "US>ND": "America/North_Dakota/Center", "CA>ON": "America/Toronto", "CA>BC": "America/Vancouver",
    "CA>SK": "America/Regina", "CA>MB": "America/Winnipeg", "CA>NL": "America/St_Johns", "CA>NS": "America/Halifax",
    "CA>AB": "America/Edmonton",
}  # fmt: skip


def offset(zone: str) -> float:
    passed = ZoneInfo(zone).utcoffset(datetime(2016, 6, 20, 12))
    assert passed is not None
    return passed.total_seconds() / 60


@pytest.mark.skipif(not ZONES.exists(), reason="no tz database")
def test_every_country_has_an_offset_of_one_of_its_zones() -> None:
    known: dict[str, set[float]] = {}
    for line in ZONES.read_text().splitlines():
        if not line.startswith("#"):
            country, _, zone, *_ = line.split("\t")
            known.setdefault(country, set()).add(offset(zone))
    del known["UM"]  # no people
    assert set(OFFSET_BY_COUNTRY) == set(known)
    assert {country for country, minutes in OFFSET_BY_COUNTRY.items() if minutes not in known[country]} == set()


@pytest.mark.skipif(not ZONES.exists(), reason="no tz database")
def test_states() -> None:
    assert {state: OFFSET_BY_STATE[state] for state in STATES} == {s: offset(zone) for s, zone in STATES.items()}
    assert len([state for state in OFFSET_BY_STATE if state.startswith("US>")]) == 51
    assert len([state for state in OFFSET_BY_STATE if state.startswith("CA>")]) == 13
