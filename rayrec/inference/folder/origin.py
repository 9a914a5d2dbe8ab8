"""What a model was made from: `origin.json` of a model folder."""

from pathlib import Path

from pydantic import ValidationError

from rayrec.common.errors import UserError
from rayrec.common.files import write_json
from rayrec.config import Config
from rayrec.inference.folder.model_folder import ModelFolder

ORIGIN_FILE = "origin.json"


class Origin(Config):
    """The content of `origin.json`."""

    run: str
    """The run folder, or its URI."""
    checkpoint: str
    """The name of the checkpoint."""
    dataset: str
    """The fingerprint of the dataset that it was trained on (`Dataset.fingerprint`)."""
    data_time: float | None = None
    """When the newest row happened that it was trained on, in seconds since 1970; None if rows have no time."""

    def save(self, folder: Path) -> None:
        """Write the file into a model folder."""
        write_json(folder / ORIGIN_FILE, self.model_dump(mode="json"))

    @classmethod
    def load(cls, model: ModelFolder) -> "Origin | None":
        """The origin of a model; None if its folder does not tell. Raises UserError if the file is damaged."""
        path = model.path(ORIGIN_FILE)
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            raise UserError(f"{path}: damaged; export the model again") from None
