"""How long-running work says what it is doing; the CLI draws it, a notebook or a test stays silent."""

from typing import Protocol


class Progress(Protocol):
    """Told of a job's stages, one after the other, and of the rows done in each."""

    def stage(self, name: str, total: int | None = None) -> None:
        """A stage begins and the one before it, if any, is done. `total` rows are ahead; None where not yet known."""

    def finish(self) -> None:
        """The current stage is done, and no other begins yet."""

    def advance(self, rows: int) -> None:
        """`rows` more rows of the current stage are done. Called from any thread, a few times a second at most."""

    def note(self, text: str) -> None:
        """Facts beside the current stage, such as the loss; replaces the note before it."""

    def message(self, text: str) -> None:
        """One line that stays."""


class SilentProgress:
    """Shows nothing."""

    def stage(self, name: str, total: int | None = None) -> None:
        pass

    def finish(self) -> None:
        pass

    def advance(self, rows: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def message(self, text: str) -> None:
        pass
