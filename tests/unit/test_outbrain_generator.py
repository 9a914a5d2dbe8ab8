"""Generated Outbrain tables: their layout, how they hang together, the stated truth against one computed otherwise."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rayrec.common.errors import UserError
from rayrec.sources.generated_files import TRUTH_FILE
from rayrec.sources.outbrain.generator import Catalogue, OutbrainTruth, cut, generate
from rayrec.sources.outbrain.tables import OutbrainTable
from rayrec.sources.synthetic import World
from tests.outbrain_reference import read_tables

ROWS = 10_000
DAY = 86_400_000
Frames = dict[str, pd.DataFrame]


def frames_of(folder: Path) -> Frames:
    return {name: pd.DataFrame(rows) for name, rows in read_tables(folder).items()}


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Frames, OutbrainTruth]:
    folder = tmp_path_factory.mktemp("outbrain") / "data"
    truth = generate(folder, ROWS, seed=1)
    assert json.loads((folder / TRUTH_FILE).read_text()) == truth.model_dump(mode="json")
    assert {path.name for path in folder.iterdir()} == {f"{table.value}.csv" for table in OutbrainTable} | {TRUTH_FILE}
    for table in OutbrainTable:
        header = (folder / f"{table.value}.csv").open().readline().rstrip("\n")
        assert header == ",".join(table.layout.schema.names)
    return frames_of(folder), truth


def test_every_display_has_its_ads_and_one_click(generated: tuple[Frames, OutbrainTruth]) -> None:
    tables, truth = generated
    clicks, test, events = tables["clicks_train"], tables["clicks_test"], tables["events"]
    assert len(clicks) == truth.rows == ROWS
    assert (clicks.groupby("display_id")["clicked"].sum() == 1).all()
    sizes = pd.concat([clicks, test]).groupby("display_id").size()
    assert sizes.min() == 2 and 8 < sizes.max() <= 12 and 4 < sizes.mean() < 6
    assert not pd.concat([clicks, test]).duplicated(["display_id", "ad_id"]).any()
    assert events["display_id"].tolist() == list(range(1, len(events) + 1)) == sorted(sizes.index)
    assert set(test["display_id"]).isdisjoint(clicks["display_id"])
    assert 0.1 < len(test) / ROWS < 0.25
    assert set(pd.concat([clicks, test])["ad_id"]) <= set(tables["promoted_content"]["ad_id"])


def test_truth(generated: tuple[Frames, OutbrainTruth]) -> None:
    """MAP@12 against one computed display by display from the utilities that the generator drew."""
    tables, truth = generated
    clicks, catalogue = tables["clicks_train"], Catalogue(World(1))
    drawn = np.concatenate([catalogue.block(number)[0] for number in range(8)])
    found: dict[str, list[float]] = {name: [] for name in ("utility", "quality", "random", "expected")}
    for display, (_, rows) in zip(clicks["display_id"].unique(), clicks.groupby("display_id"), strict=True):
        shown, ads = drawn[display - 1], len(rows)
        assert rows["ad_id"].tolist() == (shown["ads"][:ads] + 1).tolist()
        clicked = int(np.flatnonzero(rows["clicked"])[0])
        for name in ("utility", "quality"):
            order = np.argsort(-shown[name][:ads]).tolist()
            found[name].append(1 / (1 + order.index(clicked)))
        found["random"].append(sum(1 / (1 + rank) for rank in range(ads)) / ads)
        chances = np.sort(np.exp(shown["utility"][:ads]))[::-1]
        found["expected"].append(sum(chances / chances.sum() / np.arange(1, ads + 1)))
    said, means = truth.all, {name: float(np.mean(values)) for name, values in found.items()}
    assert said.displays == len(found["random"])
    assert said.best == pytest.approx(means["utility"])
    assert (said.random, said.quality_alone) == pytest.approx((means["random"], means["quality"]))
    # Clicks are drawn with the probabilities: 2,000 displays agree to a few standard errors of 0.007.
    assert said.best == pytest.approx(means["expected"], abs=0.03)
    assert said.random + 0.05 < said.quality_alone < said.best - 0.1
    late = tables["events"].query(f"timestamp >= {11 * DAY}")["display_id"]
    assert truth.held_out is not None
    assert truth.held_out.displays == len(set(late) & set(clicks["display_id"]))


def test_any_number_of_rows_is_whole_displays() -> None:
    catalogue = Catalogue(World(4))
    drawn = [catalogue.block(number)[0] for number in range(2)]
    of_first = int(drawn[0]["size"][~drawn[0]["is_test"]].sum())
    for rows in (*range(2, 200), *range(of_first - 20, of_first + 20)):
        sizes: list[int] = []
        for displays in drawn:
            shown = cut(displays, rows - sum(sizes))
            sizes += shown["size"][~shown["is_test"]].tolist()
            if sum(sizes) == rows:
                break
        assert sum(sizes) == rows
        assert min(sizes) >= 2 and max(sizes) <= 12


def test_a_display_has_two_rows(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="rows: 1; give 2 or more"):
        generate(tmp_path / "data", 1)
    assert not (tmp_path / "data").exists()
