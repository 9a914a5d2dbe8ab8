"""Outbrain's tables as a source, and the features of its ads for requests."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from rayrec.common.progress import Progress
from rayrec.common.text import format_number
from rayrec.features.raw_columns import STATISTICS_FOLDER
from rayrec.ingest.dataset import Dataset
from rayrec.recipes import Recipe
from rayrec.sources.generated_files import GeneratorOptions
from rayrec.sources.outbrain.config import DisplayPreprocessConfig
from rayrec.sources.outbrain.display_job import DisplayJob
from rayrec.sources.outbrain.feature_sets import raw_features
from rayrec.sources.outbrain.features import ROW_SCHEMA
from rayrec.sources.outbrain.generator import generate
from rayrec.sources.outbrain.statistics import Statistics
from rayrec.sources.outbrain.tables import codes_of
from rayrec.sources.source import GeneratedData, InputPaths, Source

if TYPE_CHECKING:
    from rayrec.inference.predictor import Predictor


class AdLookup:
    """Computes the features of ads in a context.

    A context has, all optional: uuid, document_id (the page shown), timestamp (ms, as in events.csv), platform (1 to
    3), geo_location (CC>ST>DMA), traffic_source (1 to 3). A value that was never seen, or a code other than these,
    counts as missing.
    """

    candidate = pa.field("ad_id", pa.int64())
    context = pa.schema(
        [
            field.with_type(pa.int64()) if pa.types.is_integer(field.type) else field
            for field in ROW_SCHEMA
            if field.name != "ad_id"
        ]
    )

    def __init__(self, folder: Path) -> None:
        """`folder` holds the statistics. Raises UserError if they are damaged."""
        self.statistics = Statistics.open(folder)

    def features(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the raw features (n rows) of n rows with the columns of `candidate` and `context`."""
        columns = [codes_of(rows[f.name]) if f.type == pa.int8() else rows[f.name] for f in ROW_SCHEMA]
        return raw_features(self.statistics, pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA))


class OutbrainSource(Source):
    """Displays of ads; the features of an ad in a display are joined from nine tables."""

    generated = GeneratedData("", "displays", "validation")

    def job(self, recipe: Recipe, inputs: InputPaths, parent: Dataset | None = None) -> DisplayJob:
        assert isinstance(recipe.preprocess, DisplayPreprocessConfig)
        return DisplayJob(recipe.preprocess, inputs)

    def generate(self, output: Path, options: GeneratorOptions, progress: Progress) -> dict[str, Any]:
        truth = generate(output, options.rows, seed=options.seed, compress=options.compress, progress=progress)
        return {"truth": truth.model_dump(mode="json", exclude={"method"})}

    def describe_quality(self, metrics: Mapping[str, float | None], generated: Mapping[str, Any]) -> str:
        score, held_out = metrics["map@12"], generated["truth"]["held_out"]
        assert score is not None
        return (
            f"Validation MAP@12: {format_number(score)}; random order gives about {format_number(held_out['random'])}, "
            f"and no model can exceed about {format_number(held_out['best'])} on these generated clicks."
        )

    def example_request(self, raw: Path) -> dict[str, Any]:
        """Return the event and the ads of the first display of `clicks_test.csv`."""
        shown = csv.read_csv(raw / "clicks_test.csv")
        display = shown["display_id"][0]
        ads = shown.filter(pc.equal(shown["display_id"], display))["ad_id"].to_pylist()
        events = csv.read_csv(raw / "events.csv", convert_options=csv.ConvertOptions(null_values=["\\N", ""]))
        (event,) = events.filter(pc.equal(events["display_id"], display)).drop_columns("display_id").to_pylist()
        return {"context": event, "candidates": ads}

    def lookup(self, model: "Predictor") -> AdLookup | None:
        statistics = model.model_folder.path(STATISTICS_FOLDER)
        return AdLookup(statistics) if statistics.is_dir() else None


SOURCE = OutbrainSource()
