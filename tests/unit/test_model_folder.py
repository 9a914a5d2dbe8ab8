"""The model folder: what is written is read; what does not fit is one line that names the file."""

import gc
import json
import re
import resource
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from rayrec.common.errors import UserError
from rayrec.config.transforms import Vocabulary
from rayrec.features.schema import CategoricalFeature, Schema
from rayrec.inference.folder.model_folder import ModelFolder, finish_model, new_model_folder, table_file
from rayrec.inference.folder.versions import ModelManifest
from rayrec.inference.predictor import load_model
from rayrec.models.common.embedding_tables import EmbeddingTable, UniformByRows
from rayrec.models.dlrm.config import DLRMConfig
from tests.builders import make_recipe
from tests.model_folders import make_model_folder, tables_of


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    make_model_folder(folder, multi_hot=1)
    return folder


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def test_round_trip(tmp_path: Path) -> None:
    model = make_model_folder(tmp_path / "model", multi_hot=2)
    folder = ModelFolder.open(tmp_path / "model")
    assert folder.schema == model.schema
    assert folder.recipe.name == "dlrm-test"
    assert folder.metrics == {"test": {"auc": 0.75}}
    assert [table.name for table in folder.tables] == [feature.name for feature in folder.schema.categorical]
    for table in folder.tables:
        assert torch.equal(folder.table(table), tables_of(model)[table.name])
    dense = folder.dense()
    expected = model.dense_network.state_dict()
    assert dense.keys() == expected.keys()
    assert all(torch.equal(dense[name], expected[name]) for name in expected)
    files = {path.relative_to(folder.folder).as_posix() for path in folder.folder.rglob("*") if path.is_file()}
    assert {"schema.json", "config.yaml", "metrics.json", "MODEL_CARD.md", "vocabulary/C1.parquet"} <= files


def test_an_existing_folder_stays(whole: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    with pytest.raises(UserError, match="already exists"):
        make_model_folder(whole)
    assert before == {path: path.stat().st_mtime_ns for path in whole.rglob("*")}


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail(table: EmbeddingTable, weights: torch.Tensor) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        _write(tmp_path / "model", _table("C1", rows=5, dim=2), fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../../escape", "/absolute", "a/b", "..", "with space", "é"])
def test_a_table_name_never_leaves_the_folder(tmp_path: Path, name: str) -> None:
    table, values = _table(name, rows=3, dim=4), torch.arange(12.0).view(3, 4)
    _write(tmp_path / "model", table, lambda _, weights: weights.copy_(values))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    if "." in name:
        with pytest.raises(UserError, match="cannot name an embedding table"):
            ModelFolder.open(tmp_path / "model")
    else:
        assert len(list((tmp_path / "model/weights/tables").iterdir())) == 1
        assert torch.equal(ModelFolder.open(tmp_path / "model").table(table), values)


@pytest.mark.parametrize("file", ["../outside.parquet", "/etc/passwd", "vocabulary/../../outside"])
def test_a_vocabulary_never_leaves_the_folder(copied: Path, file: str) -> None:
    schema = Schema.load(copied)
    feature = schema.categorical[1].model_copy(update={"transforms": (Vocabulary(file=file, size=1),)})
    features = tuple(feature if f.name == feature.name else f for f in schema.features)
    schema.model_copy(update={"features": features}).save(copied)
    finish_model(copied, ModelManifest())
    with pytest.raises(UserError, match="lies outside the folder"):
        load_model(copied)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


def _save_table(path: Path, tensors: dict[str, torch.Tensor], version: str | None = "1") -> None:
    save_file(tensors, path, metadata={"format": "pt"} | ({"rayrec_version": version} if version else {}))


def _set_version(folder: Path) -> None:
    content = json.loads((folder / "schema.json").read_text())
    (folder / "schema.json").write_text(json.dumps({**content, "version": 1}))


TABLE = table_file("C2")
SIZE = 34  # rows of C2: 20 + 13 values and the missing one
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no tables": (lambda f: shutil.rmtree(f / "weights"), "not a model folder"),
    "no schema": (lambda f: (f / "schema.json").unlink(), "schema.json: missing"),
    "schema of another version": (_set_version, "schema.json: written by another version of rayrec"),
    "schema is no JSON": (lambda f: (f / "schema.json").write_text("{"), "schema.json: "),
    "no config": (lambda f: (f / "config.yaml").unlink(), "config.yaml: "),
    "config runs code": (
        lambda f: (f / "config.yaml").write_text("name: !!python/object/apply:os.system ['exit 1']"),
        "config.yaml, line 1",
    ),
    "metrics is no JSON": (lambda f: (f / "metrics.json").write_text("nan?"), "metrics.json: not JSON"),
    "no metrics": (lambda f: (f / "metrics.json").unlink(), "metrics.json: missing"),
    "no vocabulary": (lambda f: (f / "vocabulary/C2.parquet").unlink(), "C2.parquet: missing"),
    "no index": (lambda f: (f / "vocabulary/C2.arrow").unlink(), "C2.arrow: missing"),
    "a table is missing": (lambda f: (f / TABLE).unlink(), f"{TABLE}: missing"),
    "a table is cut short": (lambda f: _truncate(f / TABLE), f"{TABLE}: damaged"),
    "a table is a pickle": (lambda f: torch.save({"weight": torch.zeros(SIZE, 8)}, f / TABLE), f"{TABLE}: damaged"),
    "a header of 2^63 bytes": (lambda f: (f / TABLE).write_bytes(struct.pack("<Q", 2**63)), f"{TABLE}: damaged"),
    "another tensor": (lambda f: _save_table(f / TABLE, {"w": torch.zeros(SIZE, 8)}), f"{TABLE}: no tensor 'weight'"),
    "another shape": (lambda f: _save_table(f / TABLE, {"weight": torch.zeros(9, 8)}), rf"{TABLE}: holds F32 \(9, 8\)"),
    "another type": (
        lambda f: _save_table(f / TABLE, {"weight": torch.zeros(SIZE, 8).double()}),
        rf"{TABLE}: holds F64 \({SIZE}, 8\), the schema wants F32 or F16 or I8 \({SIZE}, 8\)",
    ),
    "int8 without scales": (
        lambda f: _save_table(f / TABLE, {"weight": torch.zeros(SIZE, 8, dtype=torch.int8)}),
        f"{TABLE}: its scales do not fit",
    ),
    "another version": (lambda f: _save_table(f / TABLE, {"weight": torch.zeros(SIZE, 8)}, "9"), "version 9"),
    "no version": (lambda f: _save_table(f / TABLE, {"weight": torch.zeros(SIZE, 8)}, None), "version None"),
    "no dense weights": (lambda f: (f / "weights/dense.safetensors").unlink(), "dense.safetensors: missing"),
    "other dense weights": (
        lambda f: _save_table(f / "weights/dense.safetensors", {"x": torch.zeros(2)}),
        "dense weight 'bottom_mlp.*' is missing, config.yaml makes it",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_one_line(copied: Path, damage: str) -> None:
    apply, message = DAMAGES[damage]
    apply(copied)
    with pytest.raises(UserError) as raised:
        load_model(copied)
    assert "\n" not in str(raised.value)
    if re.search(message, str(raised.value)) is None:
        assert re.search(": has [0-9,]+ bytes, but had [0-9,]+ when it was written", str(raised.value))
        # And if it was made so.
        finish_model(copied, ModelManifest())
        with pytest.raises(UserError, match=message) as raised:
            load_model(copied)
        assert "\n" not in str(raised.value)


def _resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _mapping(address: int) -> tuple[str, int]:
    """The file that is mapped at an address, and how many bytes of that mapping are in memory."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        first, _, last = line.split()[0].partition("-")
        if last and int(first, 16) <= address < int(last, 16):
            resident = next(later for later in lines if later.startswith("Rss:"))
            return " ".join(line.split()[5:]), int(resident.split()[1]) * 1024
    raise AssertionError("nothing is mapped there")


def test_tables_are_mapped_not_read(tmp_path: Path) -> None:
    """A process that looks up a few rows of a large table does not hold the table."""
    rows, dim = 250_000, 64  # 64 MB
    marks = [0, rows // 2, rows - 1]

    def fill(_: EmbeddingTable, weights: torch.Tensor) -> None:
        weights[marks] = torch.tensor([[1.0], [2.0], [3.0]])

    _write(tmp_path / "model", _table("C1", rows=rows, dim=dim), fill)
    folder = ModelFolder.open(tmp_path / "model")
    gc.collect()  # what was written with
    before = _resident()
    table = folder.table(folder.tables[0])
    assert table[marks, 5].tolist() == [1.0, 2.0, 3.0]
    assert _resident() - before < 16 * 2**20
    # Memory that the process had before would not be counted.
    file, resident = _mapping(table.data_ptr())
    assert Path(file).name == Path(table_file("C1")).name
    assert resident < 16 * 2**20


def test_rows_begin_on_a_page(whole: Path) -> None:
    raw = (whole / table_file("C2")).read_bytes()
    (header,) = struct.unpack("<Q", raw[:8])
    assert (8 + header) % 4096 == 0
    assert len(raw) == 8 + header + np.prod((SIZE, 8)) * 4


def _table(name: str, *, rows: int, dim: int) -> EmbeddingTable:
    return EmbeddingTable(name=name, features=(name,), rows=rows, dim=dim, values=UniformByRows())


def _write(output: Path, table: EmbeddingTable, fill: Callable[[EmbeddingTable, torch.Tensor], object]) -> None:
    """A model of that table alone."""

    def fill_table(table: EmbeddingTable, weights: torch.Tensor) -> None:
        fill(table, weights)

    feature = CategoricalFeature(name=table.name, cardinality=table.rows, embedding_dim=table.dim)
    with new_model_folder(
        output,
        schema=Schema(label="label", features=(feature,)),
        tables=[table],
        recipe=make_recipe(
            name="test", model=DLRMConfig(embedding_dim=table.dim, bottom_mlp=(table.dim,), interaction="cat")
        ),
        metrics={},
        card="",
        vocabularies_in=output.parent,
        dense={},
        fill_table=fill_table,
    ):
        pass
