"""A job's progress that keeps what it was told."""

from rayrec.common.progress import Progress


class Messages(Progress):
    """Keeps the lines that stay."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)
