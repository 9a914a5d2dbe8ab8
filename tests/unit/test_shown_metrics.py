"""People are shown what a split can tell: of drawn negatives ranks, not probabilities."""

from jobs.command import Result, describe_result
from rayrec.config.evaluate import shown_metrics

METRICS = {"auc": 0.9, "log_loss": 0.1, "normalized_entropy": 1.6, "calibration": 7.2, "rows": 200.0, "hr@10": 0.6}


def test_drawn_negatives_tell_ranks() -> None:
    assert [*shown_metrics(METRICS, drawn_negatives=True)] == ["hr@10", "auc", "rows"]
    assert [*shown_metrics(METRICS, drawn_negatives=False)] == [*METRICS]


def test_a_result_keeps_all_and_shows_these() -> None:
    result = Result(command="train", metrics={"test": METRICS}, details={"drawn_negatives": True})
    assert "test: hr@10 0.600, auc 0.900, rows 200" in describe_result(result)
    assert "calibration" in result.to_json()
    assert "calibration 7.20" in describe_result(result.model_copy(update={"details": {}}))
