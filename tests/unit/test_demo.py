"""The parts of the demo that need no Ray."""

from pathlib import Path

import pytest

from jobs.command.result import Result
from jobs.demo import DemoRequest, _line, run
from jobs.preprocess import PreprocessRequest, inputs_by_split
from rayrec.common.errors import ConfigError
from rayrec.common.progress import SilentProgress


def test_steps_read_as_commands() -> None:
    request = PreprocessRequest(recipe="r", input=("a b", "c"), output=Path("o"), set=("preprocess.seed=3",))
    line = _line("preprocess", request)
    assert line == "rayrec preprocess r --input 'a b' --input c --output o --set preprocess.seed=3"


@pytest.mark.parametrize(("command", "replaced"), [("demo", True), ("train", False), (None, False)])
def test_only_an_earlier_demo_is_replaced(command: str | None, replaced: bool, tmp_path: Path) -> None:
    if command:
        Result(command=command).save(tmp_path / "demo")
    assert DemoRequest(output=tmp_path / "demo").owns(tmp_path / "demo") is replaced


@pytest.mark.parametrize(
    ("inputs", "named", "expected"),
    [
        (["a", "b"], False, {None: ["a", "b"]}),
        (["train=a", "train=b", "test=c"], True, {"train": ["a", "b"], "test": ["c"]}),
        (["holdout=a"], True, {"holdout": ["a"]}),
        (["train=a"], False, {"train": ["a"]}),
        (["year=2014/clicks"], False, {None: ["year=2014/clicks"]}),
        (["/data/year=2014/clicks"], True, {None: ["/data/year=2014/clicks"]}),
        (["s3://bucket/a?region=x"], True, {None: ["s3://bucket/a?region=x"]}),
    ],
)
def test_inputs_by_split(inputs: list[str], named: bool, expected: dict[str | None, list[str]]) -> None:
    assert inputs_by_split(inputs, named=named) == expected


def test_the_demo_does_not_take_a_running_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.1.2.3:6379")
    request = DemoRequest(on="ray", output=tmp_path / "demo")
    with pytest.raises(ConfigError, match="--on ray: the demo starts a cluster of its own; unset RAY_ADDRESS"):
        run(request, SilentProgress())
    assert not request.output.exists()
