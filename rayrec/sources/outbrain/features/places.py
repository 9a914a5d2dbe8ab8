"""Places, written CC>ST>DMA, and the countries and states in them."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayrec.features.mapped_columns import Numbers

_COUNTRY_CHARACTERS, _STATE_CHARACTERS = 2, 5


def countries(places: pa.Array) -> pa.Array:
    """The first 2 characters of each place, the whole text where it is shorter; null stays null."""
    return pc.utf8_slice_codeunits(places, 0, _COUNTRY_CHARACTERS)


def states(places: pa.Array) -> pa.Array:
    """The first 5 characters of each place, such as US>CA; the whole text where it is shorter."""
    return pc.utf8_slice_codeunits(places, 0, _STATE_CHARACTERS)


def country_keys(places: pa.Array) -> Numbers:
    """Countries as integers: the UTF-8 bytes (8 at most) of each, so that no two share one."""
    encoded = countries(places).dictionary_encode()
    # Of 8 bytes the integer is read as signed: a wrapped number is as good a key.
    texts = (text.encode().ljust(8, b"\0") for text in encoded.dictionary.to_pylist())
    keys = np.append(np.frombuffer(b"".join(texts), "<i8").astype(np.int64), 0)
    is_valid = encoded.indices.is_valid().to_numpy(zero_copy_only=False)
    return Numbers(keys[encoded.indices.cast(pa.int64()).fill_null(len(keys) - 1).to_numpy()], is_valid)
