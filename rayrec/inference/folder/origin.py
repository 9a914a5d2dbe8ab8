"""Origin of a model: `origin.json` of a model folder."""

from rayrec.inference.folder.facts import ModelFacts

ORIGIN_FILE = "origin.json"


class Origin(ModelFacts):
    """The content of `origin.json`."""

    file = ORIGIN_FILE

    run: str
    """The run folder, or its URI."""
    checkpoint: str
    """The name of the checkpoint."""
    dataset: str
    """The fingerprint of the dataset that it was trained on (`Dataset.fingerprint`)."""
    data_time: float | None = None
    """When the newest row happened that it was trained on, in seconds since 1970; None if rows have no time."""
