"""Criteo's logs as a source."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayrec.common.progress import Progress
from rayrec.common.text import format_number
from rayrec.sources.criteo.config import CATEGORICAL, NUMERIC, SEPARATOR
from rayrec.sources.criteo.generator import SINGLE_FILE, generate
from rayrec.sources.generated_files import GeneratorOptions
from rayrec.sources.source import GeneratedData, TableSource

_LINE = re.compile(
    rf"[01]({SEPARATOR}(-?[0-9]+)?){{{len(NUMERIC)}}}({SEPARATOR}([0-9a-f]{{8}})?){{{len(CATEGORICAL)}}}"
)


class CriteoSource(TableSource):
    """Lines of a label, 13 integers and 26 categories."""

    generated = GeneratedData(SINGLE_FILE, "hash", "test", has_days=True)

    def recognizes(self, lines: Sequence[str]) -> bool:
        return all(map(_LINE.fullmatch, lines))

    def generate(self, output: Path, options: GeneratorOptions, progress: Progress) -> dict[str, Any]:
        truth = generate(output, options, progress)
        return {"truth": truth.model_dump(mode="json", exclude={"files", "method"})}

    def describe_quality(self, metrics: Mapping[str, float | None], generated: Mapping[str, Any]) -> str:
        auc = metrics["auc"]
        assert auc is not None
        best = format_number(generated["truth"]["best_auc"])
        return f"Test AUC: {format_number(auc)}; no model can exceed {best} on these generated clicks."


SOURCE = CriteoSource()
