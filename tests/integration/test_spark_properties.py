"""Properties of Spark from a recipe: its UI while it works, and its event log after that."""

import json
import urllib.request
from pathlib import Path

import pytest

import rayrec
from jobs.preprocess import PreprocessRequest, run
from rayrec.common.errors import UserError
from rayrec.common.progress import SilentProgress


class Reader(SilentProgress):
    """Looks at Spark's UI as soon as its address is printed."""

    page = ""

    def message(self, text: str) -> None:
        if text.startswith("Spark's UI: "):
            with urllib.request.urlopen(text.removeprefix("Spark's UI: ") + "/executors/", timeout=60) as answer:
                self.page = answer.read().decode()


def test_spark_is_looked_at_while_it_works_and_later(no_spark: None, tmp_path: Path) -> None:
    rayrec.generate("criteo", 2_000, tmp_path / "raw", progress=False)
    events = tmp_path / "events"
    conf = f"{{spark.ui.enabled: true, spark.eventLog.enabled: true, spark.eventLog.dir: '{events}'}}"
    settings = ("preprocess.spark.executor_memory=1g", f"preprocess.spark.conf={conf}")
    request = PreprocessRequest(
        recipe="dlrm-criteo-debug", input=(str(tmp_path / "raw"),), output=tmp_path / "dataset", set=settings
    )
    with pytest.raises(UserError, match=r"^preprocess\.spark\.conf: .*events.* does not exist"):
        run(request, SilentProgress())
    events.mkdir()
    reader = Reader()
    run(request, reader)
    assert "Executors" in reader.page
    (log,) = events.iterdir()
    kinds = {json.loads(line)["Event"] for line in log.read_text().splitlines()}
    assert {"SparkListenerTaskEnd", "SparkListenerApplicationEnd"} <= kinds
    # A later session of this process has none of these properties: it would fail for want of the folder.
    log.unlink()
    events.rmdir()
    run(request.model_copy(update={"output": tmp_path / "again", "set": settings[:1]}), SilentProgress())
