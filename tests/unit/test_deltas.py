"""Deltas of model folders: a base and a delta are the full export, bit by bit; what is not its delta is refused."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rayrec.common.errors import UserError
from rayrec.features.raw_columns import STATISTICS_FOLDER
from rayrec.inference.examples import Examples, ReferenceTraffic
from rayrec.inference.explanation import load_explainer
from rayrec.inference.folder import delta as delta_module
from rayrec.inference.folder.delta import write_delta, write_whole
from rayrec.inference.folder.facts import KNOWN_ITEMS_FILE, REFERENCE_FILE, REFERENCE_ROWS_FILE, KnownItems
from rayrec.inference.folder.model_folder import ModelFolder, copy
from rayrec.inference.folder.table_files import TablePrecision, mapped_bytes
from rayrec.inference.folder.versions import DeltaManifest, folders_of
from rayrec.inference.predictor import load_model
from rayrec.inference.recommender import load_recommender
from rayrec.models.dlrm.config import DLRMConfig
from rayrec.sources.registry import load_ranker
from tests.model_days import ModelDays, raw_rows
from tests.model_folders import make_recommender_folder, write_table_model

DAYS = 5


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def versions_of(folder: Path, precision: TablePrecision = "fp32", days: int = DAYS) -> ModelDays:
    """Versions 1 (whole) to 1 + `days` (deltas) in FOLDER/m, and each of them whole in FOLDER/whole."""
    model = ModelDays(folder / "whole")
    copy(model.write("1", precision), folder / "m/1")
    for day in range(2, 2 + days):
        model.pass_day()
        model.write(str(day), precision)
        write_delta(model.open(str(day)), ModelFolder.open(folder / f"m/{day - 1}"), folder / f"m/{day}")
    return model


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base and five deltas."""
    folder = tmp_path_factory.mktemp("days")
    versions_of(folder)
    return folder


@pytest.fixture
def versions(made: Path, tmp_path: Path) -> Path:
    """These versions, to be changed by a test."""
    return Path(shutil.copytree(made / "m", tmp_path / "m"))


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_a_base_and_five_deltas_are_the_full_export(tmp_path: Path, precision: TablePrecision) -> None:
    days = versions_of(tmp_path, precision)
    rows = raw_rows(days, 300)
    for day in range(1, 2 + DAYS):
        whole, opened = days.open(str(day)), ModelFolder.open(tmp_path / f"m/{day}")
        assert (opened.base is not None) == (day > 1)
        assert (opened.schema, opened.recipe, opened.metrics) == (whole.schema, whole.recipe, whole.metrics)
        parents = {role: parent for role, parent in opened.manifest.made_of.items() if role != "base"}
        assert (parents, opened.manifest.data_time) == (whole.manifest.made_of, whole.manifest.data_time)
        for table in whole.tables:
            np.testing.assert_array_equal(opened.table(table), whole.table(table))
        expected, found = load_model(whole.folder), load_model(opened.folder)
        raw = expected.raw_rows.from_rows(rows)
        assert found.encode(raw).equals(expected.encode(raw))
        np.testing.assert_array_equal(found.predict(rows), expected.predict(rows))
        Examples.load(opened.folder).check(found)
        if day > 1:
            write_whole(opened, tmp_path / f"again/{day}")
            assert tree(tmp_path / f"again/{day}") == tree(whole.folder)


def test_a_delta_is_made_of_what_changed_alone(made: Path) -> None:
    opened = ModelFolder.open(made / "m/6")
    assert opened.delta is not None
    manifest, first = opened.delta.manifest, ModelFolder.open(made / "m/2").delta
    assert manifest.base.folder.name == "1" and first is not None
    # C2 is capped: its table does not grow; all rows of C3 behind the ids of unlisted values follow the listed ones.
    assert first.manifest.tables["C2"].model_dump() == {"changed": 6, "appended": 0}
    assert 0 < first.manifest.tables["C1"].changed <= 6 and first.manifest.tables["C1"].appended == 4
    assert first.manifest.vocabularies["C1"].model_dump() == {"added": 4, "removed": 2}
    # After five days: what was changed on any of them, and what three further days listed beside four values a day.
    assert 6 < manifest.tables["C1"].changed <= 30 and manifest.tables["C1"].appended == 5 * 4 + 3
    assert manifest.vocabularies["C1"].added == 5 * 4 + 3
    files = set(tree(made / "m/6")) - {"manifest.json"}
    assert files == {file.path for file in manifest.files}
    assert {name for name in files if "/" in name} == {
        "weights/dense.safetensors", "weights/rows.safetensors", "vocabulary/changes.arrow"
    }  # fmt: skip


def test_what_did_not_change_is_not_written(tmp_path: Path) -> None:
    days = ModelDays(tmp_path / "whole")
    copy(days.write("1"), tmp_path / "m/1")
    days.write("2")
    manifest = write_delta(days.open("2"), ModelFolder.open(tmp_path / "m/1"), tmp_path / "m/2")
    assert (manifest.tables, manifest.vocabularies) == ({}, {})
    rows = raw_rows(days, 50)
    np.testing.assert_array_equal(
        load_model(tmp_path / "m/2").predict(rows), load_model(tmp_path / "whole/2").predict(rows)
    )


def test_bits_decide(tmp_path: Path) -> None:
    """Minus zero is equal to zero, and is another row; a row of NaN is unequal to itself, and is the same."""
    days = ModelDays(tmp_path / "whole")
    days._tables["C1"][1:3] = 0.0
    copy(days.write("1"), tmp_path / "m/1")
    days._tables["C1"][2] = -0.0
    days.write("2")
    manifest = write_delta(days.open("2"), ModelFolder.open(tmp_path / "m/1"), tmp_path / "m/2")
    assert {name: growth.changed for name, growth in manifest.tables.items()} == {"C1": 1}


def test_a_delta_may_span_many_days(tmp_path: Path) -> None:
    """A value that was listed and removed between two versions has an id all the same."""
    days = ModelDays(tmp_path / "whole")
    copy(days.write("1"), tmp_path / "m/1")
    for _ in range(4):
        days.pass_day(new=3, removed=5)
    days.write("9")
    write_delta(days.open("9"), ModelFolder.open(tmp_path / "m/1"), tmp_path / "m/9")
    rows = raw_rows(days, 200)
    np.testing.assert_array_equal(
        load_model(tmp_path / "m/9").predict(rows), load_model(tmp_path / "whole/9").predict(rows)
    )


def test_a_delta_is_made_of_its_base_alone(made: Path, tmp_path: Path) -> None:
    """Whatever lies between them, or is gone; and a whole model that comes later is the base of those after it."""
    copy(made / "m/1", tmp_path / "m/1")
    copy(made / "m/6", tmp_path / "m/6")
    opened = ModelFolder.open(tmp_path / "m/6")
    assert opened.base is not None and opened.base.folder.name == "1"
    copy(made / "whole/4", tmp_path / "m/4")
    copy(made / "m/5", tmp_path / "m/5")
    for before, base in (("4", "4"), ("5", "1")):
        write_delta(ModelFolder.open(made / "whole/6"), ModelFolder.open(tmp_path / "m" / before), tmp_path / "m/7")
        assert [path.name for path in folders_of(tmp_path / "m/7")] == [base, "7"]
        shutil.rmtree(tmp_path / "m/7")


def test_a_link_to_a_version_is_that_version(versions: Path) -> None:
    os.symlink(versions / "5", versions / "stable")
    assert ModelFolder.open(versions / "stable").folder == versions / "5"


def test_a_folder_may_have_another_name(versions: Path) -> None:
    """As that which a version has before it is whole."""
    os.rename(versions / "6", versions / ".coming")
    assert ModelFolder.open(versions / ".coming").base is not None


def _truncate(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        os.truncate(folder / name, (folder / name).stat().st_size - 2)

    return change


def _flip(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)

    return change


def _foreign(folder: Path) -> None:
    """Version 1 is trained anew, and version 2 is a delta of what it was."""
    other = ModelDays(folder.parent / "other", seed=1)
    shutil.rmtree(folder / "1")
    copy(other.write("1"), folder / "1")


def _edit(name: str, **values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**content, **values}))

    return change


REFUSALS: dict[str, tuple[Callable[[Path], object], str]] = {
    "the base is lost": (lambda f: shutil.rmtree(f / "1"), "/6: needs version 1, a whole model, which is missing; "),
    "the base is a delta": (
        lambda f: [shutil.rmtree(f / "1"), os.rename(f / "2", f / "1")],
        "/6: needs version 1, a whole model, which is missing; ",
    ),
    "foreign": (_foreign, "/6: is a delta of another model than is now in version 1; "),
    "a damaged base": (_truncate("1/examples.json"), "/1/examples.json: has [0-9,]+ bytes, but had "),
    "the manifest is cut short": (
        _truncate("6/manifest.json"),
        r"/6/manifest.json: damaged \(not whole JSON\)",
    ),
    "the manifest is no object": (lambda f: (f / "6/manifest.json").write_text("[]"), "/6/manifest.json: damaged"),
    "the manifest is empty": (lambda f: (f / "6/manifest.json").write_text(""), "/6/manifest.json: damaged"),
    "the manifest was edited": (_edit("6/manifest.json", inherited=["x"]), "/6/manifest.json: damaged"),
    "the manifest has no id": (_edit("6/manifest.json", id=None), "/6/manifest.json: damaged"),
    "the manifest is lost": (lambda f: (f / "6/manifest.json").unlink(), "/6: not a model folder"),
    **{
        f"{kind} {name}": (change(f"6/{name}"), f"/6/{name}: {message}; copy version 6 again")
        for name in (
            "schema.json", "config.yaml", "metrics.json", "MODEL_CARD.md", "examples.json",
            "weights/dense.safetensors", "weights/rows.safetensors", "vocabulary/changes.arrow",
        )
        for kind, change, message in (
            ("lost", lambda name: lambda f: (f / name).unlink(), "missing"),
            ("truncated", _truncate, "has [0-9,]+ bytes, but had [0-9,]+ when it was written"),
            ("changed", _flip, "content changed since it was written"),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_not_the_delta_of_its_base_is_refused(versions: Path, case: str) -> None:
    change, message = REFUSALS[case]
    change(versions)
    with pytest.raises(UserError, match=f"^{versions}{message}") as raised:
        ModelFolder.open(versions / "6")
    assert "\n" not in str(raised.value)


def test_a_version_beside_the_damage_opens(versions: Path) -> None:
    _truncate("4/weights/rows.safetensors")(versions)
    for name in ("3", "5"):
        assert ModelFolder.open(versions / name).base is not None


def test_the_configuration_of_a_base_may_be_edited(versions: Path) -> None:
    config = versions / "1/config.yaml"
    config.write_text(config.read_text() + "\n# of the operator\n")
    assert ModelFolder.open(versions / "6").base is not None


def _days(folder: Path, seed: int = 0, values: int = 30, config: DLRMConfig | None = None) -> ModelDays:
    return ModelDays(folder, seed=seed, values=values, **({"config": config} if config else {}))


WIDER = DLRMConfig(embedding_dim=16, bottom_mlp=(16,), top_mlp=(16,))
NO_DELTA: dict[str, tuple[Callable[[Path], ModelDays], TablePrecision, str]] = {
    "another precision": (_days, "int8", "its tables are int8, the base's fp32"),
    "needs the same model section": (
        lambda folder: _days(folder, config=WIDER),
        "fp32",
        r"cannot be the base of this delta: model.embedding_dim is 8 there and 16 in the run",
    ),
    "smaller tables": (
        lambda folder: _days(folder, values=20),
        "fp32",
        r"cannot be the base of this delta: table 'C1' has shape \(31, 8\) there and \(21, 8\) in the run",
    ),
}


@pytest.mark.parametrize("case", NO_DELTA)
def test_there_is_no_delta_of_another_model(tmp_path: Path, case: str) -> None:
    make, precision, message = NO_DELTA[case]
    parent = _days(tmp_path / "whole").write("1")
    make(tmp_path / "other").write("2", precision)
    with pytest.raises(UserError, match=f"{message}.*; export in full, without --delta-of$"):
        write_delta(ModelFolder.open(tmp_path / "other/2"), ModelFolder.open(parent), tmp_path / "m/2")
    assert not (tmp_path / "m/2").exists()


def test_there_is_no_delta_of_a_vocabulary_in_another_order(tmp_path: Path) -> None:
    days = _days(tmp_path / "whole")
    days.write("1")
    days.values["M1"][:2] = days.values["M1"][1::-1]
    days.write("2")
    with pytest.raises(UserError, match=r"vocabulary/M1.parquet: id 1 is 'M1-1' and was 'M1-0' .*; export in full$"):
        write_delta(days.open("2"), days.open("1"), tmp_path / "m/2")
    assert list(tmp_path.glob("m/*")) == []


def test_tables_of_another_name(tmp_path: Path) -> None:
    write_table_model(tmp_path / "1")
    days = _days(tmp_path / "whole")
    days.write("2")
    with pytest.raises(
        UserError, match=r"cannot be the base of this delta: model\.kind is 'wide_deep' there and 'dlrm' in the run"
    ):
        write_delta(days.open("2"), ModelFolder.open(tmp_path / "1"), tmp_path / "m/2")


# ---- what a delta has only where it differs


def test_known_items_are_those_of_the_delta_or_its_base(tmp_path: Path) -> None:
    for name, seed in (("1", 0), ("2", 1), ("3", 2)):
        make_recommender_folder(tmp_path / "whole" / name, seed=seed)
    known = KnownItems.load(ModelFolder.open(tmp_path / "whole/3"))
    (tmp_path / "whole/3" / KNOWN_ITEMS_FILE).unlink()
    replace(known, items=np.where(known.items == 1, 2, known.items)).save(tmp_path / "whole/3")
    copy(tmp_path / "whole/1", tmp_path / "m/1")
    inherited = []
    for day in (2, 3):
        whole = ModelFolder.open(tmp_path / f"whole/{day}")
        inherited.append(
            write_delta(whole, ModelFolder.open(tmp_path / f"m/{day - 1}"), tmp_path / f"m/{day}").inherited
        )
    assert [KNOWN_ITEMS_FILE in names for names in inherited] == [True, False]
    assert not (tmp_path / "m/2" / KNOWN_ITEMS_FILE).exists()
    for day in (1, 2, 3):
        expected, found = (load_recommender(tmp_path / folder / str(day)) for folder in ("whole", "m"))
        assert expected.recommend("u-4", 10).items == found.recommend("u-4", 10).items
        np.testing.assert_array_equal(expected.recommend("u-4", 10).scores, found.recommend("u-4", 10).scores)


def test_statistics_are_those_of_the_delta_or_its_base(tmp_path: Path) -> None:
    for name, seed in (("1", 0), ("2", 1), ("3", 2)):
        write_table_model(tmp_path / "whole" / name, seed=seed)
    (rates, *_) = sorted((tmp_path / "whole/3" / STATISTICS_FOLDER).rglob("*.arrow"))
    content = rates.read_bytes()
    copy(tmp_path / "whole/1", tmp_path / "m/1")
    for day in (2, 3):
        whole = ModelFolder.open(tmp_path / f"whole/{day}")
        manifest = write_delta(whole, ModelFolder.open(tmp_path / f"m/{day - 1}"), tmp_path / f"m/{day}")
        assert REFERENCE_ROWS_FILE in manifest.inherited
        assert not any(file.path.startswith(STATISTICS_FOLDER) for file in manifest.files)
    rates.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    manifest = write_delta(ModelFolder.open(tmp_path / "whole/3"), ModelFolder.open(tmp_path / "m/2"), tmp_path / "n/3")
    # Of the tables, the one that differs.
    written = {Path(file.path).parent for file in manifest.files if file.path.startswith(STATISTICS_FOLDER)}
    assert written == {rates.parent.relative_to(tmp_path / "whole/3")}
    rates.write_bytes(content)
    row = {"text": "a"}
    for day in (2, 3):
        opened = ModelFolder.open(tmp_path / f"m/{day}")
        table = rates.parent.relative_to(tmp_path / "whole/3").as_posix()
        assert opened.path(table) == tmp_path / "m/1" / table
        expected, found = (load_ranker(tmp_path / folder / str(day)) for folder in ("whole", "m"))
        np.testing.assert_array_equal(expected.scores({}, [row]), found.scores({}, [row]))
        assert load_explainer(tmp_path / "whole" / str(day)).base == load_explainer(tmp_path / "m" / str(day)).base


def test_what_a_model_has_no_longer_is_not_read_from_the_base(tmp_path: Path) -> None:
    days = ModelDays(tmp_path / "whole")
    reference = ReferenceTraffic(split="test", rows=1, score_edges=(0.5,), score_shares=(0.5, 0.5), unknown_share={})
    reference.save(days.write("1"))
    copy(tmp_path / "whole/1", tmp_path / "m/1")
    days.pass_day()
    reference.save(days.write("2"))
    assert write_delta(days.open("2"), ModelFolder.open(tmp_path / "m/1"), tmp_path / "m/2").inherited == (
        REFERENCE_FILE,
    )
    days.pass_day()
    days.write("3")
    assert write_delta(days.open("3"), ModelFolder.open(tmp_path / "m/2"), tmp_path / "m/3").inherited == ()
    found = [ReferenceTraffic.load(ModelFolder.open(tmp_path / f"m/{day}")) for day in (1, 2, 3)]
    assert found == [reference, reference, None]


# ---- whole or absent, flat in memory


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    days = ModelDays(tmp_path / "whole")
    days.write("1")
    days.pass_day()
    days.write("2")

    def fail(*_: object) -> None:
        raise OSError("stop")

    monkeypatch.setattr(delta_module, "_write_rows", fail)
    with pytest.raises(OSError, match="stop"):
        write_delta(days.open("2"), days.open("1"), tmp_path / "m/2")
    assert list((tmp_path / "m").iterdir()) == []


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


MOMENTS: dict[str, Callable[[], object]] = {
    "the tables": lambda: setattr(delta_module, "_write_rows", lambda *_: _kill()),
    "the manifest": lambda: setattr(DeltaManifest, "save", lambda *_: _kill()),
    "the name": lambda: setattr(os, "rename", lambda *_: _kill()),
}


def test_a_kill_leaves_nothing_and_a_rerun_the_whole(made: Path, tmp_path: Path) -> None:
    output = tmp_path / "m/2"
    for moment in MOMENTS.values():
        process = os.fork()
        if process == 0:
            moment()
            write_delta(ModelFolder.open(made / "whole/2"), ModelFolder.open(made / "m/1"), output)
            os._exit(0)
        _, status = os.waitpid(process, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL
        assert not output.exists()
    write_delta(ModelFolder.open(made / "whole/2"), ModelFolder.open(made / "m/1"), output)
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["2"]
    assert tree(output) == tree(made / "m/2")


def test_to_open_a_delta_reads_no_table(tmp_path: Path) -> None:
    """Of a base of 26 MB and deltas of a few rows, a process that looks up some rows holds these."""
    days = ModelDays(tmp_path / "whole", values=10)
    days.values["C1"] = [f"C1-{i}" for i in range(200_000)]
    days._follow_schema()
    copy(days.write("1"), tmp_path / "m/1")
    days.pass_day()
    days.write("2")
    write_delta(days.open("2"), ModelFolder.open(tmp_path / "m/1"), tmp_path / "m/2")
    before = mapped_bytes()
    predictor = load_model(tmp_path / "m/2")
    predictor.predict([{"C1": "C1-7"}, {"C1": "C1-day1-0"}])
    assert mapped_bytes() - before < 8 * 2**20
