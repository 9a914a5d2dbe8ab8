"""Outbrain's tables as a source."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayrec.common.progress import Progress
from rayrec.recipes import Recipe
from rayrec.sources.outbrain.config import DisplayPreprocessConfig
from rayrec.sources.outbrain.lookup import AdLookup
from rayrec.sources.outbrain.preprocessing.job import DisplayJob
from rayrec.sources.outbrain.synthetic.generator import generate
from rayrec.sources.source import GeneratedData, InputPaths, Source


class OutbrainSource(Source):
    """Displays of ads; the features of an ad in a display are joined from nine tables."""

    generated = GeneratedData("", "displays", "validation")

    def job(self, recipe: Recipe, inputs: InputPaths) -> DisplayJob:
        assert isinstance(recipe.preprocess, DisplayPreprocessConfig)
        return DisplayJob(recipe.preprocess, inputs)

    def generate(
        self, output: Path, rows: int, *, seed: int, days: int | None, compress: bool, progress: Progress
    ) -> dict[str, Any]:
        truth = generate(output, rows, seed=seed, compress=compress, progress=progress)
        return {"truth": truth.model_dump(mode="json", exclude={"method"})}

    def describe_quality(self, metrics: Mapping[str, float | None], generated: Mapping[str, Any]) -> str:
        best, chance = generated["truth"]["held_out"]["best"], generated["truth"]["held_out"]["random"]
        return (
            f"MAP@12 of the validation split: {metrics['map@12']:.4f}; the generator's clicks allow about {best:.4f} "
            f"at best, ads in random order give about {chance:.4f}."
        )

    def example_request(self, raw: Path) -> dict[str, Any]:
        """The event and the ads of the first display of `clicks_test.csv`."""
        import pyarrow.compute as pc
        from pyarrow import csv

        shown = csv.read_csv(raw / "clicks_test.csv")
        display = shown["display_id"][0]
        ads = shown.filter(pc.equal(shown["display_id"], display))["ad_id"].to_pylist()
        events = csv.read_csv(raw / "events.csv", convert_options=csv.ConvertOptions(null_values=["\\N", ""]))
        (event,) = events.filter(pc.equal(events["display_id"], display)).drop_columns("display_id").to_pylist()
        return {"context": event, "candidates": ads}

    def lookup(self, statistics: Path) -> AdLookup:
        return AdLookup(statistics)


SOURCE = OutbrainSource()
