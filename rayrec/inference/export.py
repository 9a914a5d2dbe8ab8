"""From a checkpoint of a run to a model folder, in one process, a table at a time."""

from pathlib import Path

from rayrec.config import Recipe
from rayrec.inference.checkpoint_weights import CheckpointWeights
from rayrec.inference.examples import write_examples
from rayrec.inference.known_items import KnownItems, can_recommend
from rayrec.inference.model_card import model_card
from rayrec.inference.model_folder import Metrics, write_model_folder
from rayrec.inference.predictor import load_model
from rayrec.inference.reference_traffic import ReferenceTraffic
from rayrec.ingest.dataset import Dataset
from rayrec.sources.outbrain.statistics import STATISTICS_FOLDER


def export_checkpoint(checkpoint: Path, output: Path, *, recipe: Recipe, dataset: Dataset, metrics: Metrics) -> None:
    """Write the model folder of `checkpoint`, a folder of torch.distributed.checkpoint, to `output`.

    Each shard is read on its own and written through the map of its table's file, so that memory needs to hold the
    largest shard, not the model.

    Args:
        recipe: That of the run.
        dataset: What the model was trained on; the model folder takes its vocabularies and statistics.
        metrics: Of this checkpoint, by split.

    Raises UserError where the checkpoint lacks a weight of the model or holds it in another shape.
    """
    weights = CheckpointWeights(checkpoint, recipe, dataset.schema)
    statistics = dataset.folder / STATISTICS_FOLDER
    shown = (name for name in (recipe.train.evaluation_split, "test", "train") if _has_rows(dataset, name))
    split = next(shown, None)

    def complete(folder: Path) -> None:
        predictor = load_model(folder)
        write_examples(predictor)
        if split is not None:
            ReferenceTraffic.measure(dataset, split, predictor).save(folder)

    write_model_folder(
        output,
        schema=weights.schema,
        tables=weights.tables,
        recipe=recipe,
        metrics=metrics,
        card=model_card(recipe, weights.schema, weights.tables, dataset, metrics, checkpoint.name),
        vocabularies_in=dataset.folder,
        dense=weights.dense(),
        fill_table=weights.fill_table,
        known_items=KnownItems.read(dataset) if can_recommend(weights.schema) else None,
        statistics=statistics if statistics.is_dir() else None,
        complete=complete,
    )


def _has_rows(dataset: Dataset, name: str) -> bool:
    split = dataset.manifest.splits.get(name)
    return split is not None and split.rows > 0
