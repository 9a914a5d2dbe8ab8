"""A model that is worse than the label rate alone: said, recorded, and an error of `rayrec run` unless asked for."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.end_to_end.conftest import Finished

RATES = [f"train.{part}_optimizer={{kind: sgd, lr: {rate}}}" for part, rate in (("embedding", 100), ("dense", 1))]


@pytest.mark.minutes
def test_a_model_worse_than_none_ends_the_command(rayrec_alone: Callable[..., Finished], tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    guest = rng.integers(60, size=2_000)
    nights, paid = rng.integers(1, 9, 2_000), (rng.random(2_000) < guest / 120).astype(int)
    stays = pd.DataFrame({"guest": guest, "nights": nights, "paid": paid})
    stays.to_csv(tmp_path / "stays.csv", index=False)
    (tmp_path / "stays.yaml").write_text("""
source:
  kind: table
  label: paid
  features: [{columns: guest, kind: categorical}, {columns: nights, kind: numeric}]
preprocess: {split: {kind: hash, validation: 0.2, test: 0.2}, frequency_limit: 1}
model: {kind: wide_deep}
train: {global_batch_size: 32, epochs: 2}
""")
    command = ["run", "stays.yaml", "--input", "stays.csv", "--output", "out", "--json"]
    bad = [word for setting in RATES for word in ("--set", setting)]
    done = rayrec_alone(*command, *bad, folder=tmp_path)
    assert done.code == 1, done.err
    result = done.result
    loss = result["metrics"]["validation"]["log_loss"]
    rate = result["baselines"]["validation"]["base rate"]["log_loss"]
    assert result["status"] == "failed" and loss > rate
    for text in (result["error"], *result["details"]["warnings"][:1]):
        assert f"{loss:.4f}" in text and f"{rate:.4f}" in text and "\n" not in text
    assert (tmp_path / "out" / "model" / "manifest.json").exists()
    # Asked for, it is no error, and nothing is done again.
    done = rayrec_alone(*command, *bad, "--set", "publish.max_loss_increase=1000", folder=tmp_path)
    assert done.code == 0 and done.result["details"]["phases"]["train"] is None, done.err
