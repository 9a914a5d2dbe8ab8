"""Progress of long-running work, which the command line shows and a notebook or a test ignores."""

from collections.abc import Mapping
from types import MappingProxyType

NO_FACTS: Mapping[str, str] = MappingProxyType({})


class Progress:
    """Receives the stages of a job, one after the other, and the rows done in each. A subclass shows them."""

    def stage(self, name: str, total: int | None = None) -> None:
        """Begin a stage, and end the previous one, if any. `total` rows are ahead; None if not yet known."""

    def finish(self) -> None:
        """End the current stage; no other one begins yet."""

    def advance(self, rows: int) -> None:
        """Add `rows` rows that are done to the current stage. Called from any thread, a few times a second at most."""

    def note(self, text: str, facts: Mapping[str, str] = NO_FACTS) -> None:
        """Show what is done at the moment, and facts by name, such as the loss; replaces the previous note.

        Facts come by importance: a line of a log has the first four, instead of the rows that are done.
        """

    def message(self, text: str) -> None:
        """Show one line that stays."""


class SilentProgress(Progress):
    """Shows nothing."""
