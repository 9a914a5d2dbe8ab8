"""Folders that are written at a URI by nodes that share no disk: whole or unfinished, whenever the writer dies."""

import itertools
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rayrec.common.errors import StoreError, UserError
from rayrec.common.progress import SilentProgress
from rayrec.features.hashes import hash_key
from rayrec.features.lookup_table import HASH, LookupTable, write_file
from rayrec.preprocessing.workspace import Stages
from rayrec.store import objects
from rayrec.store.files import exists, files_below, files_in, mappable, new_file, read_bytes, remove, write_json
from rayrec.store.paths import local_path
from rayrec.store.staged import lent, mirrored
from rayrec.store.unfinished import has_unfinished_work, new_folder_at_uri, require_new
from tests.unit.test_storage import URI, Killed, bucket, tree, use_machine

__all__ = ["bucket"]
LAST = "manifest.json"
OUTPUTS = {"alone": (".", False), "in a folder that others write too": ("dataset", True)}
"""Where in the staged folder the output is, and whether the command goes on with what is there."""


class Mortal:
    """Ends the process at the n-th change of the bucket: before it is made, and nothing is done after that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: float = 0
        for name in ("write", "copy", "delete"):
            monkeypatch.setattr(objects.Remote, name, self._mortal(getattr(objects.Remote, name)))

    def _mortal(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise Killed
            return method(*arguments)

        return called


def attempt(where: str, continues: bool, fingerprint: str, error: type[Exception] | None = None) -> bool:
    """Write an output whose files hold the fingerprint; whether there was work to do."""
    root = local_path(URI)
    output, is_work = root / where, False
    with mirrored(root, continues=continues, progress=SilentProgress()), lent(root, SilentProgress()) as is_lent:
        assert is_lent
        require_new(output)
        with new_folder_at_uri(output, fingerprint, LAST) as folder:
            if is_work := not exists(folder / LAST):
                for name in (".scratch/rows", "train/part-0", "train/part-1", f"statistics/{fingerprint}"):
                    with new_file(folder / name) as temporary:
                        temporary.write_text(fingerprint)
                if error is not None:
                    raise error("no")
                write_json(folder / LAST, fingerprint)
            remove(folder / ".scratch")
        return is_work


def written(where: str, fingerprint: str) -> dict[str, str]:
    names = ["train/part-0", "train/part-1", f"statistics/{fingerprint}"]
    beginning = "" if where == "." else f"{where}/"
    return {f"{beginning}{name}": fingerprint for name in names} | {f"{beginning}{LAST}": f'"{fingerprint}"\n'}


@pytest.mark.parametrize("case", OUTPUTS)
@pytest.mark.parametrize("then", [["a"], ["b"], ["b", "a"]])
def test_a_death_at_any_moment_costs_nothing(
    case: str, then: list[str], bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same work goes on on another machine; other work begins anew, and may itself be given up."""
    where, continues = OUTPUTS[case]
    mortal, folder = Mortal(monkeypatch), bucket / "exp" / "run"
    for moment in itertools.count():
        use_machine(tmp_path / f"machine-{moment}", monkeypatch)
        mortal.left = moment
        is_over = False
        with suppress(Killed):
            attempt(where, continues, "a")
            is_over = True
        *others, wanted = then
        for other in others:
            # It dies as it ends, too.
            mortal.left = 12
            with pytest.raises((Killed, UserError)):
                attempt(where, continues, other)
        mortal.left = float("inf")
        use_machine(tmp_path / f"another-{moment}", monkeypatch)
        if (folder / where / LAST).exists() and (wanted != "a" or not has_unfinished_work(local_path(URI) / where)):
            with pytest.raises(UserError, match="already exists"):
                attempt(where, continues, wanted)
            wanted = "a"
        if not (folder / where / LAST).exists() or has_unfinished_work(local_path(URI) / where):
            attempt(where, continues, wanted)
        left = {name: text for name, text in tree(folder).items() if name != ".rayrec-probe"}
        assert left == written(where, wanted), moment
        assert not has_unfinished_work(local_path(URI) / where)
        shutil.rmtree(folder)
        if is_over:
            break
    assert moment > 12


@pytest.mark.parametrize("error", [UserError, StoreError, RuntimeError])
def test_what_the_user_must_mend_is_not_kept(error: type[Exception], bucket: Path) -> None:
    with pytest.raises(error, match="no"):
        attempt(".", False, "a", error)
    assert has_unfinished_work(local_path(URI)) is (error is not UserError)
    assert attempt(".", False, "a")
    assert tree(bucket / "exp" / "run") == written(".", "a")


def test_what_is_there_already_is_not_written_again(bucket: Path) -> None:
    attempt(".", False, "a")
    for fingerprint in ("a", "b"):
        with pytest.raises(UserError, match=rf"^{URI}: already exists; give another --output, or remove it first$"):
            attempt(".", False, fingerprint)
    assert tree(bucket / "exp" / "run") == written(".", "a")


def test_files_too_large_for_a_copy_are_sent_again(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_MOST_COPIED_BYTES", 0)
    attempt(".", False, "a")
    assert tree(bucket / "exp" / "run") == written(".", "a")


def test_files_are_found_by_name_and_removed(bucket: Path) -> None:
    with new_folder_at_uri(local_path(URI), "a", LAST) as folder:
        for name in ("rows/b.parquet", "rows/a.parquet", "rows/a.arrow", "rows/more/c.parquet"):
            with new_file(folder / name) as temporary:
                temporary.write_text(name)
        assert files_in(folder / "rows", "*.parquet") == [folder / "rows" / "a.parquet", folder / "rows" / "b.parquet"]
        assert files_below(folder / "rows") == ["a.arrow", "a.parquet", "b.parquet", "more/c.parquet"]
        assert read_bytes(folder / "rows" / "a.arrow") == b"rows/a.arrow"
        remove(folder / "rows" / "a.arrow")
        assert not exists(folder / "rows" / "a.arrow")
        remove(folder / "rows")
        assert files_below(folder) == []
        with new_file(folder / LAST) as temporary:
            temporary.write_text("")
    assert not local_path(URI).exists()  # nothing of it was on this machine


def test_tables_are_mapped_from_one_copy(bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    schema = pa.schema([(HASH, pa.int64()), ("key", pa.int64())])
    with new_folder_at_uri(local_path(URI), "a", LAST) as folder:
        keys = pa.array(range(100)).to_numpy()
        rows = pa.table({HASH: hash_key(keys), "key": keys}).sort_by(HASH).to_batches()
        assert write_file(folder / "table", schema, (batch.cast(schema) for batch in rows)) == 100
        table = LookupTable.open(folder / "table")
        assert (table.find({"key": keys}) >= 0).all()
        assert len(LookupTable.open(folder / "empty")) == 0
        assert mappable(folder / "table").is_relative_to(tmp_path)
        remove(folder / "table")
        assert len(LookupTable.open(folder / "table")) == 100
        write_json(folder / LAST, None)


def test_stages_go_on_on_another_machine(bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their marks and files are at the URI, by whatever path a machine names it."""

    def work(folder: Path) -> Path:
        with new_file(folder / "rows") as temporary:
            temporary.write_text("1")
        return folder / "rows"

    def unreachable(_: Path) -> Path:
        raise AssertionError

    with pytest.raises(Killed), new_folder_at_uri(local_path(URI), "a", LAST) as folder:
        Stages(folder / ".scratch", SilentProgress()).run("parse", Path, work)
        raise Killed
    use_machine(tmp_path / "two", monkeypatch)
    with new_folder_at_uri(local_path(URI), "a", LAST) as folder:
        rows = Stages(folder / ".scratch", SilentProgress()).run("parse", Path, unreachable)
        assert read_bytes(rows) == b"1"
        write_json(folder / LAST, None)
