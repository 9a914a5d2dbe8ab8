"""From a checkpoint of a run to a model folder, in one process, a table at a time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rayrec.common.files import write_atomically
from rayrec.inference.folder.checkpoint_weights import CheckpointWeights
from rayrec.inference.folder.examples import write_examples
from rayrec.inference.folder.model_card import model_card, tables_section
from rayrec.inference.folder.model_folder import CARD_FILE, Metrics, write_model_folder
from rayrec.inference.folder.precision_loss import LabelledScores, compare
from rayrec.inference.folder.reference_traffic import ReferenceTraffic
from rayrec.inference.folder.table_files import TablePrecision, quantise_tables
from rayrec.inference.known_items import KnownItems, can_recommend
from rayrec.inference.predictor import load_model
from rayrec.ingest.dataset import STATISTICS_FOLDER, Dataset
from rayrec.models.common.tables import EmbeddingTable
from rayrec.recipes import Recipe


def export_checkpoint(
    checkpoint: Path,
    output: Path,
    *,
    recipe: Recipe,
    dataset: Dataset,
    metrics: Metrics,
    tables: TablePrecision = "fp32",
) -> dict[str, Any] | None:
    """Write the model folder of `checkpoint`, a folder of torch.distributed.checkpoint, to `output`.

    Each shard is read on its own and written through the map of its table's file, so that memory needs to hold the
    largest shard, not the model.

    Args:
        recipe: That of the run.
        dataset: What the model was trained on; the model folder takes its vocabularies and statistics.
        metrics: Of this checkpoint, by split.
        tables: What the tables are stored in; less than fp32 is compared with it on the rows of a split.

    Returns that comparison (`precision_loss.compare`, with the name of the split); None for fp32, or without rows whose
    labels are known. Raises UserError if the checkpoint lacks a weight of the model or holds it in another shape.
    """
    weights = CheckpointWeights(checkpoint, recipe, dataset.schema)
    statistics = dataset.folder / STATISTICS_FOLDER
    shown = (name for name in (recipe.train.evaluation_split, "test", "train") if _has_rows(dataset, name))
    split = next(shown, None)

    loss: dict[str, Any] | None = None

    def complete(folder: Path) -> None:
        nonlocal loss
        if tables != "fp32":
            loss = _with_smaller_tables(folder, weights.tables, tables, dataset, recipe.train.evaluation_split)
            card = (folder / CARD_FILE).read_text()
            write_atomically(folder / CARD_FILE, f"{card}\n{tables_section(tables, loss)}")
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
    return loss


def _with_smaller_tables(
    folder: Path, tables: Sequence[EmbeddingTable], precision: TablePrecision, dataset: Dataset, preferred: str
) -> dict[str, Any] | None:
    """Quantise a folder's tables; what that changed on `preferred`, or else another split with labels, if any."""
    splits = sorted(dataset.evaluation_splits, key=lambda name: name != preferred)
    if not splits:
        quantise_tables(folder, tables, precision)
        return None
    before = LabelledScores(load_model(folder), dataset, splits[0])
    quantise_tables(folder, tables, precision)
    after = LabelledScores(load_model(folder), dataset, splits[0])
    return {"split": splits[0], **compare(before, after)}


def _has_rows(dataset: Dataset, name: str) -> bool:
    split = dataset.manifest.splits.get(name)
    return split is not None and split.rows > 0
