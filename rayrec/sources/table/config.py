"""The section `source` of a recipe for a table of one's own."""

from typing import Literal

from rayrec.config.table import TableSourceConfig


class TableConfig(TableSourceConfig):
    """Files of rows with named columns: delimited text, JSON lines or Parquet."""

    kind: Literal["table"] = "table"


CONFIG = TableConfig
