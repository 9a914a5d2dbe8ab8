"""Folders of URIs: which local ones stand for them, and that both sides are the same whatever goes wrong."""

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from pyarrow import fs

from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import SilentProgress
from rayrec.inference.folder.delta import require_place, write_delta
from rayrec.inference.folder.model_folder import ModelFolder, copy
from rayrec.inference.predictor import load_model
from rayrec.store import objects, staged, transfer
from rayrec.store.files import new_folder, open_file, sizes_in, write_atomically, write_json
from rayrec.store.journal import Journal, LocalFile
from rayrec.store.paths import here, local_path, location, resolve, shown, staging_root, uri_of
from rayrec.store.staged import fetch, mirrored
from rayrec.store.transfer import Upload, is_output
from serve.folders import StagedModels, TrafficSplit
from tests.model_days import ModelDays, raw_rows

URI = "s3://bucket/exp/run"


@pytest.fixture(autouse=True)
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `s3://bucket` is: a folder, which pyarrow's local file system reads and writes."""
    folder = tmp_path / "remote" / "bucket"
    folder.mkdir(parents=True)
    filesystem = fs.SubTreeFileSystem(str(tmp_path / "remote"), fs.LocalFileSystem())
    monkeypatch.setattr(objects, "open_filesystem", lambda uri: (filesystem, uri.removeprefix("s3://")))
    use_machine(tmp_path / "one", monkeypatch)
    return folder


def use_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go on as on another machine: with another staging folder."""
    monkeypatch.setenv("RAYREC_STAGING", str(folder))


def tree(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def fetched() -> dict[str, str]:
    path = local_path(URI)
    fetch(path)
    return tree(path)


def mirror(write_output: Callable[[Path], object], continues: bool = False) -> None:
    """Do work that writes the output at URI."""
    path = local_path(URI)
    with mirrored(path, continues=continues, progress=SilentProgress()):
        write_output(path)


URIS: dict[str, tuple[str, str]] = {
    "folder": ("s3://bucket/exp-1/run_2", "s3=3A__bucket_exp-1_run=5F2/run_2"),
    "trailing and double slashes": ("s3://bucket//exp/run/", "s3=3A__bucket_exp_run/run"),
    "whole bucket": ("gs://bucket", "gs=3A__bucket/bucket"),
    "query": (
        "s3://bucket/run?scheme=http&endpoint_override=127.0.0.1:5000",
        "s3=3A__bucket_run=3Fscheme=3Dhttp=26endpoint=5Foverride=3D127.0.0.1=3A5000/run",
    ),
    "not ASCII": ("s3://bucket/é %20", "s3=3A__bucket_=C3=A9=20=2520/é %20"),
}


@pytest.mark.parametrize("case", URIS)
def test_a_uri_and_its_folder_tell_each_other(case: str) -> None:
    uri, name = URIS[case]
    path = local_path(uri)
    assert path == staging_root() / name
    assert local_path(location(path)) == path
    inside = uri_of(path / "dataset" / "train")
    assert inside is not None
    assert inside.partition("?")[0] == f"{location(path).partition('?')[0]}/dataset/train"
    assert inside.partition("?")[2] == uri.partition("?")[2]


def test_other_paths_are_left_as_they_are(tmp_path: Path) -> None:
    assert local_path("data/run") == Path("data/run")
    assert local_path(f"file://{tmp_path}/a%20b") == tmp_path / "a b"
    assert uri_of(tmp_path) is None
    assert location(Path("data/run")) == "data/run"


BAD_URIS: dict[str, tuple[str, str]] = {
    "no folder": ("s3:///run", "names no folder"),
    "fragment": (
        "s3://bucket/run#1",
        "names no folder; write it as s3://BUCKET/FOLDER, without names in dots, and # as %23",
    ),
    "hidden": ("s3://bucket/.run", "without names in dots"),
    "leaves the bucket": ("s3://bucket/../other", "without names in dots"),
    "password": ("s3://user:secret@bucket/run", "leave the password out"),
    "made a Path": (str(Path("s3://bucket/run")), "loses a slash; give it as text"),
    "too long": (f"s3://bucket/{'x' * 300}", "give a shorter one"),
}


@pytest.mark.parametrize("case", BAD_URIS)
def test_bad_uris(case: str) -> None:
    uri, message = BAD_URIS[case]
    with pytest.raises(UserError) as raised:
        local_path(uri)
    assert message in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_folder_beside_another_is_found_in_what_holds_both() -> None:
    out = local_path("s3://bucket/out?region=x")
    assert resolve("s3://bucket/out/dataset?region=x", out / "run") == out / "dataset"
    assert resolve("s3://bucket/other/dataset?region=x", out / "run") == local_path(
        "s3://bucket/other/dataset?region=x"
    )
    assert resolve("s3://bucket/out/dataset", out / "run") == local_path("s3://bucket/out/dataset")
    assert resolve("/data/dataset", out / "run") == Path("/data/dataset")


def test_a_person_is_shown_uris() -> None:
    path = local_path("s3://bucket/run?region=x")
    assert (
        shown(f"{path}/manifest.json: missing; {path}: no")
        == "s3://bucket/run/manifest.json: missing; s3://bucket/run: no"
    )


NAMES = {
    "part-0.parquet": True,
    "checkpoints/step-00000010/.metadata": True,
    ".part-0.parquet.3f2a": False,
    "checkpoints/.unfinished-step-00000010/0.distcp": False,
    ".ray_train/x/y": False,
    ".lock": False,
}


@pytest.mark.parametrize("name", NAMES)
def test_temporary_names_are_no_outputs(name: str) -> None:
    assert is_output(name) is NAMES[name]


FETCHES: dict[str, tuple[dict[str, str | None], dict[str, str | None]]] = {
    "nothing changed": ({}, {}),
    "changed": ({"a": "longer"}, {}),
    "added": ({"deep/er/c": "3"}, {}),
    "removed": ({"deep/b": None}, {}),
    "temporary": ({".a.123": "x"}, {}),
    "the copy was changed": ({}, {"a": "by hand"}),
    "the copy was cleaned up": ({}, {"a": None, "deep/b": None}),
}


@pytest.mark.parametrize("case", FETCHES)
def test_a_fetched_folder_is_that_of_the_uri(case: str, bucket: Path) -> None:
    remote_change, local_change = FETCHES[case]
    folder = bucket / "exp" / "run"
    write(folder, {"a": "1", "deep/b": "2", "same": "0"})
    assert fetched() == {"a": "1", "deep/b": "2", "same": "0"}
    before = (local_path(URI) / "same").stat().st_mtime_ns
    for root, changes in ((folder, remote_change), (local_path(URI), local_change)):
        for name, text in changes.items():
            (root / name).unlink() if text is None else write(root, {name: text})
    assert fetched() == {name: text for name, text in tree(folder).items() if not name.startswith(".")}
    assert (local_path(URI) / "same").stat().st_mtime_ns == before
    assert not any(path.is_dir() and not any(path.iterdir()) for path in local_path(URI).rglob("*"))


def test_large_files_are_fetched_when_they_are_wanted(bucket: Path) -> None:
    folder, path = bucket / "exp" / "run", local_path(URI)
    write(folder, {"manifest.json": "{}", "train/part.parquet": "1", "words/a.arrow": "2", "words/b.arrow": "3"})
    assert fetched() == {"manifest.json": "{}"}
    (path / ".ray_train" / "x").mkdir(parents=True)  # somebody's who writes there
    assert fetched() == {"manifest.json": "{}"}
    (path / ".ray_train" / "x").rmdir()
    (path / ".ray_train").rmdir()
    # Folders tell what there is.
    assert sorted(child.name for child in path.iterdir() if child.is_dir()) == ["train", "words"]
    with open_file(path / "train" / "part.parquet") as part:
        assert part.read() == b"1"
    sizes = sizes_in(path)
    assert (sizes("train/part.parquet"), sizes("manifest.json")) == (1, 2)
    with pytest.raises(FileNotFoundError):
        sizes("train/part-2.parquet")

    assert fetch(path / "words" / "a.arrow", whole=True).read_text() == "2"
    assert fetch(path / "words", whole=True) == path / "words"
    assert tree(path) == {"manifest.json": "{}", "words/a.arrow": "2", "words/b.arrow": "3"}
    # A copy that is old is not read in the place of what is at the URI.
    write(folder, {"words/a.arrow": "longer"})
    shutil.rmtree(folder / "train")
    assert fetched() == {"manifest.json": "{}", "words/b.arrow": "3"}
    assert not (path / "train").exists()
    fetch(path, whole=True)
    assert tree(path) == tree(folder)


def test_a_path_of_another_node_is_found_here(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(bucket / "exp" / "run", {"data/part.parquet": "1"})
    theirs = local_path(URI) / "data"
    use_machine(bucket.parent / "two", monkeypatch)
    assert here(theirs) == local_path(URI) / "data" == fetch(theirs)
    assert here(bucket) == bucket
    with open_file(theirs / "part.parquet") as part:
        assert part.read() == b"1"


def test_nothing_is_fetched_of_what_is_not_there() -> None:
    assert fetched() == {}
    assert not local_path(URI).exists()


class Store:
    """What arrives in the bucket and goes from it, in order; it does not take names in `broken`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self.broken: set[str] = set()
        write_file, delete = objects.Remote.write, objects.Remote.delete

        def note_write(this: objects.Remote, name: str, source: BinaryIO, size: int) -> objects.RemoteFile:
            if name in self.broken:
                raise UserError("s3://bucket: no answer")
            done = write_file(this, name, source, size)
            self.events.append(name)
            return done

        def note_delete(this: objects.Remote, name: str) -> None:
            delete(this, name)
            self.events.append(f"-{name}")

        monkeypatch.setattr(objects.Remote, "write", note_write)
        monkeypatch.setattr(objects.Remote, "delete", note_delete)

    def wait_for(self, event: str) -> None:
        """Wait until a pass in the background has come to it."""
        deadline = time.monotonic() + 10
        while event not in self.events:
            assert time.monotonic() < deadline, self.events
            time.sleep(0.01)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(staged, "_PASS_SECONDS", 0.02)
    return Store(monkeypatch)


def checkpoint(run: Path, step: int) -> None:
    """Write as training does: under another name, progress.json after the shards, then index.json."""
    with new_folder(run / "checkpoints" / f"step-{step}") as folder:
        (folder / "0.distcp").write_text(f"shard {step}")
        (folder / ".metadata").write_text("m")
        write_json(folder / "progress.json", step)
    write_json(run / "checkpoints" / "index.json", {"latest": step})


def test_what_says_that_others_are_whole_comes_after_them(
    bucket: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged, "_PASS_SECONDS", 60.0)  # all is sent at the end

    def work(run: Path) -> None:
        write_json(run / "run.json", {})
        checkpoint(run, 1)
        write_atomically(run / "history.jsonl", "{}\n")
        write(run, {".lock": "", ".ray_train/x": "", "tensorboard/.b": ""})
        write_json(run / "result.json", {})

    mirror(work)
    probe, gone, *sent = store.events
    assert (probe, gone) == (".rayrec-probe", "-.rayrec-probe")
    assert sorted(sent[:3]) == ["checkpoints/step-1/.metadata", "checkpoints/step-1/0.distcp", "history.jsonl"]
    assert sent[3:] == ["run.json", "checkpoints/step-1/progress.json", "checkpoints/index.json", "result.json"]
    assert tree(bucket / "exp" / "run").keys() == set(sent)


def test_long_work_is_sent_as_it_goes_on_and_removals_come_last(bucket: Path, store: Store) -> None:
    def work(run: Path) -> None:
        checkpoint(run, 1)
        store.wait_for("checkpoints/index.json")
        store.events.clear()
        checkpoint(run, 2)
        shutil.rmtree(run / "checkpoints" / "step-1")
        store.wait_for("-checkpoints/step-1/0.distcp")

    mirror(work)
    removals = [event for event in store.events if event.startswith("-")]
    assert removals[0] == "-checkpoints/step-1/progress.json"
    assert store.events.index("checkpoints/index.json") < store.events.index(removals[0])
    assert sorted(tree(bucket / "exp" / "run")) == [
        "checkpoints/index.json",
        *(f"checkpoints/step-2/{name}" for name in (".metadata", "0.distcp", "progress.json")),
    ]


def test_a_file_that_goes_away_underway_lets_nothing_be_called_whole(
    bucket: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that meets a checkpoint as it is pruned: index.json waits for the next."""
    run = local_path(URI)
    upload = Upload(objects.Remote(URI), run, Journal(run.parent.parent / ".journal"), URI)
    checkpoint(run, 1)
    listed = transfer.outputs

    def prune_after(folder: Path) -> dict[str, LocalFile]:
        found = listed(folder)
        if folders:
            shutil.rmtree(run / "checkpoints" / folders.pop())
            checkpoint(run, 2)
        return found

    folders = ["step-1"]
    monkeypatch.setattr(transfer, "outputs", prune_after)
    assert not upload.pass_once()
    assert not any(name.endswith(".json") for name in tree(bucket / "exp" / "run"))
    assert upload.pass_once()
    assert tree(bucket / "exp" / "run") == tree(run)


def test_a_failure_leaves_nothing_that_says_it_is_whole(bucket: Path, store: Store) -> None:
    """And what was not sent is sent by the next command, of whatever kind."""

    def work(folder: Path) -> None:
        write(folder, {"part": "1", "part-2": "2"})
        write_json(folder / "manifest.json", {})

    store.broken = {"part-2"}
    with pytest.raises(UserError) as raised:
        mirror(work)
    path = local_path(URI)
    assert str(raised.value) == (
        f"s3://bucket: no answer; everything was written to {path}; the next command with this URI sends it"
    )
    assert tree(bucket / "exp" / "run") == {"part": "1"}
    store.broken = set()
    assert fetched().keys() == {"part", "part-2", "manifest.json"}
    assert tree(bucket / "exp" / "run") == tree(path)


def test_a_store_that_fails_for_a_while_does_not_stop_the_work(bucket: Path, store: Store) -> None:
    def work(folder: Path) -> None:
        write(folder, {"a": "1", "b": "2"})
        store.wait_for("a")
        store.broken = set()

    store.broken = {"b"}
    mirror(work)
    assert tree(bucket / "exp" / "run") == {"a": "1", "b": "2"}


def test_failed_work_is_sent_too(bucket: Path) -> None:
    def work(folder: Path) -> None:
        write(folder, {"checkpoint": "1"})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mirror(work)
    assert tree(bucket / "exp" / "run") == {"checkpoint": "1"}


def test_a_new_output_must_not_be_there(bucket: Path) -> None:
    mirror(lambda folder: write(folder, {"a": "1"}))
    with pytest.raises(UserError, match=rf"^{URI}: already exists; give another --output, or remove it first$"):
        mirror(lambda folder: write(folder, {"a": "2"}))
    assert tree(bucket / "exp" / "run") == {"a": "1"}
    shutil.rmtree(bucket / "exp" / "run")  # what was fetched of it before is no output
    mirror(lambda folder: write(folder, {"b": "1"}))
    assert tree(bucket / "exp" / "run") == {"b": "1"}


class Killed(BaseException):
    """In the place of kill -9: nothing is sent any more."""


def kill(work: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do work that is killed at its end, after a part was sent."""

    def killed(folder: Path) -> None:
        work(folder)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(staged._StagedFolder, "finish", lambda *_: None)
        with pytest.raises(Killed):
            mirror(killed)


def test_another_machine_goes_on_with_what_arrived(bucket: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(run: Path) -> None:
        checkpoint(run, 1)
        store.wait_for("checkpoints/index.json")
        monkeypatch.setattr(staged, "_PASS_SECONDS", 60.0)
        store.broken = {"checkpoints/step-2/0.distcp"}
        checkpoint(run, 2)

    kill(work, monkeypatch)
    store.broken = set()
    first = local_path(URI)
    use_machine(bucket.parent / "two", monkeypatch)
    seen: list[str] = []

    def go_on(run: Path) -> None:
        seen.extend(sorted(path.parent.name for path in run.glob("checkpoints/step-*/progress.json")))
        checkpoint(run, 3)

    mirror(go_on, continues=True)
    assert seen == ["step-1"]
    assert (bucket / "exp" / "run" / "checkpoints" / "step-3" / "progress.json").exists()
    # The first machine comes back: its work and the other's exclude each other.
    monkeypatch.setenv("RAYREC_STAGING", str(first.parents[1]))
    with pytest.raises(UserError, match=r"was changed by another machine, but .* move that folder away"):
        fetched()
    assert (first / "checkpoints" / "step-2").exists()


def test_the_same_machine_goes_on_with_all_that_it_wrote(
    bucket: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(run: Path) -> None:
        checkpoint(run, 1)
        store.wait_for("checkpoints/index.json")
        monkeypatch.setattr(staged, "_PASS_SECONDS", 60.0)
        checkpoint(run, 2)

    kill(work, monkeypatch)
    mirror(lambda run: checkpoint(run, 3), continues=True)
    assert sorted(p.name for p in (bucket / "exp" / "run" / "checkpoints").iterdir()) == [
        "index.json", "step-1", "step-2", "step-3",
    ]  # fmt: skip


def test_one_process_writes_and_readers_see_what_it_wrote(bucket: Path) -> None:
    def work(folder: Path) -> None:
        write(folder, {"a": "1"})
        with pytest.raises(UserError, match="another command is writing to it"):
            mirror(lambda _: None, continues=True)
        assert fetched() == {"a": "1"}

    mirror(work)
    assert tree(bucket / "exp" / "run") == {"a": "1"}


def test_a_server_looks_for_new_versions_now_and_then(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = local_path("s3://bucket/models")
    served = StagedModels([models, bucket])
    write(bucket / "models", {"1/schema.json": "{}"})
    served.refresh()
    write(bucket / "models", {"2/schema.json": "{}"})
    shutil.rmtree(bucket / "models" / "1")
    served.refresh()
    assert [path.name for path in models.iterdir()] == ["1"]
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 31)
    served.refresh()
    assert [path.name for path in models.iterdir()] == ["2"]


def test_a_model_is_unloaded_at_its_uri_for_all_machines(
    bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(bucket / "models", {"m/1/schema.json": "{}"})
    unloaded = TrafficSplit(weights={"1": 1.0}, unloaded=True)
    for machine, traffic in (("one", unloaded), ("two", None)):
        use_machine(tmp_path / machine, monkeypatch)
        folder = local_path("s3://bucket/models") / "m"
        served = StagedModels([folder.parent])
        served.refresh()
        assert TrafficSplit.load(folder) == (unloaded if machine == "two" else None)
        TrafficSplit.save(traffic, folder)
        served.refresh(now=True)
        assert TrafficSplit.load(folder) == traffic
        assert (bucket / "models/m/serving.json").exists() == (machine == "one")


class _ShortFile:
    """The file "abc", of which pyarrow reads only the first byte where it is asked for more, as often as `times`."""

    def __init__(self, times: int) -> None:
        self.left = times

    def size(self) -> int:
        return 3

    def seek(self, position: int) -> None:
        assert position == 0

    def readinto(self, view: memoryview) -> int:
        came = 1 if self.left else 3
        self.left = max(0, self.left - 1)
        view[:came] = b"abc"[:came]
        return 3


@pytest.mark.parametrize("value", [ord("c"), ord("c") ^ 255, 0])
@pytest.mark.parametrize("times", [0, 1, 2, 3])
def test_a_short_answer_is_noticed_whatever_the_last_byte(
    value: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_FIRST_PAUSE_SECONDS", 0.0)
    values = iter([value, 1, 2, 3])
    monkeypatch.setattr("random.randrange", lambda _: next(values))
    assert objects.RemoteReader(_ShortFile(times), "s3://bucket/abc").read() == b"abc"


def test_a_delta_is_fetched_with_the_version_that_it_needs(
    bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = ModelDays(tmp_path / "whole")
    copy(days.write("1"), bucket / "m/1")
    copy(bucket / "m/1", bucket / "m/4")  # a version after it, which nobody needs
    for day in ("2", "3"):
        days.pass_day()
        days.write(day)
        write_delta(
            days.open(day), ModelFolder.open(local_path(f"s3://bucket/m/{int(day) - 1}")), tmp_path / f"new/{day}"
        )
        copy(tmp_path / f"new/{day}", bucket / f"m/{day}")
    rows = raw_rows(days, 20)
    expected = load_model(days.folder / "3").predict(rows)
    use_machine(tmp_path / "two", monkeypatch)
    opened = ModelFolder.open(local_path("s3://bucket/m/3"))
    assert location(opened.folder) == "s3://bucket/m/3"
    np.testing.assert_array_equal(load_model(opened.folder).predict(rows), expected)
    assert not list((opened.folder.parent / "4/weights").rglob("*.safetensors"))
    assert not list((opened.folder.parent / "2/weights").rglob("*.safetensors"))
    (bucket / "m/1/weights/tables").rename(bucket / "m/1/weights/lost")
    use_machine(tmp_path / "three", monkeypatch)
    with pytest.raises(UserError, match="m/3: needs version 1, a whole model, which is missing"):
        ModelFolder.open(local_path("s3://bucket/m/3"))


PLACES = {
    "right after it": ("s3://bucket/m/2", "s3://bucket/m/1", None),
    "any number": ("s3://bucket/m/7", "s3://bucket/m/1", None),
    "another name": ("s3://bucket/m/new", "s3://bucket/m/1", None),
    "another folder": ("s3://bucket/n/2", "s3://bucket/m/1", "give --output s3://bucket/m/NUMBER,"),
    "another folder that has versions": ("s3://bucket/o/2", "s3://bucket/m/1", "give --output s3://bucket/m/NUMBER,"),
    "of a local one": ("s3://bucket/o/2", "LOCAL/1", "give --output LOCAL/NUMBER,"),
}


@pytest.mark.parametrize("case", PLACES)
def test_a_delta_lies_beside_its_base(bucket: Path, tmp_path: Path, case: str) -> None:
    output, parent, message = PLACES[case]
    for version in (*(bucket / name for name in ("m/1", "o/1")), tmp_path / "local/1"):
        (version / "weights/tables").mkdir(parents=True)
        (version / "weights/tables/t.safetensors").touch()
    local = str(tmp_path / "local")
    if message is None:
        require_place(local_path(output), local_path(parent))
        return
    with pytest.raises(ConfigError, match=re.escape(message.replace("LOCAL", local))):
        require_place(local_path(output), local_path(parent.replace("LOCAL", local)))
