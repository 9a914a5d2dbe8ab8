"""Paths of URIs, and that folders at them are whole or not taken for such, whatever goes wrong."""

import itertools
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import LocalStore

from rayrec.common.errors import ConfigError, StoreError, UserError
from rayrec.common.progress import SilentProgress
from rayrec.features.hashes import hash_key
from rayrec.features.lookup_table import HASH, LookupTable, write_file
from rayrec.inference.folder.delta import require_place, write_delta
from rayrec.inference.folder.model_folder import ModelFolder, copy
from rayrec.inference.predictor import load_model
from rayrec.preprocessing.segments import Piece
from rayrec.preprocessing.workspace import Stages
from rayrec.sources.outbrain.side_tables import DocumentRows
from rayrec.store import folders, growing_files, objects, stores
from rayrec.store.artifact import read_manifest
from rayrec.store.files import as_json, files_below, is_output, new_file, remove, sizes_in
from rayrec.store.folders import is_vacant, new_folder, owned, unfinished_work, write_manifest
from rayrec.store.node_copy import on_this_node, original, shown
from rayrec.store.paths import RemotePath, place_on_this_node, to_path
from serve.folders import LocalModels, TrafficSplit
from tests.model_days import ModelDays, raw_rows

URI = "s3://bucket/exp/run"
LAST = "manifest.json"


_REPLACING = threading.Lock()
_put_if = objects.put_if


def put_if(path: RemotePath, content: bytes, before: objects.Version | None) -> objects.Version:
    """What stores can do, but of folders only for new files: look and write in one step."""
    if before is None:
        return _put_if(path, content, None)
    with _REPLACING:
        found = objects.versioned(path, 10**6)
        if found is None or found[1] != before:
            raise FileExistsError
        path.write_bytes(content)
        written = objects.versioned(path, 10**6)
    assert written is not None
    return written[1]


@pytest.fixture(autouse=True)
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `s3://bucket` is: a folder, which obstore reads and writes as it does a bucket."""
    folder = tmp_path / "remote" / "bucket"
    folder.mkdir(parents=True)
    store = LocalStore(folder, automatic_cleanup=True)
    monkeypatch.setattr(objects, "store_of", lambda _: store)
    monkeypatch.setattr(objects, "put_if", put_if)
    use_machine(tmp_path / "one", monkeypatch)
    return folder


def use_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go on as on another machine, which has copies of nothing."""
    monkeypatch.setenv("RAYREC_CACHE", str(folder))


def tree(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def write(folder: Path, content: dict[str, str]) -> None:
    for name, text in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


URIS: dict[str, tuple[str, str, str]] = {
    "folder": ("s3://bucket/exp-1/run_2", "run_2", "s3://bucket/exp-1/run_2"),
    "trailing and double slashes": ("s3://bucket//exp/run/", "run", "s3://bucket/exp/run"),
    "whole bucket": ("gs://bucket", "bucket", "gs://bucket"),
    "query": ("s3://bucket/run?scheme=http&endpoint_override=127.0.0.1:5000", "run", ""),
    "not ASCII": ("s3://bucket/é %20x", "é  x", "s3://bucket/é  x"),
    "escaped": ("s3://bucket/a%23b%3Fc%2541", "a#b?c%41", ""),
}


@pytest.mark.parametrize("case", URIS)
def test_a_path_and_its_uri_tell_each_other(case: str) -> None:
    uri, name, text = URIS[case]
    path = to_path(uri)
    assert isinstance(path, RemotePath)
    assert (path.name, str(path)) == (name, text or uri)
    assert to_path(str(path)) == path
    inside = path / "dataset" / "train"
    assert str(inside).partition("?")[0] == f"{str(path).partition('?')[0]}/dataset/train"
    assert str(inside).partition("?")[2] == uri.partition("?")[2]
    assert (inside.relative_to(path), inside.parent.parent) == (Path("dataset/train"), path)


def test_other_paths_are_left_as_they_are(tmp_path: Path) -> None:
    assert to_path("data/run") == Path("data/run")
    assert to_path(f"file://{tmp_path}/a%20b") == tmp_path / "a b"
    assert on_this_node(tmp_path) == original(tmp_path) == tmp_path


LIBRARIES: dict[str, Callable[[Path], object]] = {
    "open": open,
    "os": os.stat,
    "shutil": lambda path: shutil.copyfile(path, "copy"),
    "NumPy": lambda path: np.memmap(path, mode="r"),
    "pyarrow": pq.read_table,
    "a method of paths that it lacks": lambda path: path.rename("other"),
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_remote_path_is_not_taken_for_a_local_one(library: str) -> None:
    with pytest.raises(TypeError, match=f"{URI}: is at a URI"):
        LIBRARIES[library](to_path(URI))


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
}


@pytest.mark.parametrize("case", BAD_URIS)
def test_bad_uris(case: str) -> None:
    uri, message = BAD_URIS[case]
    with pytest.raises(UserError) as raised:
        to_path(uri)
    assert message in str(raised.value)
    assert "secret" not in str(raised.value)


def test_the_verbs_of_paths(bucket: Path) -> None:
    folder = to_path(URI)
    assert not folder.exists()
    assert not folder.is_dir()
    write(bucket / "exp/run", {"a.json": '"é"', "deep/b.parquet": "22", "deep/er/c.parquet": "3"})
    assert (folder.is_dir(), folder.is_file(), (folder / "a.json").is_file()) == (True, False, True)
    assert [path.name for path in folder.iterdir()] == ["a.json", "deep"]
    assert (folder / "a.json").read_text() == '"é"'
    with (folder / "a.json").open() as file:
        assert json.load(file) == "é"
    assert (folder / "deep/b.parquet").stat().st_size == 2
    assert sorted(folder.glob("deep/*.parquet")) == [folder / "deep/b.parquet"]
    (folder / "deep/b.parquet").unlink()
    (folder / "new").write_bytes(b"1")
    assert list(files_below(folder)) == ["a.json", "deep/er/c.parquet", "new"]
    assert sizes_in(folder)("new") == 1
    for missing in (lambda: sizes_in(folder)("x"), (folder / "x").read_bytes, lambda: list((folder / "x").iterdir())):
        with pytest.raises(FileNotFoundError):
            missing()
    remove(folder)
    assert is_vacant(folder)
    assert tree(bucket) == {}


NAMES = {
    "part-0.parquet": True,
    "checkpoints/step-00000010/.metadata": True,
    ".part-0.parquet.3f2a": False,
    ".scratch/rows/0.parquet": False,
    ".lock": False,
}


@pytest.mark.parametrize("name", NAMES)
def test_temporary_names_are_no_outputs(name: str) -> None:
    assert is_output(name) is NAMES[name]


CHANGES: dict[str, tuple[dict[str, str | None], dict[str, str | None]]] = {
    "nothing changed": ({}, {}),
    "changed": ({"a": "longer"}, {}),
    "added": ({"deep/er/c": "3"}, {}),
    "removed": ({"deep/b": None}, {}),
    "temporary": ({".a.123": "x"}, {}),
    "the copy was changed": ({}, {"a": "by hand"}),
    "the copy was cleaned up": ({}, {"a": None, "deep/b": None}),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_copy_is_what_is_at_the_uri(case: str, bucket: Path) -> None:
    remote_change, local_change = CHANGES[case]
    folder, path = bucket / "exp" / "run", to_path(URI)
    write(folder, {"a": "1", "deep/b": "2", "same": "0"})
    copied = on_this_node(path)
    assert tree(copied) == {"a": "1", "deep/b": "2", "same": "0"}
    before = (copied / "same").stat().st_ino
    for root, changes in ((folder, remote_change), (copied, local_change)):
        for name, text in changes.items():
            (root / name).unlink() if text is None else write(root, {name: text})
    assert tree(on_this_node(path)) == {n: text for n, text in tree(folder).items() if not n.startswith(".")}
    assert (copied / "same").stat().st_ino == before
    assert not any(found.is_dir() and not any(found.iterdir()) for found in copied.rglob("*"))
    assert original(copied / "deep") == path / "deep"
    assert shown(f"{copied}/a: missing; {copied}: no") == f"{URI}/a: missing; {URI}: no"


def test_nothing_is_copied_of_what_is_not_there(bucket: Path) -> None:
    write(bucket / "exp/run", {"a": "1"})
    assert on_this_node(to_path(URI) / "a").read_text() == "1"
    shutil.rmtree(bucket / "exp")
    assert not on_this_node(to_path(URI) / "a").exists()
    assert not on_this_node(to_path(URI)).exists()


class Killed(BaseException):
    """In the place of kill -9: nothing is done any more."""


class Store:
    """What arrives in the bucket and goes from it, in order; it fails for names in `broken`.

    The process ends at the n-th change that is `left`: before it is made, and nothing is done after that.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self.broken: set[str] = set()
        self.left: float = float("inf")
        for name in ("write", "delete", "put_if"):
            monkeypatch.setattr(objects, name, self._noted(getattr(objects, name), "-" if name == "delete" else ""))

    def _noted(self, function: Callable[..., Any], sign: str) -> Callable[..., Any]:
        def called(path: RemotePath, *arguments: Any) -> Any:
            name = path.key.removeprefix("exp/run/")
            self.left -= 1
            if self.left < 0:
                raise Killed
            if name in self.broken:
                raise StoreError(f"{path}: no answer")
            done = function(path, *arguments)
            self.events.append(f"{sign}{name}")
            return done

        return called

    def wait_for(self, event: str) -> None:
        deadline = time.monotonic() + 10
        while event not in self.events:
            assert time.monotonic() < deadline, self.events
            time.sleep(0.01)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(growing_files, "_PUT_SECONDS", 0.02)
    return Store(monkeypatch)


def attempt(where: str, shared: bool, fingerprint: str | None, error: type[Exception] | None = None) -> bool:
    """Write an output whose files hold the fingerprint; whether there was work to do."""
    output, text = to_path(URI) / where, fingerprint or ""
    with new_folder(output, fingerprint, shared=shared) as folder:
        if is_work := read_manifest(folder) is None:
            for name in (".scratch/rows", "train/part-0", "train/part-1", f"statistics/s{text}"):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with new_file(folder / name) as temporary:
                    temporary.write_text(text)
            if error is not None:
                raise error("no")
            write_manifest(folder, as_json(text_of(fingerprint)))
    return is_work


def text_of(fingerprint: str | None) -> dict[str, str]:
    """Return the manifest of an output, which is another one for each fingerprint."""
    return {"made by": fingerprint or ""}


def written(where: str, fingerprint: str | None) -> dict[str, str]:
    text = fingerprint or ""
    beginning = "" if where == "." else f"{where}/"
    names = ["train/part-0", "train/part-1", f"statistics/s{text}"]
    return {f"{beginning}{name}": text for name in names} | {f"{beginning}{LAST}": as_json(text_of(fingerprint))}


WAYS = {
    "by this node": (".", False, "a"),
    "by many nodes": (".", True, "a"),
    "in a folder that others write too": ("dataset", True, "a"),
    "anew each time": ("dataset", False, None),
}


@pytest.mark.parametrize("case", WAYS)
@pytest.mark.parametrize("other", [None, "b"])
def test_a_death_at_any_moment_leaves_nothing_that_looks_whole(
    case: str, other: str | None, bucket: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same work goes on on another machine; other work begins anew, and may itself be given up."""
    where, shared, fingerprint = WAYS[case]
    folder, output = bucket / "exp" / "run", to_path(URI) / where
    for moment in itertools.count():
        use_machine(tmp_path / f"machine-{moment}", monkeypatch)
        store.left = moment
        is_over = False
        with suppress(Killed):
            attempt(where, shared, fingerprint)
            is_over = True
        # What says that the folder is whole comes last; then only the scratch goes.
        is_whole = not is_vacant(output)
        assert is_whole or not is_over
        if is_whole:
            assert written(where, fingerprint).items() <= tree(folder).items(), moment
        if other is not None:
            store.left = 4
            with pytest.raises((Killed, UserError)):
                attempt(where, shared, other)
        store.left = float("inf")
        use_machine(tmp_path / f"another-{moment}", monkeypatch)
        if is_whole:
            with pytest.raises(UserError, match="already exists"):
                attempt(where, shared, fingerprint)
        else:
            attempt(where, shared, fingerprint)
        assert {n: text for n, text in tree(folder).items() if is_output(n)} == written(where, fingerprint), moment
        assert not unfinished_work(output)
        shutil.rmtree(folder)
        if is_over:
            break
    assert moment > 5


def test_shared_work_goes_on_from_what_is_there(
    bucket: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError):
        attempt(".", True, "a", StoreError)
    assert unfinished_work(to_path(URI)) == {"a"}
    use_machine(tmp_path / "two", monkeypatch)
    with new_folder(to_path(URI), "a", shared=True) as folder:
        assert (folder / "train/part-1").read_text() == "a"
        write_manifest(folder, as_json(text_of("a")))
    assert tree(bucket / "exp" / "run") == written(".", "a")


@pytest.mark.parametrize("error", [UserError, StoreError, RuntimeError])
@pytest.mark.parametrize("shared", [False, True])
def test_what_the_user_must_mend_is_not_kept(error: type[Exception], shared: bool, bucket: Path) -> None:
    with pytest.raises(error, match="no"):
        attempt(".", shared, "a", error)
    assert unfinished_work(to_path(URI)) == (set() if error is UserError else {"a" if shared else ""})
    assert attempt(".", shared, "a")
    assert tree(bucket / "exp" / "run") == written(".", "a")


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_there_already_is_not_written_again(shared: bool, bucket: Path) -> None:
    attempt(".", shared, "a")
    for fingerprint in ("a", "b"):
        with pytest.raises(UserError, match=rf"^{URI}: already exists; give another --output, or remove it first$"):
            attempt(".", shared, fingerprint)
    assert tree(bucket / "exp" / "run") == written(".", "a")


@pytest.mark.parametrize("shared", [False, True])
def test_of_two_machines_only_one_writes_an_output(
    shared: bool, bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one, which the second does not know, finds at its end that another has begun."""
    with (
        pytest.raises(UserError, match=f"^{URI}: another command has begun to write it; give another --output$"),
        new_folder(to_path(URI), "a", shared=shared) as folder,
    ):
        with new_file(folder / "part") as temporary:
            temporary.write_text("a")
        with monkeypatch.context() as patched:
            use_machine(tmp_path / "two", patched)
            patched.setattr(folders, "owned", lambda _: nullcontext())
            attempt(".", shared, "b")
    assert tree(bucket / "exp" / "run") == written(".", "b")


def test_of_two_commands_of_a_machine_one_writes() -> None:
    def other_command() -> None:
        with owned(to_path(URI)):
            pass

    busy = pytest.raises(UserError, match=f"^{URI}: another command is writing to it")
    with owned(to_path(URI)), ThreadPoolExecutor(1) as pool, busy:
        pool.submit(other_command).result()


def test_a_failure_leaves_nothing_that_says_it_is_whole(bucket: Path, store: Store) -> None:
    store.broken = {"train/part-1"}
    with pytest.raises(StoreError, match=f"^{URI}/train/part-1: no answer$"):
        attempt(".", False, "a")
    assert is_vacant(to_path(URI))
    store.broken = set()
    assert not attempt(".", False, "a")  # all was done, but for putting it
    assert tree(bucket / "exp" / "run") == written(".", "a")


def test_what_this_node_wrote_is_its_copy(bucket: Path, store: Store) -> None:
    attempt(".", False, "a")
    before = {path: path.stat().st_ino for path in place_on_this_node(RemotePath.of(URI)).rglob("*") if path.is_file()}
    assert before
    assert not (place_on_this_node(RemotePath.of(URI)) / ".scratch").exists()
    on_this_node(to_path(URI))
    assert {path: path.stat().st_ino for path in on_this_node(to_path(URI)).rglob("*") if path.is_file()} == before


def test_files_that_grow_are_put_as_they_do(bucket: Path, store: Store) -> None:
    history = bucket / "exp/run/history.jsonl"
    write(bucket / "exp/run", {"history.jsonl": "0\n"})
    store.broken = {"events/e"}
    with growing_files.growing_files(to_path(URI), "history.jsonl", "absent") as growing:
        with (growing.folder / "history.jsonl").open("a") as file:
            file.write("1\n")
        store.wait_for("history.jsonl")
        write(growing.folder, {"events/e": "e"})
        time.sleep(0.1)  # a store that fails for a while does not stop the work
        store.broken = set()
        store.wait_for("events/e")
        with (growing.folder / "history.jsonl").open("a") as file:
            file.write("2\n")
        growing.put()
        assert history.read_text() == "0\n1\n2\n"
        with (growing.folder / "history.jsonl").open("a") as file:
            file.write("3\n")
    assert history.read_text() == "0\n1\n2\n3\n"
    with growing_files.growing_files(bucket) as growing:
        assert growing.folder == bucket


def test_tables_are_mapped_from_one_copy(bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/spark,/elsewhere")
    schema = pa.schema([(HASH, pa.int64()), ("key", pa.int64())])
    with new_folder(to_path(URI), "a", shared=True) as folder:
        keys = pa.array(range(100)).to_numpy()
        rows = pa.table({HASH: hash_key(keys), "key": keys}).sort_by(HASH).to_batches()
        assert write_file(folder / "table", schema, (batch.cast(schema) for batch in rows)) == 100
        table = LookupTable.open(folder / "table")
        assert (table.find({"key": keys}) >= 0).all()
        assert len(LookupTable.open(folder / "empty")) == 0
        assert on_this_node(folder / "table").is_relative_to(tmp_path / "spark")
        write_manifest(folder, "{}")


def test_stages_go_on_on_another_machine(bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their marks and files are at the URI."""

    def work(folder: Path) -> DocumentRows:
        with new_file(folder / "rows") as temporary:
            temporary.write_text("1")
        rows = [Piece(folder / "rows", 0, 1)]
        return DocumentRows(
            folder=folder, rows=rows, documents=1, values={}, largest_publisher=0, sources_without_publisher=[]
        )

    def unreachable(_: Path) -> DocumentRows:
        raise AssertionError

    with pytest.raises(Killed), new_folder(to_path(URI), "a", shared=True) as folder:
        Stages(folder / ".scratch", SilentProgress()).run("values", DocumentRows, work)
        raise Killed
    use_machine(tmp_path / "two", monkeypatch)
    with new_folder(to_path(URI), "a", shared=True) as folder:
        found = Stages(folder / ".scratch", SilentProgress()).run("values", DocumentRows, unreachable)
        assert found.folder == folder / ".scratch" / "values"
        assert found.rows[0].path.read_bytes() == b"1"
        write_manifest(folder, "{}")


def test_a_server_looks_for_new_versions_now_and_then(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = LocalModels({"m": to_path("s3://bucket/models"), "n": bucket})
    models = served.folders["m"]
    assert served.folders["n"] == bucket
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
        served = LocalModels({"m": to_path("s3://bucket/models")})
        folder = served.folders["m"] / "m"
        served.refresh()
        assert TrafficSplit.load(folder) == (unloaded if machine == "two" else None)
        TrafficSplit.save(traffic, folder)
        served.refresh(now=True)
        assert TrafficSplit.load(folder) == traffic
        assert (bucket / "models/m/serving.json").exists() == (machine == "one")


@pytest.mark.parametrize("times", [0, 1, 3])
def test_a_short_answer_is_noticed(times: int, bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for again, as often as it is too short."""
    write(bucket, {"abc": "abc"})
    monkeypatch.setattr(stores, "_FIRST_PAUSE_SECONDS", 0.0)
    whole, lengths = objects.obstore.get_range, iter([1] * times + [3])
    monkeypatch.setattr(
        objects.obstore, "get_range", lambda *where, length, **rest: whole(*where, length=next(lengths), **rest)
    )
    assert to_path("s3://bucket/abc").read_bytes() == b"abc"
    assert next(lengths, None) is None


def test_a_forked_process_is_told_instead_of_waiting_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(stores, "_first_process", os.getpid() + 1)
    with pytest.raises(StoreError, match=f"^{URI}: cannot be opened in a process forked from one"):
        to_path(URI).exists()


@pytest.mark.parametrize("source", ["environment", "profile", "nothing"])
def test_credentials_are_those_of_the_environment_else_of_a_profile(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "credentials"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    if source != "nothing":
        file.write_text("[work]\naws_access_key_id = of-profile\naws_secret_access_key = secret\n")
        monkeypatch.setenv("AWS_PROFILE", "work")
    if source == "environment":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-environment")
    provider = stores._profile(URI)
    assert (provider and provider()["access_key_id"]) == ("of-profile" if source == "profile" else None)


def test_a_profile_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_PROFILE", "misspelt")
    with pytest.raises(StoreError, match=r"cannot be opened: .*misspelt.*; check AWS_PROFILE and ~/.aws$"):
        stores._profile(URI)


def test_a_delta_is_copied_with_the_version_that_it_needs(
    bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = ModelDays(tmp_path / "whole")
    copy(days.write("1"), bucket / "m/1")
    copy(bucket / "m/1", bucket / "m/4")  # a version after it, which nobody needs
    for day in ("2", "3"):
        days.pass_day()
        days.write(day)
        write_delta(days.open(day), ModelFolder.open(to_path(f"s3://bucket/m/{int(day) - 1}")), tmp_path / f"new/{day}")
        copy(tmp_path / f"new/{day}", bucket / f"m/{day}")
    rows = raw_rows(days, 20)
    expected = load_model(days.folder / "3").predict(rows)
    use_machine(tmp_path / "two", monkeypatch)
    opened = ModelFolder.open(to_path("s3://bucket/m/3"))
    assert str(opened.folder) == "s3://bucket/m/3"
    np.testing.assert_array_equal(load_model(opened.folder).predict(rows), expected)
    assert not list((opened.here.parent / "4/weights").rglob("*.safetensors"))
    assert not list((opened.here.parent / "2/weights").rglob("*.safetensors"))
    (bucket / "m/1").rename(bucket / "m/lost")
    use_machine(tmp_path / "three", monkeypatch)
    with pytest.raises(UserError, match="m/3: needs version 1, a whole model, which is missing"):
        ModelFolder.open(to_path("s3://bucket/m/3"))


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
        require_place(to_path(output), to_path(parent))
        return
    with pytest.raises(ConfigError, match=re.escape(message.replace("LOCAL", local))):
        require_place(to_path(output), to_path(parent.replace("LOCAL", local)))
