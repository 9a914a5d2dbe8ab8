"""Tables of one's own as a source."""

from rayrec.sources.source import TableSource

SOURCE = TableSource()
