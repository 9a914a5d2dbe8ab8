"""Files that land while a disk is full are taken in later, and not refused."""

from pathlib import Path

import pytest

from jobs import follow
from jobs.follow import REFUSED_FILE, FollowRequest
from jobs.pipeline import days
from rayrec.common.errors import DiskError, StoreError, UserError
from rayrec.common.progress import SilentProgress


def _request(tmp_path: Path) -> FollowRequest:
    landing = tmp_path / "landing"
    landing.mkdir()
    (landing / "clicks.csv").write_text("y,a\n1,2\n")
    return FollowRequest.model_validate({
        "recipe": "neumf-ml-1m-debug", "input": [str(landing)], "serve": str(tmp_path / "served"),
        "output": str(tmp_path / "days"),
    })  # fmt: skip


@pytest.mark.parametrize(("error", "refuses"), [(DiskError, False), (StoreError, False), (UserError, True)])
def test_files_are_refused_for_what_is_in_them(
    error: type[UserError], refuses: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error("it does not work")

    request = _request(tmp_path)
    request.output.mkdir()
    (tmp_path / "served" / "1" / "weights").mkdir(parents=True)
    (tmp_path / "served" / "1" / "manifest.json").touch()
    monkeypatch.setattr(follow, "run_day", fails)
    follower = follow._Follower(request, tmp_path / "landing", SilentProgress())
    assert not follower.take(), "a file that may still grow waits"
    if refuses:
        follower.take()
    else:
        with pytest.raises(error):
            follower.take()
    assert (request.output / REFUSED_FILE).exists() is refuses


@pytest.mark.parametrize(("error", "stays"), [(DiskError, True), (UserError, False)])
def test_a_day_that_a_full_disk_stopped_goes_on(
    error: type[UserError], stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error("it does not work")

    request = _request(tmp_path)
    monkeypatch.setattr(days, "run_phases", fails)
    with pytest.raises(error):
        days.run_day(request, request.output, request.serve, SilentProgress())
    assert (request.output / days.DAY_FILE).exists() is stays
