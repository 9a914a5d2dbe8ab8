"""Places, written CC>ST>DMA (such as US>CA>807): their countries, their states and their local time.

The tables below hold the minutes that local time was ahead of UTC in June 2016, daylight saving time included. A
country with more than one zone has the offset of most of its people; the states of the US and the provinces of Canada
have offsets of their own, again those of most of their people. Source: the tz database (IANA).
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

DEFAULT_OFFSET = -240
"""The offset of places that are not listed: New York's, whose time is the most frequent in the data."""
_COUNTRY_CHARACTERS, _STATE_CHARACTERS = 2, 5
_COUNTRIES = {
    -660: "AS NU",
    -600: "CK PF",
    -480: "PN",
    -360: "BZ CR GT HN NI SV",
    -300: "CO EC HT JM KY MX PA PE",
    -240: "AG AI AW BB BL BO BQ BS CA CL CU CW DM DO GD GP GY KN LC MF MQ MS PR PY SX TC TT US VC VE VG VI",
    -180: "AR BM BR FK GF SR UY",
    -120: "GL GS PM",
    -60: "CV",
    0: "BF CI EH GH GM GN GW IS LR MA ML MR SH SL SN ST TG",
    60: "AO BJ CF CG CM DZ FO GA GB GG GQ IE IM JE NA NE NG PT TD TN",
    120: (
        "AD AL AT BA BE BI BW CD CH CZ DE DK EG ES FR GI HR HU IT LI LS LU LY MC ME MK MT MW MZ NL NO PL "
        "RS RW SE SI SJ SK SM SZ VA ZA ZM ZW"
    ),
    180: (
        "AX BG BH BY CY DJ EE ER ET FI GR IL IQ JO KE KM KW LB LT LV MD MG PS QA RO RU SA SD SO SS SY TR TZ UA UG YE YT"
    ),
    240: "AE AM AZ GE MU OM RE SC",
    270: "AF IR",
    300: "MV PK TF TJ TM UZ",
    330: "IN LK",
    345: "NP",
    360: "BD BT IO KG KZ",
    390: "CC MM",
    420: "CX ID KH LA TH VN",
    480: "BN CN HK MO MY PH SG TW",
    510: "KP",
    540: "JP KR MN PW TL",
    600: "AU FM GU MP PG",
    660: "NC NF SB VU",
    720: "AQ FJ KI MH NR NZ TV WF",
    780: "TK TO WS",
}
_US_STATES = {
    -600: "HI",
    -480: "AK",
    -420: "AZ CA NV OR WA",
    -360: "CO ID MT NM UT WY",
    -300: "AL AR IA IL KS LA MN MO MS ND NE OK SD TN TX WI",
    -240: "CT DC DE FL GA IN KY MA MD ME MI NC NH NJ NY OH PA RI SC VA VT WV",
}
_CA_PROVINCES = {-420: "BC YT", -360: "AB NT SK", -300: "MB", -240: "NU ON QC", -180: "NB NS PE", -150: "NL"}

OFFSET_BY_COUNTRY = {code: offset for offset, codes in _COUNTRIES.items() for code in codes.split()}
"""Offsets by the first two characters of a place."""
OFFSET_BY_STATE = {
    f"{country}>{code}": offset
    for country, states in (("US", _US_STATES), ("CA", _CA_PROVINCES))
    for offset, codes in states.items()
    for code in codes.split()
}
"""Offsets by the first five characters of a place; they go before that of the country."""


def countries(places: pa.Array) -> pa.Array:
    """Return the first 2 characters of each place, or the whole text if it is shorter; null stays null."""
    return pc.utf8_slice_codeunits(places, 0, _COUNTRY_CHARACTERS)


def states(places: pa.Array) -> pa.Array:
    """Return the first 5 characters of each place, such as US>CA, or the whole text if it is shorter; null
    stays null.
    """
    return pc.utf8_slice_codeunits(places, 0, _STATE_CHARACTERS)


def utc_offsets(places: pa.Array) -> NDArray[np.int64]:
    """Return minutes that local time is ahead of UTC, (n,); DEFAULT_OFFSET for a null or unknown place."""
    encoded = places.dictionary_encode()
    names = zip(*(part(encoded.dictionary).to_pylist() for part in (states, countries)), strict=True)
    known = [OFFSET_BY_STATE.get(s, OFFSET_BY_COUNTRY.get(c, DEFAULT_OFFSET)) for s, c in names]
    offsets = np.array([*known, DEFAULT_OFFSET], np.int64)
    return offsets[encoded.indices.cast(pa.int64()).fill_null(len(known)).to_numpy()]
