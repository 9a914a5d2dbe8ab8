"""Of writers of one URI at most one hears that it succeeded, in whatever order their requests reach the store."""

import io
import json
import random
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from obstore.store import LocalStore

from rayrec.common.errors import UserError
from rayrec.store import files, folders, objects, paths
from rayrec.store.artifact import read_manifest, stored_files
from rayrec.store.claims import MANIFEST_FILE, Claim
from rayrec.store.files import as_json, files_below
from rayrec.store.folders import is_vacant, new_folder, write_manifest
from rayrec.store.paths import RemotePath, to_path
from tests.faulty_store import Faults, faulty_store

URI = "s3://bucket/out"
FILES = ("a.json", "part-0", "part-1", "deep/part-2")
_versioned, _write, _put_if = objects.versioned, objects.write, objects.put_if


class Killed(BaseException):
    """In the place of kill -9: nothing is done any more."""


class Machines:
    """Threads in the place of machines, of which one at a time goes on, up to its next request to the store."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._turn = ""
        self._waiting: set[str] = set()
        self._ended: set[str] = set()
        self._killed: set[str] = set()

    def begin(self, name: str, work: Callable[[], None]) -> None:
        def run() -> None:
            with suppress(Killed):
                work()
            with self._changed:
                self._ended.add(name)
                self._changed.notify_all()

        threading.Thread(target=run, name=name, daemon=True).start()
        self._until(lambda: name in self._waiting | self._ended)

    def before_request(self) -> None:
        """Wait for one's turn; what is no machine does not."""
        name = threading.current_thread().name
        if name not in NAMES:
            return
        with self._changed:
            self._waiting.add(name)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._turn == name, 20)
            self._waiting.discard(name)
            self._turn = ""
            if name in self._killed:
                raise Killed

    def go_on(self, name: str) -> bool:
        """Let a machine do one request; whether it has one left to do."""
        with self._changed:
            if name in self._ended:
                return False
            self._turn = name
            self._changed.notify_all()
        self._until(lambda: not self._turn and name in self._waiting | self._ended)
        return True

    def kill(self, name: str) -> None:
        self._killed.add(name)
        while self.go_on(name):
            pass

    def _until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, 20)


NAMES = ("one", "two", "three")


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for the bucket; each thread is a machine with a cache of its own."""
    folder = tmp_path / "bucket"
    folder.mkdir()
    store = LocalStore(folder, automatic_cleanup=True)
    monkeypatch.setattr(objects, "store_of", lambda _: store)
    monkeypatch.setattr(folders, "owned", lambda _: nullcontext())
    monkeypatch.setattr(objects, "for_each", lambda work, items: [work(item) for item in items])
    for module in (paths, files, folders):
        monkeypatch.setattr(module, "cache_root", lambda: tmp_path / "caches" / threading.current_thread().name)
    return folder


def put_if(path: RemotePath, content: bytes, before: objects.Version | None) -> objects.Version:
    """What stores can do, but of folders only for new files: look and write in one step."""
    if before is None:
        return _put_if(path, content, None)
    found = _versioned(path, 10**6)
    if found is None or found[1] != before:
        raise FileExistsError
    _write(path, io.BytesIO(content), len(content))
    written = _versioned(path, 10**6)
    assert written is not None
    return written[1]


def tree(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def work_of(name: str) -> dict[str, str]:
    """Return the files of a writer, which are its alone."""
    return dict.fromkeys(FILES, f"of {name}")


def write(name: str, fingerprint: str | None, shared: bool) -> None:
    with new_folder(to_path(URI), fingerprint, shared=shared) as folder:
        for file, text in work_of(name).items():
            if not shared:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(text.encode())
        write_manifest(folder, as_json({"made by": name}))


REQUESTS = {
    # A look at the claim and what follows from it are one step: nobody is taken over in between.
    "looked at before": (("versioned", "put_if", "files_below"), (False,)),
    # Whatever was on its way may arrive late.
    "on their way": (("versioned", "put_if", "files_below", "write", "delete"), (False, True)),
}


@pytest.mark.parametrize("requests", REQUESTS)
@pytest.mark.parametrize("seed", range(60))
def test_at_most_one_writer_succeeds(requests: str, seed: int, bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the folder is its own, or, where a late request changed it, the manifest is, whose checksums show that."""
    steps, ways = REQUESTS[requests]
    draw, machines, succeeded = random.Random(seed), Machines(), []
    monkeypatch.setattr(objects, "put_if", put_if)
    for name in steps:
        function = getattr(objects, name)

        def stepped(*arguments: Any, function: Callable[..., Any] = function) -> Any:
            machines.before_request()
            return function(*arguments)

        monkeypatch.setattr(objects, name, stepped)

    def attempt(name: str, fingerprint: str | None, shared: bool) -> None:
        with suppress(UserError):
            write(name, fingerprint, shared)
            succeeded.append(name)

    names = NAMES[: draw.choice((2, 2, 3))]
    for name in names:
        arguments = name, draw.choice((None, name)), draw.choice(ways)
        machines.begin(name, lambda arguments=arguments: attempt(*arguments))  # type: ignore[misc]
    # They go on in turns of some requests each; some are killed in the end, the others brought to theirs.
    for _ in range(draw.randrange(60)):
        name = draw.choice(names)
        for _ in range(draw.choice((1, 2, 10))):
            machines.go_on(name)
    for name in draw.sample(names, len(names)):
        if draw.random() < 0.3:
            machines.kill(name)
        while machines.go_on(name):
            pass

    assert len(succeeded) <= 1
    if is_vacant(to_path(URI)):
        assert not succeeded
        if requests == "looked at before":
            write("another", None, False)
            succeeded.append("another")
        else:
            return
    content = tree(bucket / "out")
    made_by = json.loads(content.pop(MANIFEST_FILE))["made by"]
    assert [made_by] == succeeded or not succeeded
    if requests == "looked at before":
        assert content == work_of(made_by)


def test_a_manifest_does_not_list_itself(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though at a URI it is there before the others, as the claim."""
    monkeypatch.setattr(objects, "put_if", put_if)
    with new_folder(to_path(URI), shared=True) as folder:
        (folder / "part").write_bytes(b"1")
        assert list(files_below(folder)) == [MANIFEST_FILE, "part"]
        assert [file.path for file in stored_files(folder, files_below(folder))] == ["part"]


def test_a_conditional_put_whose_answer_was_lost_has_succeeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a server of S3: and of two that take a folder over, one does."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("RAYREC_CACHE", str(tmp_path))
    with faulty_store() as store, store.endpoint() as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint.url)
        for seed in range(3):
            store.faults = Faults(seed=seed, fail=0.2, reset=0.4)
            folder = to_path(f"s3://bucket/out-{seed}")
            assert isinstance(folder, RemotePath)
            first = Claim.take(folder, "")
            (folder / "part").write_bytes(b"of the first")
            second = Claim.take(folder, "")
            with pytest.raises(UserError, match="another command has begun to write it"):
                first.finish()
            with pytest.raises(UserError, match="another command has begun to write it"):
                first.give_up()
            second.manifest = b'{"made by": "the second"}'
            second.finish()
            store.faults = Faults()
            assert store.names(f"out-{seed}") == [MANIFEST_FILE]
            assert read_manifest(folder) == {"made by": "the second"}
            with pytest.raises(UserError, match="already exists"):
                Claim.take(folder, "")
            with pytest.raises(FileExistsError):
                objects.put_if(folder / MANIFEST_FILE, b"2", None)
