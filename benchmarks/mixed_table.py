"""A generated table: 13 numbers, 17 categories of 10 to 7,290 values, and a label that depends on them."""

import numpy as np
import pyarrow as pa

LABEL = "label"
NUMBERS, CATEGORIES = 13, 17


def mixed_table(rows: int) -> pa.Table:
    """Return the rows; the log odds of one are a weighted sum of its numbers' logarithms and of an effect a category.

    Some are not a sum's: the first two numbers' product counts, the third counts where it is large, and the fourth by
    the first category.
    """
    rng = np.random.default_rng(0)
    columns: dict[str, pa.Array] = {}
    logarithms = rng.normal(size=(NUMBERS, rows))
    log_odds = 0.1 * rng.normal(size=NUMBERS) @ logarithms
    log_odds += 0.3 * logarithms[0] * logarithms[1] + 0.6 * (logarithms[2] > 1)
    for number, values in enumerate(logarithms):
        columns[f"I{number + 1}"] = pa.array(np.round(np.exp(values) * 10 ** (number % 4), 3))
    for number in range(CATEGORIES):
        size = 10 * 3 ** (number % 7)
        values = np.minimum(rng.zipf(1.3, rows), size) - 1
        log_odds += 0.3 * rng.normal(size=size)[values]
        if number == 0:
            log_odds += 0.3 * rng.normal(size=size)[values] * logarithms[3]
        columns[f"C{number + 1}"] = pa.array([f"v{value}" for value in values])
    chances = 1 / (1 + np.exp(1 + log_odds.mean() - log_odds))
    columns[LABEL] = pa.array((rng.random(rows) < chances).astype(np.int8))
    return pa.table(columns)
