"""Small model folders that tests share, with vocabularies and known weights, written without training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from rayrec.config import ModelConfig, ServeConfig
from rayrec.config.transforms import Fill, HashIds, Log, Vocabulary
from rayrec.features.encoder import FeatureEncoder
from rayrec.features.raw_columns import STATISTICS_FOLDER
from rayrec.features.schema import CategoricalFeature, InteractionColumns, MultiHotFeature, NumericFeature, Schema
from rayrec.inference.examples import Examples, write_examples, write_reference_rows
from rayrec.inference.folder.facts import KnownItems
from rayrec.inference.folder.model_folder import ModelFolder, copy, finish_model, new_model_folder
from rayrec.inference.folder.versions import ModelManifest
from rayrec.inference.predictor import Predictor
from rayrec.models.common.batch import Batch
from rayrec.models.common.embedding_tables import EmbeddingTable
from rayrec.models.common.ranking import RankingModel
from rayrec.models.dcnv2.config import DCNv2Config
from rayrec.models.dlrm.config import DLRMConfig
from rayrec.models.neumf.config import NeuMFConfig
from rayrec.models.registry import build_model
from rayrec.models.wide_deep.config import WideDeepConfig
from rayrec.recipes import CONFIG_FILE
from rayrec.sources.interactions.config import InteractionSourceConfig
from rayrec.sources.outbrain.config import OutbrainSourceConfig
from rayrec.sources.table.config import TableConfig
from tests.builders import make_recipe
from tests.table_schema import SCHEMA, write_statistics
from tests.vocabularies import write_vocabulary

MODELS: dict[str, ModelConfig] = {
    "dlrm": DLRMConfig(embedding_dim=8, bottom_mlp=(16, 8), top_mlp=(16,)),
    "dcnv2": DCNv2Config(embedding_dim=8, bottom_mlp=(16, 8), cross_layers=2, cross_rank=4, top_mlp=(16,)),
    "wide_deep": WideDeepConfig(embedding_dim=8, embedding_dims={"C2": 3}, mlp=(16, 8), dropout=0.5),
    "wide": WideDeepConfig(part="wide"),
    "deep": WideDeepConfig(part="deep", embedding_dim=8, combiner="mean", mlp=(16, 8)),
}


def make_raw_schema(folder: Path, *, numeric: int = 3, categorical: int = 4, multi_hot: int = 0) -> Schema:
    """Return a schema with the transforms of Criteo, its vocabularies written to `folder`.

    Features I1.., C1.., M1.. The values of feature X are X-0, X-1, ...; those of C1 are hashed to fewer rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables: list[CategoricalFeature] = []
    for index in range(categorical + multi_hot):
        name = f"C{index + 1}" if index < categorical else f"M{index - categorical + 1}"
        size = 20 + 13 * index
        vocabulary = Vocabulary(file=f"vocabulary/{name}.parquet", size=size)
        write_vocabulary(folder / vocabulary.file, [f"{name}-{i}" for i in range(size)], range(size, 0, -1))
        if index == 0:
            hashed = (vocabulary, HashIds(buckets=16))
            tables.append(CategoricalFeature(name=name, cardinality=16, transforms=hashed))
        elif index < categorical:
            tables.append(CategoricalFeature(name=name, cardinality=size + 1, transforms=(vocabulary,)))
        else:
            pooling = ("sum", "mean")[index % 2]
            tables.append(
                MultiHotFeature(name=name, cardinality=size + 1, transforms=(vocabulary,), hotness=4, pooling=pooling)
            )
    numbers = [NumericFeature(name=f"I{i + 1}", transforms=(Log(), Fill())) for i in range(numeric)]
    schema = Schema(label="label", features=(*numbers, *tables))
    schema.save(folder)
    return schema


def make_model_folder(
    folder: Path,
    *,
    model: str = "dlrm",
    config: ModelConfig | None = None,
    numeric: int = 3,
    categorical: int = 4,
    multi_hot: int = 0,
    seed: int = 0,
    replicas: int = 1,
) -> RankingModel:
    """Write a model folder with random weights; returns the model that holds the same weights in memory.

    `config` instead of the small one of `model`; `replicas` is what its recipe says of serving.
    """
    data = folder.parent / f"{folder.name}-data"
    schema = make_raw_schema(data, numeric=numeric, categorical=categorical, multi_hot=multi_hot)
    return _write(folder, data, schema, config or MODELS[model], f"{model}-test", seed, replicas=replicas)


def make_recommender_folder(
    folder: Path,
    *,
    users: int = 30,
    items: int = 50,
    seed: int = 0,
    config: ModelConfig | None = None,
    withdrawn: Sequence[int] = (),
) -> RankingModel:
    """A model folder of NeuMF, or of `config`: users u-0, u-1, ... and items i-0, ...; user number n knows the items
    below n, in steps of 3, by their position in the vocabulary; the last of them is the oldest event, the first one the
    newest. The items `withdrawn` have left the catalogue.
    """
    data = folder.parent / f"{folder.name}-data"
    data.mkdir(parents=True)
    features = []
    for name, size in (("user", users), ("item", items)):
        vocabulary = Vocabulary(file=f"vocabulary/{name}.parquet", size=size)
        gone = withdrawn if name == "item" else ()
        values = ["" if i in gone else f"{name[0]}-{i}" for i in range(size)]
        write_vocabulary(data / vocabulary.file, values, range(size, 0, -1))
        features.append(CategoricalFeature(name=name, cardinality=size + 1, transforms=(vocabulary,)))
    schema = Schema(label="label", features=tuple(features), interactions=InteractionColumns(user="user", item="item"))
    known = [
        np.arange(1, min(user, items + 1), 3, dtype=np.int32)[::-1] if user else np.empty(0, np.int32)
        for user in range(users + 1)
    ]
    first = np.cumsum([0, *map(len, known)])
    config = config or NeuMFConfig(factors=4, mlp=(8, 4), dropout=0.0)
    known_items = KnownItems(first, np.concatenate(known), first[:-1])
    return _write(
        folder, data, schema, config, f"{config.kind}-test", seed, known_items, source=InteractionSourceConfig()
    )


def write_display_model(folder: Path, schema: Schema, statistics: Path, seed: int = 0) -> RankingModel:
    """Return a model folder whose features are looked up in a folder of statistics."""
    config = DLRMConfig(embedding_dim=4, bottom_mlp=(8, 4), top_mlp=(8,))
    return _write(
        folder,
        statistics.parent,
        schema,
        config,
        "displays-test",
        seed,
        statistics=statistics,
        source=OutbrainSourceConfig(),
    )


def write_table_model(folder: Path, seed: int = 0, **sections: Any) -> RankingModel:
    """Return a model folder of `tests.table_schema`; `sections` of its recipe replace those that it would have."""
    data = folder.parent / f"{folder.name}-data"
    write_statistics(data)
    config = WideDeepConfig(embedding_dim=8, embedding_dims={"listed": 3}, mlp=(16, 8))
    sections = {"source": TableConfig(label="label", candidate="text", features=()), **sections}
    return _write(folder, data, SCHEMA, config, "table-test", seed, statistics=data / STATISTICS_FOLDER, **sections)


def _write(
    folder: Path,
    data: Path,
    schema: Schema,
    config: ModelConfig,
    name: str,
    seed: int,
    known_items: KnownItems | None = None,
    statistics: Path | None = None,
    replicas: int = 1,
    **sections: Any,
) -> RankingModel:
    network = build_model(config, schema, seed=seed)
    # The published initial tables are so small that a wrong row would hardly change a score.
    torch.manual_seed(seed)
    for table in network.tables:
        tables_of(network)[table.name].data[:, : table.dim].normal_()

    def fill_table(table: EmbeddingTable, weights: torch.Tensor) -> None:
        weights.copy_(tables_of(network)[table.name])

    with new_model_folder(
        folder,
        schema=network.schema,
        tables=network.tables,
        recipe=make_recipe(name=name, model=config, serve=ServeConfig(replicas=replicas), **sections),
        metrics={"test": {"auc": 0.75}},
        card="# A model of the tests\n",
        vocabularies_in=data,
        dense=network.dense_network.state_dict(),
        fill_table=fill_table,
    ) as written:
        if known_items is not None:
            known_items.save(written)
        if statistics is not None:
            copy(statistics, written / STATISTICS_FOLDER)
        predictor = Predictor(ModelFolder.open_unfinished(written))
        write_examples(predictor)
        examples = Examples.load(written)
        if examples.verb == "predict":
            write_reference_rows(predictor, predictor.encode(predictor.columns_of(examples.instances)))
    return network.eval()


def set_lists(folder: Path, **recommend: Any) -> None:
    """Change `serve.recommend` in the recipe of a model folder, as people do."""
    path = folder / CONFIG_FILE
    content = yaml.safe_load(path.read_text())
    content["serve"]["recommend"] = recommend
    path.write_text(yaml.safe_dump(content))


def finish(folder: Path) -> None:
    """Write the manifest of a model folder again, as it was changed on purpose."""
    finish_model(folder, ModelManifest.load(folder))


def tables_of(model: RankingModel) -> dict[str, torch.Tensor]:
    """Return the embedding tables of an unsharded model, by name."""
    return {name: bag.weight for name, bag in model.embeddings.embedding_bags.items()}


def scores_of_the_model(model: RankingModel, predictor: Predictor, rows: list[dict[str, Any]]) -> NDArray[np.float32]:
    """Return the scores of the model itself over one batch of raw rows, which is put together without the predictor."""
    schema = predictor.schema
    columns = FeatureEncoder(schema, predictor.folder).encode(predictor.raw_rows.from_rows(rows)).to_pydict()
    ids: list[int] = []
    lengths: list[int] = []
    weights: list[float] = []
    for feature in schema.categorical:
        is_list = isinstance(feature, MultiHotFeature)
        has_weights = is_list and feature.weights is not None
        for value in columns[feature.name]:
            bag = value if is_list else [value]
            ids += [element["id"] for element in bag] if has_weights else bag
            weights += [element["weight"] if has_weights else 1.0 for element in bag]
            lengths.append(len(bag))
    names = [feature.name for feature in schema.categorical]
    sparse = KeyedJaggedTensor.from_lengths_sync(
        names,
        torch.tensor(ids),
        torch.tensor(lengths, dtype=torch.int32),
        torch.tensor(weights) if schema.weighted else None,
    )
    blocks = [np.array(columns[f.name], np.float32).reshape(len(rows), -1) for f in schema.dense]
    dense = torch.from_numpy(np.concatenate(blocks, axis=1)) if blocks else torch.empty(len(rows), 0)
    with torch.no_grad():
        logits = model(Batch(dense, sparse, torch.zeros(len(rows)), torch.ones(len(rows))))
    scores: NDArray[np.float32] = torch.sigmoid(logits).numpy()
    return scores


def make_raw_rows(schema: Schema, rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Raw rows with values missing, unknown, listed; some rows leave a feature out, some say null."""
    rng = np.random.default_rng([seed, rows])
    return [
        {feature.name: _value(feature, rng) for feature in schema.features if rng.random() > 0.1} for _ in range(rows)
    ]


def _value(feature: Any, rng: np.random.Generator) -> int | float | str | Sequence[str] | None:
    if rng.random() < 0.1:
        return None
    if isinstance(feature, NumericFeature):
        return int(rng.integers(-5, 1000)) if rng.random() < 0.8 else float(rng.random())
    # Some beyond the vocabulary.
    values = [f"{feature.name}-{i}" for i in rng.integers(0, 90, 4)]
    return values[: int(rng.integers(0, 5))] if isinstance(feature, MultiHotFeature) else values[0]
