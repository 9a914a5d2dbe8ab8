"""Progress on stderr."""

import io
import re
import time

import pytest
from rich.console import Console

from rayrec.common import console
from rayrec.common.console import _Bars, _LiveProgress, console_progress
from tests.terminals import run_in_terminal

_STEPS = """
import logging, time
from rayrec.common.console import console_progress, log_to_stderr
log_to_stderr()
with console_progress() as progress:
    progress.stage("parse")
    progress.advance(1000)
    progress.stage("train [/x]", 50)
    progress.advance(20)
    progress.note("saving", {"loss": "0.5"})
    time.sleep(0.3)
    progress.message("one [line]\\x1b]0;title")
    logging.getLogger("rayrec").warning("a warning")
    raise SystemExit
"""


def test_lines_where_stderr_is_no_terminal(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 2.0, 4.0, 4.0, 20.0, 20.0, 24.0])
    monkeypatch.setattr(console.time, "perf_counter", lambda: next(clock))
    with console_progress() as progress:
        progress.stage("parse")
        progress.advance(1_000)
        progress.stage("train", 50)
        progress.note("training", {"loss": "0.5"})
        progress.advance(20)
        progress.message("one [line]")
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "parse: 4.0 s, 1,000 at 250/s",
        "train: training, loss 0.5, 0:00:24 left",
        "one [line]",
        "train: 20.0 s, 20 of 50 at 1.00/s, 0:00:30 left",
    ]


def test_a_terminal_keeps_bars_and_lines_but_no_panel() -> None:
    code, shown = run_in_terminal("-c", _STEPS)
    assert code == 0
    assert all(text in shown for text in ("parse", "1,000", "train [/x]", "saving", "0.5", "one [line]\\x1b]0;title"))
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert re.search(r"\rWARNING +a warning *\r\n", text), "a log line has a line of its own"
    assert shown.endswith("\x1b[?25h"), "the cursor is shown again"
    last_frame = shown[shown.rindex("parse") :]
    assert "train" in last_frame and "saving" not in last_frame


FACTS = {
    "step": "1,000,031 of 2,000,062",
    "epoch": "1 of 2",
    "loss": "0.5058",
    "speed": "14,623 samples/s",
    "waiting": "100% of the time for data",
    "auc": "0.6625 on validation",
    "log_loss": "0.5207 on validation",
    "ndcg@10": "0.1234 on a split with a long name",
}


@pytest.mark.parametrize(("width", "a_line"), [(80, 2), (120, 3), (200, 3)])
def test_a_panel_of_facts(width: int, a_line: int) -> None:
    shown = Console(width=width, file=io.StringIO(), force_terminal=True, record=True)
    bars = _Bars(shown)
    live = _LiveProgress(bars)
    live.stage("start Ray")
    live.stage("training", 2_000_000_000)
    bars.tasks[1].start_time = bars.get_time() - 3_600
    live.advance(1_000_000_000)
    live.note("evaluating on validation", FACTS)
    shown.print(bars.get_renderable())
    first, second, *panel = shown.export_text().splitlines()
    assert first.startswith("ok start Ray")
    assert not second.startswith("ok")
    assert "training" in second and second.rstrip().endswith(
        "1,000,000,000 of 2,000,000,000 at 278,000/s, 1:00:00 left"
    )
    assert "─ evaluating on validation ─" in panel[0]
    assert len(panel) == 2 + -(-len(FACTS) // a_line)
    assert {len(line.rstrip()) for line in panel} == {min(width, 120) - 2}
    for name, value in FACTS.items():
        assert re.search(rf"{name} +{value[:24]}", "\n".join(panel)), name
    live.finish()
    shown.print(bars.get_renderable())
    assert len(shown.export_text().splitlines()) == 2


def test_nothing_that_is_well_is_red() -> None:
    """In no state of a bar: rich's own colours of a pulse and of an unfinished bar are shades of red."""
    shown = Console(width=100, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    bars = _Bars(shown)
    live = _LiveProgress(bars)
    for total in (None, 100):
        live.stage("stage", total)
        live.advance(50)
        live.note("training", FACTS)
        for segment in shown.render(bars.get_renderable()):
            color = segment.style.color if segment.style is not None else None
            if color is not None and segment.text.strip():
                red, green, blue = color.get_truecolor()
                assert red < 1.5 * max(green, blue), (segment.text, color)
        live.finish()


def test_a_long_stage_without_counts_is_named(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "_PLAIN_SECONDS", 0.05)
    with console_progress() as progress:
        progress.stage("start Ray")
        time.sleep(0.5)
        progress.stage("train")
    shown = capfd.readouterr().err.splitlines()
    assert shown[0] == "start Ray ..." and shown[1].startswith("start Ray: ")
    assert not any(line.startswith("start Ray") for line in shown[2:]), "named once"


def test_a_note_without_facts_is_one_line() -> None:
    shown = Console(width=40, file=io.StringIO(), record=True)
    bars = _Bars(shown)
    _LiveProgress(bars).note("waiting for files in " + "folder/" * 10)
    shown.print(bars.get_renderable())
    assert [line for line in shown.export_text().splitlines() if line.strip()] == [
        "waiting for files in folder/folder/fold…"
    ]


def test_a_log_has_the_first_facts_again_and_again(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 11.0, 11.0, 19.0, 32.0, 32.0, 43.0, 43.0, 50.0])
    monkeypatch.setattr(console.time, "perf_counter", lambda: next(clock))
    with console_progress() as progress:
        progress.stage("training", 2_000)
        progress.note("training", FACTS)
        progress.advance(500)
        progress.advance(0)  # too early to say it again
        progress.note("evaluating on validation", FACTS)
        progress.advance(0)
        progress.note("waiting")
        progress.advance(0)
    first = "step 1,000,031 of 2,000,062, epoch 1 of 2, loss 0.5058, speed 14,623 samples/s"
    assert capfd.readouterr().err.splitlines() == [
        f"training: {first}, 0:00:33 left",
        "training: evaluating on validation, step 1,000,031 of 2,000,062, 0:01:36 left",
        "training: 500 of 2,000 at 11.6/s, 0:02:09 left, waiting",
        "training: 50.0 s, 500 of 2,000 at 10.0/s, 0:02:30 left",
    ]
