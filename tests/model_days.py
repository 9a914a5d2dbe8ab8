"""A model from day to day, without training: values are listed and removed, some rows of its tables change.

days = ModelDays(tmp_path / "whole")
days.write("1"); days.pass_day(); days.write("2")
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from rayrec.config import ModelConfig
from rayrec.config.transforms import Fill, HashIds, HashUnlisted, Log, Vocabulary
from rayrec.features.schema import CategoricalFeature, MultiHotFeature, NumericFeature, Schema
from rayrec.features.vocabulary import VOCABULARY_SCHEMA, content_hash, write_whole_vocabulary
from rayrec.inference.examples import write_examples
from rayrec.inference.folder.model_folder import ModelFolder, new_model_folder
from rayrec.inference.folder.table_files import TablePrecision, quantise_tables
from rayrec.inference.predictor import Predictor
from rayrec.models.common.embedding_tables import EmbeddingTable
from rayrec.models.dlrm.config import DLRMConfig
from rayrec.models.registry import build_model
from rayrec.store.artifact import Parent
from tests.builders import make_recipe

CONFIG = DLRMConfig(embedding_dim=8, bottom_mlp=(16, 8), top_mlp=(16,))
CAPPED, UNLISTED = 12, 5
"""Rows of the capped table C2, and buckets of unlisted values of C3."""


class ModelDays:
    """A model whose state is that of a day; features I1, I2, C1 ... C4, M1, of which C4 reads the table of C1."""

    def __init__(
        self,
        folder: Path,
        *,
        seed: int = 0,
        values: int = 30,
        plain: int = 0,
        config: ModelConfig = CONFIG,
        settings: Sequence[str] = (),
    ) -> None:
        """`folder`: where model folders are written. `values`: how many each vocabulary lists. `plain`: the number of
        further features P1, ... as C1. `settings`: overrides of the recipe's section `serve`, `key=value`."""
        self.folder, self.config = folder, config
        self.day = 0
        self._plain = [f"P{i + 1}" for i in range(plain)]
        names = ("C1", "C2", "C3", "M1", *self._plain)
        self.values = {name: [f"{name}-{i}" for i in range(values)] for name in names}
        self._serve = dict(setting.split("=") for setting in settings)
        self._rng = np.random.default_rng(seed)
        self._tables: dict[str, torch.Tensor] = {}
        self._dense: dict[str, torch.Tensor] = {}
        self._follow_schema()

    @property
    def schema(self) -> Schema:
        """The schema of the day."""
        listed = {
            name: Vocabulary(
                file=f"vocabulary/{name}.parquet",
                size=len(values),
                content_hash=f"{content_hash(pa.array(values, pa.string()), 1):016x}",
            )
            for name, values in self.values.items()
        }
        rows = {name: len(values) + 1 for name, values in self.values.items()}
        features = (
            *(NumericFeature(name=name, transforms=(Log(), Fill())) for name in ("I1", "I2")),
            CategoricalFeature(name="C1", cardinality=rows["C1"], transforms=(listed["C1"],)),
            CategoricalFeature(name="C2", cardinality=CAPPED, transforms=(listed["C2"], HashIds(buckets=CAPPED))),
            CategoricalFeature(
                name="C3", cardinality=rows["C3"] + UNLISTED, transforms=(listed["C3"], HashUnlisted(buckets=UNLISTED))
            ),
            CategoricalFeature(name="C4", cardinality=rows["C1"], transforms=(listed["C1"],), table="C1"),
            MultiHotFeature(name="M1", cardinality=rows["M1"], transforms=(listed["M1"],), hotness=3, pooling="mean"),
            *(CategoricalFeature(name=n, cardinality=rows[n], transforms=(listed[n],)) for n in self._plain),
        )
        return Schema(label="label", features=features)

    def pass_day(self, new: int = 4, removed: int = 2, changed: int = 6) -> None:
        """Let each vocabulary list `new` values and lose `removed` ones, and change rows of each table."""
        self.day += 1
        for name, values in self.values.items():
            listed = np.flatnonzero([value != "" for value in values])
            for gone in self._rng.choice(listed, removed, replace=False):
                # The first one comes back later under another id.
                values[gone] = ""
            values.extend([f"{name}-day{self.day}-{i}" for i in range(new)])
            if self.day > 2:
                values.append(f"{name}-0" if f"{name}-0" not in values else f"{name}-extra{self.day}")
        self._follow_schema()
        for weights in self._tables.values():
            rows = self._rng.choice(len(weights), min(changed, len(weights)), replace=False)
            weights[rows] = torch.from_numpy(self._rng.normal(size=(len(rows), weights.shape[1])).astype(np.float32))
        for weights in self._dense.values():
            weights.add_(torch.from_numpy(self._rng.normal(scale=0.01, size=tuple(weights.shape)).astype(np.float32)))

    def write(self, name: str, precision: TablePrecision = "fp32") -> Path:
        """Write the whole model folder `name`; returns its path."""
        data, folder = self.folder / f".{name}-data", self.folder / name
        for feature, values in self.values.items():
            ids = np.arange(1, len(values) + 1)
            rows = pa.RecordBatch.from_arrays(
                [pa.array(values, pa.large_string()), pa.array(ids), pa.array(1000 - ids)],
                names=VOCABULARY_SCHEMA.names,
            )
            (data / "vocabulary").mkdir(parents=True, exist_ok=True)
            write_whole_vocabulary([rows], data / f"vocabulary/{feature}.parquet")
        model = build_model(self.config, self.schema, device="meta")
        recipe = make_recipe(name="days", model=self.config, serve=self._serve)

        def fill_table(table: EmbeddingTable, weights: torch.Tensor) -> None:
            weights[:, : table.dim] = self._tables[table.name]

        with new_model_folder(
            folder,
            schema=model.schema,
            tables=model.tables,
            recipe=recipe,
            metrics={"test": {"auc": 0.7 + 0.01 * self.day}},
            card=f"# Day {self.day}\n",
            vocabularies_in=data,
            dense=self._dense,
            fill_table=fill_table,
            made_of={"checkpoint": Parent(id=f"day-{self.day}", folder=Path("run"))},
            data_time=1000.0 * self.day,
        ) as written:
            if precision != "fp32":
                quantise_tables(written, model.tables, precision)
            write_examples(Predictor(ModelFolder.open_unfinished(written)))
        return folder

    def open(self, name: str) -> ModelFolder:
        """Return the whole model folder `name`."""
        return ModelFolder.open(self.folder / name)

    def _follow_schema(self) -> None:
        """Append the rows that the schema asks for, and draw the dense weights on the first day."""
        model = build_model(self.config, self.schema, seed=1)
        for table in model.tables:
            held = self._tables.get(table.name, torch.empty(0, table.dim))
            drawn = self._rng.normal(size=(table.rows - len(held), table.dim)).astype(np.float32)
            self._tables[table.name] = torch.cat([held, torch.from_numpy(drawn)])
        if not self._dense:
            self._dense = {name: value.clone() for name, value in model.dense_network.state_dict().items()}


def raw_rows(days: ModelDays, rows: int, seed: int = 0) -> list[dict[str, object]]:
    """Raw rows of values that are listed, were listed, or never were, some of them missing."""
    rng = np.random.default_rng([seed, rows])
    known = {
        name: [*filter(None, values), f"{name}-0", f"{name}-1", f"{name}-new", ""]
        for name, values in days.values.items()
    }
    drawn: list[dict[str, object]] = []
    for _ in range(rows):
        one = {name: str(rng.choice(values)) for name, values in known.items()}
        listed = [str(value) for value in rng.choice(known["M1"], int(rng.integers(0, 4)))]
        drawn.append(
            {**one, "C4": str(rng.choice(known["C1"])), "M1": listed, "I1": int(rng.integers(0, 100)), "I2": None}
        )
    return drawn
