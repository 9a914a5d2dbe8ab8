"""A pipeline that takes in a day at a time: `rayrec run --continue` and `rayrec follow`, in this process."""

import json
import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.export import ExportRequest
from jobs.export import run as export
from jobs.follow import FollowRequest, _Follower
from jobs.generate import GenerateRequest
from jobs.generate import run as generate
from jobs.pipeline import days
from jobs.run import RunRequest, owned_pipeline, run
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import SilentProgress
from rayrec.inference.folder.model_folder import ModelFolder
from rayrec.inference.folder.table_files import is_delta
from rayrec.inference.predictor import load_model
from rayrec.inference.recommender import load_recommender
from rayrec.ingest.dataset import Dataset

ROWS = 3_000
SETTINGS = (
    "preprocess.split={kind: hash, test: 0.2}",
    "train.global_batch_size=256",
    "train.workers=1",
    "train.tracking={tensorboard: false}",
)


@pytest.fixture(scope="module", autouse=True)
def _without_a_cluster() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        yield


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The files of five days."""
    folder = tmp_path_factory.mktemp("days") / "raw"
    generate(GenerateRequest(source="criteo", rows=5 * ROWS, days=5, output=folder), SilentProgress())
    return sorted(folder.glob("day_*"))


def _request(output: Path, *files: Path, settings: tuple[str, ...] = (), **others: Any) -> RunRequest:
    settings, inputs = (*SETTINGS, *settings), tuple(map(str, files))
    return RunRequest(recipe="dlrm-criteo-debug", set=settings, input=inputs, continue_=output, **others)


def take_in(output: Path, *files: Path, settings: tuple[str, ...] = (), **others: Any) -> dict[str, Any]:
    return run(_request(output, *files, settings=settings, **others), SilentProgress()).details


@pytest.fixture(scope="module")
def three_days(raw: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("three") / "out"
    for number, file in enumerate(raw[:3]):
        details = take_in(output, file)
        assert (details["day"], details["version"]) == (number, str(number + 1))
    return output


@pytest.fixture
def output(three_days: Path, tmp_path: Path) -> Path:
    """A copy of three days to go on with. Its runs name the datasets of the original, which have the same content."""
    return Path(shutil.copytree(three_days, tmp_path / "out"))


def weights(model: ModelFolder) -> dict[str, bytes]:
    found = {name: tensor.numpy().tobytes() for name, tensor in model.dense().items()}
    for table in model.tables:
        rows = np.empty((table.rows, table.dim), np.float32)
        model.mapped_table(table).read(np.arange(table.rows), rows)
        found[table.name] = rows.tobytes()
    return found


def test_each_day_goes_on_from_the_one_before(three_days: Path) -> None:
    places = [three_days, *(three_days / "days" / name for name in ("0001", "0002"))]
    datasets = [Dataset.open(place / "dataset") for place in places]
    for before, dataset in pairwise(datasets):
        assert dataset.manifest.parent is not None
        assert dataset.manifest.parent.id == before.id
        sizes = [
            {f.name: f.vocabulary.size for f in d.schema.categorical if f.vocabulary is not None}
            for d in (before, dataset)
        ]
        assert all(sizes[1][name] >= size for name, size in sizes[0].items()) and sizes[0] != sizes[1]
    assert [is_delta(three_days / "models" / name) for name in ("1", "2", "3")] == [False, True, True]


def test_the_last_delta_is_the_model_of_the_last_run_to_the_bit(three_days: Path, tmp_path: Path) -> None:
    export(ExportRequest(run=three_days / "days" / "0002" / "run", output=tmp_path / "full"), SilentProgress())
    served, full = (ModelFolder.open(folder) for folder in (three_days / "models" / "3", tmp_path / "full"))
    assert weights(served) == weights(full)
    rows = [{"I1": 3, "C1": "unseen", "C2": None}, {}] + [{"C3": value} for value in ("a", "b")]
    assert load_model(served.folder).predict(rows).tobytes() == load_model(full.folder).predict(rows).tobytes()


def test_the_gate_says_what_it_found(three_days: Path) -> None:
    gate = json.loads((three_days / "days" / "0002" / "gate.json").read_text())
    assert gate["faults"] == [] and gate["split"] == "test"
    test = Dataset.open(three_days / "days" / "0002" / "dataset").split("test")
    assert gate["comparison"]["rows"] == test.rows
    metrics = json.loads((three_days / "days" / "0002" / "run" / "metrics.json").read_text())
    # The new model's loss is what the evaluation of its run found.
    assert gate["comparison"]["loss"] == pytest.approx(metrics["test"]["log_loss"], rel=1e-5)
    assert gate["drift"].keys() >= {"C1", "I1"}


def test_a_bad_model_is_kept_aside_and_its_day_can_come_again(output: Path, raw: list[Path]) -> None:
    message = (
        r"model: not published: log loss .* exceeds the serving model's .*; version 3 keeps serving, and the next day"
    )
    with pytest.raises(UserError, match=message):
        take_in(output, raw[3], settings=("train.dense_optimizer.lr=1",))
    assert sorted(path.name for path in (output / "models").iterdir()) == ["1", "2", "3"]
    outcome = days.DayManifest.load(output / "days" / "0003")
    assert outcome.published is None and outcome.faults
    assert (output / "days" / "0003" / "model").is_dir()
    details = take_in(output, raw[3])
    assert (details["day"], details["version"]) == (4, "4")
    dataset = Dataset.open(output / "days" / "0004" / "dataset")
    assert dataset.manifest.sequence == 3, "it extends the dataset of the last day that serves"
    with pytest.raises(UserError, match=r"its rows are already in"):
        take_in(output, raw[2])
    assert not (output / "days" / "0005").exists()


@pytest.mark.parametrize("refits", [False, True])
def test_the_folder_of_a_run_goes_on(raw: list[Path], tmp_path: Path, *, refits: bool) -> None:
    """Its model, refitted or not, is the first version; without a model another day's files are refused."""
    output = tmp_path / "out"
    first = _request(output, raw[0]).model_dump() | {"continue_": None, "refit": refits}
    run(RunRequest(**first), SilentProgress())
    shutil.copytree(output, tmp_path / "whole")
    shutil.rmtree(output / "model")
    with pytest.raises(
        ConfigError, match=r"`rayrec run --output .*out` with --input .*day_0 is unfinished; run it again"
    ):
        take_in(output, raw[1])
    assert not (output / "day.json").exists() and not (output / "models").exists()
    shutil.copytree(tmp_path / "whole" / "model", output / "model")
    assert take_in(output, raw[0])["version"] == "1", "its own files again"
    assert weights(ModelFolder.open(output / "models" / "1")) == weights(ModelFolder.open(tmp_path / "whole" / "model"))
    details = take_in(output, raw[1], refit=refits)
    assert (details["day"], details["version"]) == (1, "2")
    assert details["gate"]["faults"] == [] and details["gate"]["before"]["rows"] > 100
    # What serves has learned from all rows of both days, and what the next day is compared with from those of `train`.
    made_of = output / "days" / "0001" / ("refit" if refits else ".")
    dataset = Dataset.open(made_of / "dataset")
    assert dataset.manifest.parent is not None and dataset.manifest.sequence == 1
    assert dataset.manifest.parent.id == Dataset.open(output / ("refit" if refits else ".") / "dataset").id
    assert (dataset.split("train").rows == ROWS) == refits
    export(ExportRequest(run=made_of / "run", output=tmp_path / "full"), SilentProgress())
    served, full = (ModelFolder.open(folder) for folder in (output / "models" / "2", tmp_path / "full"))
    assert weights(served) == weights(full) and is_delta(served.folder)
    with pytest.raises(UserError, match="not published"):
        take_in(output, raw[2], refit=refits, settings=("publish.min_rows=5000",))
    assert not (output / "days" / "0002" / "refit").exists()
    with pytest.raises(UserError, match=r"its rows are already in"):
        take_in(output, raw[0])


def test_a_command_that_is_given_again_says_what_it_did(
    output: Path, raw: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler that did not hear of its end starts it again, perhaps where the files lie elsewhere."""
    begun = tmp_path / "begun"

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(days, "_prune", die)  # all is done by then
        run(_request(output, raw[3]), SilentProgress())
    copied = shutil.copyfile(raw[3], tmp_path / "copy")
    for file in (raw[3], copied):
        result = run(_request(output, file), SilentProgress())
        assert (result.details["day"], result.details["version"]) == (3, "4")
        assert result.metrics == json.loads((output / "days" / "0003" / "run" / "metrics.json").read_text())
        assert result.rows == 3_000 and result.details["gate"]["faults"] == []
    assert sorted(path.name for path in (output / "days").iterdir()) == ["0001", "0002", "0003"]
    (output / "models" / "4").rename(tmp_path / "withdrawn")
    assert take_in(output, raw[3])["day"] == 4, "what was withdrawn is not done"
    assert take_in(begun, raw[0]) | {"phases": None} == take_in(begun, raw[0]) | {"phases": None}


def test_a_day_of_other_values_does_not_serve(output: Path, raw: list[Path], tmp_path: Path) -> None:
    drifted = tmp_path / "drifted"
    cells = [line.split("\t") for line in raw[3].read_text().splitlines()]
    drifted.write_text("\n".join("\t".join([*row[:22], f"{int(row[0]):08x}", *row[23:]]) for row in cells) + "\n")
    with pytest.raises(UserError, match=r"'C9' has drifted: its stability index against the day before is \d+\.\d+"):
        take_in(output, drifted, settings=("publish.max_drift=5",))


def test_a_day_that_died_before_it_was_published_is_ended(
    output: Path, raw: list[Path], three_days: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(days, "_publish", die)
        with pytest.raises(KeyboardInterrupt):
            take_in(output, raw[3])
    with pytest.raises(ConfigError, match=r"the day started with --input .*day_3 is unfinished; run it again"):
        take_in(output, raw[4])
    details = take_in(output, raw[3])
    assert details["phases"] == {
        "preprocess": None,
        "train": None,
        "export": None,
        "publish": details["phases"]["publish"],
    }
    undisturbed = three_days.with_name("undisturbed")
    shutil.copytree(three_days, undisturbed)
    take_in(undisturbed, raw[3])
    assert weights(ModelFolder.open(output / "models" / "4")) == weights(ModelFolder.open(undisturbed / "models" / "4"))


def test_what_is_withdrawn_is_not_gone_on_from(output: Path, raw: list[Path]) -> None:
    (output / "models" / "3").rename(output / "withdrawn")
    details = take_in(output, raw[3])
    assert (details["day"], details["version"]) == (3, "3")
    assert Dataset.open(output / "days" / "0003" / "dataset").manifest.sequence == 2
    ModelFolder.open(output / "models" / "3")


def test_whole_versions_and_old_days(output: Path, raw: list[Path]) -> None:
    settings = ("publish.full_every=4", "publish.keep_days=2")
    take_in(output, raw[3], settings=settings)
    assert not is_delta(output / "models" / "4")
    take_in(output, raw[4], settings=settings)
    assert is_delta(output / "models" / "5")
    assert sorted(path.name for path in (output / "models").iterdir()) == ["4", "5"]
    kept = [place.parent.name for place in sorted(output.rglob("dataset"))]
    assert kept == ["0003", "0004"]
    assert all((output / "days" / name / "gate.json").exists() for name in ("0001", "0002", "0003", "0004"))


def test_a_first_day_that_cannot_be_read_does_not_stand_in_the_way(raw: list[Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("no row\n" * 50)
    with pytest.raises(UserError, match="50 of 50 rows are bad"):
        take_in(tmp_path / "out", broken)
    details = take_in(tmp_path / "out", raw[0])
    assert details["version"] == "1" and details["phases"]["preprocess"] is not None


def test_new_users_and_items_are_recommended_to_and_from(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    generate(GenerateRequest(source="interactions", rows=6_000, days=2, output=raw), SilentProgress())
    request = {
        "recipe": "neumf-ml-1m-debug",
        "set": ("train.workers=1", "preprocess.split.min_interactions=2", "train.tracking={tensorboard: false}"),
        "continue_": tmp_path / "out",
    }
    for file in sorted(raw.glob("day_*")):
        run(RunRequest(**request, input=(str(file),)), SilentProgress())
    first, second = (load_recommender(tmp_path / "out" / "models" / version) for version in ("1", "2"))
    assert len(second.user_ids) > len(first.user_ids) and second.num_items > first.num_items
    new_user = str(second.user_values(second.user_ids[-1:])[0])
    assert len(second.recommend(new_user, 10).items) == 10
    with pytest.raises(UserError, match="no user"):
        first.recommend(new_user, 10)


def test_files_are_taken_as_they_land(output: Path, raw: list[Path], tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    request = FollowRequest(
        recipe="dlrm-criteo-debug", set=SETTINGS, input=(str(landing),), serve=output / "models", output=output
    )
    lines = raw[3].read_text().splitlines(keepends=True)

    def follower() -> _Follower:
        return _Follower(request, landing, SilentProgress())

    with owned_pipeline(request):
        following = follower()
        assert not following.take(), "nothing has landed"
        (landing / ".hidden").write_text(lines[0])
        (landing / "begun.tsv.tmp").write_text(lines[0])
        (landing / "a.tsv").write_text("".join(lines[:600]))
        assert not following.take(), "it may still grow"
        assert following.take()
        (landing / "b.tsv").write_text("".join(lines[600:1200]))
        (landing / "broken.tsv").write_text("no row\n" * 50)
        following.take()
        assert following.take(), "what can be read is taken without what cannot"
        shutil.copyfile(landing / "a.tsv", landing / "copy.tsv")
        following.take()
        assert following.take(), "the copy is looked at once"
        assert not following.take()
        # Another process goes on where this one was.
        following = follower()
        following.take()
        assert not following.take()
    refused = [json.loads(line) for line in (output / "refused.jsonl").read_text().splitlines()]
    assert {Path(line["file"]).name for line in refused} == {"broken.tsv", "copy.tsv"}
    assert sorted(map(int, os.listdir(output / "models"))) == [1, 2, 3, 4, 5]
    rows = [
        sum(split.rows for split in Dataset.open(output / "days" / name / "dataset").manifest.splits.values())
        for name in sorted(os.listdir(output / "days"))[2:]
    ]
    assert rows == [600, 600]
