"""What training publishes, and the dashboard of it."""

import json
import re
from pathlib import Path

import rayrec.training
from rayrec.training.run.display import RunGauges

DASHBOARD = Path(rayrec.training.__file__).with_name("grafana_dashboard.json")


def test_the_dashboard_shows_what_is_published() -> None:
    gauges = RunGauges("recipe", Path("out/run"))
    published = {f"ray_{gauge.info['name']}" for gauge in (*gauges.of_steps.values(), gauges.evaluation)}
    content = DASHBOARD.read_text()
    assert set(re.findall(r"ray_rayrec_\w+", content)) == published
    dashboard = json.loads(content)
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({tuple(panel["gridPos"].values()) for panel in panels}) == len(panels)
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", content)) == variables == {"datasource", "recipe", "run"}
    labels = {"recipe", "run", "split", "metric"}
    for panel in panels:
        for target in panel["targets"]:
            assert set(re.findall(r"(\w+)(?:=~|!=|=)\"", target["expr"])) <= labels
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels


def test_a_run_publishes_its_figures_whatever_it_is_called() -> None:
    """Ray's metrics raise an error for a tag that is not ASCII."""
    gauges = RunGauges("συνταγή", Path("έξοδος/τρέξιμο 😀\x01"))
    gauges.take({"event": "train", "step": 1, **dict.fromkeys(gauges.of_steps, 1.0)})
    gauges.take({"event": "evaluate", "step": 1, "split": "δοκιμή", "auc": 0.5})
    gauges.report()
