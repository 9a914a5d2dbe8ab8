"""Criteo's logs as a source."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from rayrec.common.progress import Progress
from rayrec.preprocessing.rows.text_reader import RawColumns
from rayrec.raw.blocks import ParsedLines
from rayrec.sources.criteo.generator import SINGLE_FILE, generate
from rayrec.sources.criteo.layout import CATEGORICAL, LABEL, NUMERIC, day_of
from rayrec.sources.criteo.parse import FEATURES_SCHEMA, LABELLED_SCHEMA, has_label, parse_lines
from rayrec.sources.source import GeneratedData, TextExamplesSource


class CriteoText:
    """The layout of a line."""

    columns = RawColumns(LABEL, NUMERIC, CATEGORICAL)

    def parse_lines(self, data: bytes, is_labelled: bool) -> ParsedLines:
        return parse_lines(data, is_labelled)

    def has_label(self, line: bytes) -> bool:
        return has_label(line)

    def raw_schema(self, is_labelled: bool) -> pa.Schema:
        return LABELLED_SCHEMA if is_labelled else FEATURES_SCHEMA

    def day_of(self, file_name: str) -> int | None:
        return day_of(file_name)


class CriteoSource(TextExamplesSource):
    """Lines of a label, 13 integers and 26 categories."""

    generated = GeneratedData(SINGLE_FILE, "hash", "test")

    def generate(
        self, output: Path, rows: int, *, seed: int, days: int | None, compress: bool, progress: Progress
    ) -> dict[str, Any]:
        truth = generate(output, rows, seed=seed, days=days, compress=compress, progress=progress)
        return {"truth": truth.model_dump(mode="json", exclude={"files", "method"})}

    def describe_quality(self, metrics: Mapping[str, float | None], generated: Mapping[str, Any]) -> str:
        best = generated["truth"]["best_auc"]
        return f"AUC of the test split: {metrics['auc']:.4f}; the generator's clicks allow {best:.4f} at best."


SOURCE = CriteoSource(CriteoText())
