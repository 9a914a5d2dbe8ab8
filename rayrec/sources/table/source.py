"""Tables of one's own as a source."""

from pathlib import Path
from typing import Any

from rayrec.common.progress import Progress
from rayrec.sources.generated_files import GeneratorOptions
from rayrec.sources.source import TableSource


class OwnTableSource(TableSource):
    """Files of rows whose columns the recipe names, for the generator as well."""

    generates_from_recipe = True

    def generate(self, output: Path, options: GeneratorOptions, progress: Progress) -> dict[str, Any]:
        from rayrec.sources.table.generator import generate

        truth = generate(output, options, progress)
        return {"truth": truth.model_dump(mode="json", exclude={"method"})}


SOURCE = OwnTableSource()
