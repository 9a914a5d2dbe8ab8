"""Criteo's logs as a source."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayrec.common.progress import Progress
from rayrec.sources.criteo.generator import SINGLE_FILE, generate
from rayrec.sources.source import GeneratedData, TableSource


class CriteoSource(TableSource):
    """Lines of a label, 13 integers and 26 categories."""

    generated = GeneratedData(SINGLE_FILE, "hash", "test", has_days=True)

    def generate(
        self, output: Path, rows: int, *, seed: int, days: int | None, drift: float, compress: bool, progress: Progress
    ) -> dict[str, Any]:
        truth = generate(output, rows, seed=seed, days=days, drift=drift, compress=compress, progress=progress)
        return {"truth": truth.model_dump(mode="json", exclude={"files", "method"})}

    def describe_quality(self, metrics: Mapping[str, float | None], generated: Mapping[str, Any]) -> str:
        best = generated["truth"]["best_auc"]
        return f"AUC of the test split: {metrics['auc']:.4f}; the generator's clicks allow {best:.4f} at best."


SOURCE = CriteoSource()
