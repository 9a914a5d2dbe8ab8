"""Tables of one's own as a source."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayrec.common.progress import Progress
from rayrec.recipes import Recipe
from rayrec.sources.source import TableSource


class OwnTableSource(TableSource):
    """Files of rows whose columns the recipe names, for the generator as well."""

    generates_from_recipe = True

    def generate_from(
        self,
        recipe: Recipe,
        output: Path,
        rows: int,
        *,
        seed: int,
        cardinality: Mapping[str, int],
        compress: bool,
        progress: Progress,
    ) -> dict[str, Any]:
        from rayrec.sources.table.generator import generate

        truth = generate(
            output, rows, recipe=recipe, seed=seed, cardinality=cardinality, compress=compress, progress=progress
        )
        return {"truth": truth.model_dump(mode="json", exclude={"method"})}


SOURCE = OwnTableSource()
