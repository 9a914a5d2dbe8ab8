"""The folders of a command that were given as URIs, for the time that it runs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from jobs.request import Request
from rayrec.common.errors import UserError
from rayrec.common.progress import Progress
from rayrec.storage.location import shown, uri_of


@contextmanager
def staged(request: Request, progress: Progress) -> Iterator[None]:
    """Fetch what the request reads, and keep the URI of its output like what the block writes.

    A mistake that the block meets is told with URIs. Raises UserError where a URI cannot be read or written.
    """
    output: Path | None = getattr(request, "output", None)
    folders = [folder for folder in request.reads() if uri_of(folder)]
    if not folders and (output is None or uri_of(output) is None):
        yield
        return
    # Imported where it is needed: it takes a while.
    from rayrec.storage.staged import fetch, mirrored

    with ExitStack() as stack:
        if output is not None:
            stack.enter_context(mirrored(output, continues=request.continues, progress=progress))
        for folder in folders:
            fetch(folder, progress)
        try:
            yield
        except UserError as error:
            raise type(error)(shown(str(error))) from error.__cause__
