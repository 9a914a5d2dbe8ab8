"""Labels: what a column says of whether a row, or an event, is a positive one."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayrec.config.table import FileFormat, LabelCondition
from rayrec.features.raw_columns import RawColumn
from rayrec.features.raw_values import Unreadable, Values, read_by_type, read_column, read_values

LABEL_WORDS = ("false", "true", "no", "yes", "f", "t", "n", "y")
"""Words of labels, for 0 and 1 in turn; blanks around them and their case play no part."""
LABEL = RawColumn(name="label", type="number")


def label_column(files: FileFormat) -> RawColumn:
    """Return how the label of such files is read where it holds numbers."""
    return LABEL.model_copy(update={"null_values": files.null_words, "number_format": files.number_format})


def read_labels(
    values: Values, label: str | LabelCondition, number: RawColumn = LABEL
) -> tuple[pa.FloatArray, Unreadable]:
    """Return (n,) the labels of the `values` of the label's column, null if missing, and which cannot be read.

    `number` says how the column is read where it holds numbers.
    """
    condition = label if isinstance(label, LabelCondition) else None
    text = number.model_copy(update={"type": "text", "form": "number"})
    if condition is not None and condition.equals is not None:
        found, no_text = read_values(values, text)
        # A value that is no text, such as a list, does not equal one.
        wanted, _ = read_column(pa.array(condition.equals), text.model_copy(update={"null_values": ()}))
        holds = pc.is_in(found, value_set=wanted)
        labels, wrong = pc.if_else(pc.or_(found.is_valid(), pa.array(no_text)), holds, None), np.zeros_like(no_text)
    elif condition is not None and condition.at_least is not None:
        found, wrong = read_values(values, number)
        is_there = pc.invert(pc.is_nan(found))
        labels = pc.if_else(is_there, pc.greater_equal(found, condition.at_least), None)
    else:
        labels, wrong = read_by_type(values, pa.float32(), lambda column: _labels(column, number, text))
    labels = labels.cast(pa.float32())
    if condition is not None and condition.missing is not None:
        labels = labels.fill_null(float(condition.missing))
    return labels, wrong


def _labels(column: pa.Array, number: RawColumn, text: RawColumn) -> tuple[pa.FloatArray, Unreadable]:
    """Read labels: the numbers 0 and 1, booleans, or words for them; null if missing."""
    found, wrong = read_column(column, number)
    if wrong.any():
        words, _ = read_column(column, text)
        place = pc.index_in(pc.utf8_lower(words), value_set=pa.array(LABEL_WORDS))
        found = pc.coalesce(found, pc.bit_wise_and(place, 1).cast(pa.float64()))
        wrong = wrong & place.is_null().to_numpy(zero_copy_only=False)
    numbers = found.fill_null(np.nan).to_numpy(zero_copy_only=False)
    is_label = (numbers == 0) | (numbers == 1)
    return pa.array(numbers.astype(np.float32), mask=~is_label), (wrong | ~np.isnan(numbers)) & ~is_label
