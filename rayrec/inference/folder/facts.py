"""Small JSON files of a model folder that a model may lack."""

from pathlib import Path
from typing import ClassVar, Self

from pydantic import ValidationError

from rayrec.common.errors import UserError
from rayrec.config import Config
from rayrec.inference.folder.model_folder import ModelFolder
from rayrec.store.files import write_json


class ModelFacts(Config):
    """The content of such a file."""

    file: ClassVar[str]
    """The name of the file in a model folder."""

    def save(self, folder: Path) -> None:
        """Write the file into a model folder."""
        write_json(folder / self.file, self.model_dump(mode="json"))

    @classmethod
    def load(cls, model: ModelFolder) -> Self | None:
        """Return the content of a model's file; None if the model has none. Raises UserError if it is damaged."""
        path = model.path(cls.file)
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            raise UserError(f"{path}: damaged; export the model again") from None
