"""The content of `truth.json` beside generated rows of Criteo's layout."""

from rayrec.sources.generated_truth import BINS, RowsTruth


class FileTruth(RowsTruth):
    """Metrics of the true probabilities on the rows of a file."""

    path: str
    """Relative to the folder of `truth.json`."""
    new_values: float
    """Share of the categorical values, missing ones aside, that the click model had on no earlier day."""


class GeneratedTruth(RowsTruth):
    """The content of `truth.json`, of generated data: for all rows, and for those of each file."""

    source: str
    seed: int
    drift: float
    """How much values and preferences change from day to day; 0 if the rows of all files are alike."""
    files: tuple[FileTruth, ...]
    method: str = (
        "Labels are drawn from a known click model; on average no model ranks the rows better than the true "
        "probabilities do. AUC: of the true probabilities of all rows, from a histogram of "
        f"{BINS} equal bins, pairs within a bin counted half. Log loss: exact."
    )
