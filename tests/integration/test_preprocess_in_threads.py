"""Small inputs are preprocessed by threads: the files that Spark on Ray writes, and the same errors."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from benchmarks.preprocess_kills import ROWS, files_of, write_raw
from jobs.command import parse_command
from jobs.preprocess import PreprocessRequest
from rayrec.config.transforms import Vocabulary
from rayrec.features import vocabulary as vocabulary_module
from rayrec.features.schema import Schema
from rayrec.features.vocabulary import index_file, read_vocabulary, vocabulary_files, write_whole_vocabulary
from rayrec.preprocessing import vocabularies as vocabulary_fitting
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.preprocessing.pipeline import Preprocessing
from rayrec.preprocessing.spark import SparkEngine
from rayrec.sources.registry import preprocessing

KINDS = ("criteo", "table", "interactions")


def job(arguments: list[str], output: Path) -> Preprocessing:
    _, request, _ = parse_command(["preprocess", *arguments, "--output", str(output)])
    assert isinstance(request, PreprocessRequest)
    recipe = request.load_recipe()
    return preprocessing(recipe, request.inputs(recipe), output)


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_of_spark(kind: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayrec.preprocessing.lookups.ROWS_PER_RANGE", 2_600)  # so that tables are several files
    arguments = write_raw(tmp_path, kind, ROWS[kind] // 4)
    # Row groups that end within a batch.
    arguments += ["--set", "preprocess.layout={rows_per_row_group: 700, rows_per_part: 2100}"]
    job(arguments, tmp_path / "spark").run(SparkEngine(spark))
    job(arguments, tmp_path / "threads").run(EmbeddedEngine(3))
    expected = files_of(tmp_path / "spark")
    assert len(expected) > 10
    assert files_of(tmp_path / "threads") == expected


def test_a_vocabulary_that_a_delta_makes_whole_has_the_bytes_of_a_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary_module, "VALUES_PER_ROW_GROUP", 32)
    for module in (vocabulary_fitting, vocabulary_module):
        monkeypatch.setattr(module, "VALUES_PER_FILE", 128)
    job([*write_raw(tmp_path, "criteo", 2_000), "--set", "preprocess.frequency_limit=1"], tmp_path / "dataset").run(
        EmbeddedEngine(2)
    )
    vocabularies = {f.name: f.transforms[0] for f in Schema.load(tmp_path / "dataset").categorical}
    sizes = set()
    for name, vocabulary in vocabularies.items():
        assert isinstance(vocabulary, Vocabulary)
        path = tmp_path / "dataset" / vocabulary.file
        rows = read_vocabulary(path, ("id", "value", "count"))
        write_whole_vocabulary((batch.select(["id", "value", "count"]) for batch in rows), tmp_path / path.name)
        expected = [*vocabulary_files(path), index_file(path)]
        found = [*vocabulary_files(tmp_path / path.name), index_file(tmp_path / path.name)]
        assert [file.read_bytes() for file in found] == [file.read_bytes() for file in expected], name
        sizes.add(len(expected))
    assert min(sizes) == 2 < max(sizes), "files and folders of parts"


def test_threads_suit_small_inputs_and_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = write_raw(tmp_path, "criteo", 2_000)
    assert job(small, tmp_path / "dataset").suits_threads
    raw = Path(small[2])
    size = raw.stat().st_size

    def suits(cpus: int, most: int) -> bool:
        monkeypatch.setattr("rayrec.preprocessing.pipeline.available_cpus", lambda: cpus)
        monkeypatch.setattr("rayrec.preprocessing.pipeline._MOST_TEXT", most)
        return job(small, tmp_path / "dataset").suits_threads

    assert suits(64, size)
    assert not suits(64, size - 1), "Spark uses all of many CPUs"
    assert suits(8, size - 1)
    raw.write_bytes(gzip.compress(raw.read_bytes()))
    assert not suits(64, size), "its text may be four times as large"
