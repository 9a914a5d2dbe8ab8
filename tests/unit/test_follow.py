"""Files that land while a disk is full are taken in later; those that no model can be made of are refused once."""

import json
from pathlib import Path

import pytest

from jobs import follow
from jobs.command import Result
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


def test_a_day_that_cannot_be_trained_on_is_not_tried_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its dataset is whole, but the loss is not finite, say; of two files that came together the other one is tried."""
    request, tried = _request(tmp_path), []
    (tmp_path / "landing" / "good.csv").write_text("y,a\n0,2\n")
    (tmp_path / "served" / "1" / "weights").mkdir(parents=True)
    (tmp_path / "served" / "1" / "manifest.json").touch()

    def fails(day: FollowRequest, output: Path, *_: object) -> Result:
        tried.append([Path(path).name for path in day.input])
        if tried[-1] == ["good.csv"]:
            return Result(command="run", details={"version": "2"})
        folder = output / days.DAYS_FOLDER / "0001"
        (folder / "dataset").mkdir(parents=True)
        content = {"input": day.input, "before": ".", "serving": "1", "version": "2"}
        (folder / days.DAY_FILE).write_text(json.dumps(content))
        raise UserError("the loss is not finite")

    monkeypatch.setattr(follow, "run_day", fails)
    follower = follow._Follower(request, tmp_path / "landing", SilentProgress())
    taken = [follower.take() for _ in range(4)]
    assert taken == [False, True, False, False]
    assert sorted(map(sorted, tried)) == [["clicks.csv"], ["clicks.csv", "good.csv"], ["good.csv"]]
    assert days.days_of(request.output) == []
    (refused,) = (request.output / REFUSED_FILE).read_text().splitlines()
    assert json.loads(refused)["file"].endswith("clicks.csv")


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
