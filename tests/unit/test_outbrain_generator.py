"""Generated Outbrain tables: their layout, how they hang together, the stated truth against one computed otherwise."""

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rayrec.common.errors import UserError
from rayrec.sources.outbrain.outbrain_tables import OutbrainTable
from rayrec.sources.outbrain.synthetic.displays import FAMILIES
from rayrec.sources.outbrain.synthetic.generator import blocks, cut, generate
from rayrec.sources.outbrain.synthetic.truth import TRUTH_FILE, OutbrainTruth
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
    assert sizes.min() == 2 and sizes.max() == 12 and 4 < sizes.mean() < 6
    assert not pd.concat([clicks, test]).duplicated(["display_id", "ad_id"]).any()
    assert events["display_id"].tolist() == list(range(1, truth.displays + 1)) == sorted(sizes.index)
    assert set(test["display_id"]).isdisjoint(clicks["display_id"])
    assert 0.02 < len(test) / ROWS < 0.1
    assert set(pd.concat([clicks, test])["ad_id"]) <= set(tables["promoted_content"]["ad_id"])


def test_documents(generated: tuple[Frames, OutbrainTruth]) -> None:
    tables, truth = generated
    meta = tables["documents_meta"]
    assert meta["document_id"].tolist() == list(range(1, truth.documents + 1))
    assert 0.01 < meta["source_id"].isna().mean() < 0.06 and 0.15 < meta["publish_time"].isna().mean() < 0.35
    without = meta[meta["publisher_id"].isna() & meta["source_id"].notna()]
    assert len(without) and without["source_id"].nunique() < 20
    for aspect, value in (("categories", "category_id"), ("topics", "topic_id"), ("entities", "entity_id")):
        table = tables[f"documents_{aspect}"]
        assert not table.duplicated(["document_id", value]).any()
        assert table["confidence_level"].between(0, 1, inclusive="neither").all()
        assert 0.02 < 1 - table["document_id"].nunique() / len(meta) < 0.3
        assert set(table["document_id"]) <= set(meta["document_id"])
    assert tables["documents_entities"]["entity_id"].str.fullmatch("[0-9a-f]{32}").all()
    ads = tables["promoted_content"]
    assert ads["ad_id"].tolist() == list(range(1, truth.ads + 1)) and ads.notna().all(axis=None)
    assert set(ads["document_id"]) <= set(meta["document_id"])
    assert len(ads) > ads["campaign_id"].nunique() > ads["advertiser_id"].nunique()
    assert (ads.groupby("campaign_id")["advertiser_id"].nunique() == 1).all()


def test_users_view_what_they_are_shown(generated: tuple[Frames, OutbrainTruth]) -> None:
    """Page views hang together with events: landings are among them, and topics of one user repeat."""
    tables, truth = generated
    views, events = tables["page_views"], tables["events"]
    assert len(views) == truth.page_views and views["uuid"].nunique() > 0.9 * truth.users
    keys = ["uuid", "document_id", "timestamp"]
    assert 0.85 < events[keys].merge(views[keys].drop_duplicates(), on=keys).shape[0] / len(events) < 0.97
    main = tables["documents_topics"].sort_values("confidence_level").drop_duplicates("document_id", keep="last")
    topics = views.merge(main, on="document_id")[["uuid", "topic_id"]]
    largest = topics.groupby("uuid")["topic_id"].agg(lambda of_user: of_user.value_counts().iloc[0] / len(of_user))
    assert largest.median() > 0.25
    # After a click some go on to the ad's document.
    clicked = tables["clicks_train"].query("clicked == 1").merge(tables["promoted_content"], on="ad_id")
    clicked = clicked.merge(events, on="display_id", suffixes=("", "_event"))
    followed = clicked.merge(views, on=["uuid", "document_id"], suffixes=("", "_view"))
    assert 0.2 < (followed["timestamp_view"] > followed["timestamp"]).sum() / len(clicked) < 0.6


def test_truth(generated: tuple[Frames, OutbrainTruth]) -> None:
    """MAP@12 against one computed display by display from the utilities that the generator drew."""
    tables, truth = generated
    clicks = tables["clicks_train"]
    utilities: dict[int, np.ndarray] = {}
    displays = 0
    for drawn, _ in blocks(seed=1):
        for i, display in enumerate(drawn):
            utilities[displays + i + 1] = np.vstack([display["ads"] + 1, display["utility"]])
        displays += len(drawn)
        if displays >= truth.displays:
            break
    found: dict[str, list[float]] = {name: [] for name in ("best", "expected", "random", "alone", *FAMILIES)}
    for display, rows in clicks.groupby("display_id"):
        ads, *families = utilities[display][:, : len(rows)]
        assert rows["ad_id"].tolist() == ads.tolist()
        values = np.array(families)
        clicked = int(np.flatnonzero(rows["clicked"])[0])
        scores = {"best": values.sum(axis=0), "alone": values[0]}
        scores |= {family: np.delete(values, i, axis=0).sum(axis=0) for i, family in enumerate(FAMILIES)}
        for name, score in scores.items():
            places = np.flatnonzero(np.abs(np.sort(-score) + score[clicked]) <= 1e-12)
            found[name].append(np.mean(1 / (1 + places)))
        order = np.argsort(-scores["best"])
        chances = np.exp(scores["best"]) / np.exp(scores["best"]).sum()
        found["expected"].append(sum(chances[ad] / (1 + rank) for rank, ad in enumerate(order)))
        found["random"].append(np.mean([1 / (1 + rank) for rank in range(len(rows))]))
    means = {name: float(np.mean(values)) for name, values in found.items()}
    said = truth.all
    assert said.displays == len(found["best"])
    assert (said.best, said.expected_best) == pytest.approx((means["best"], means["expected"]))
    assert (said.random, said.quality_alone) == pytest.approx((means["random"], means["alone"]))
    assert said.without == pytest.approx({family: means[family] for family in FAMILIES})
    # Labels are drawn with the probabilities: 2,000 displays agree to a few standard errors of 0.007.
    assert said.best == pytest.approx(said.expected_best, abs=0.03)
    assert all(lost < said.best - 0.005 for lost in said.without.values())
    assert said.random < 0.5 < said.quality_alone < said.best - 0.1
    late = tables["events"].query(f"timestamp >= {11 * DAY}")["display_id"]
    assert truth.held_out is not None
    assert truth.held_out.displays == len(set(late) & set(clicks["display_id"]))


def test_more_rows_begin_as_fewer_do(generated: tuple[Frames, OutbrainTruth], tmp_path: Path) -> None:
    more = generated[0]
    generate(tmp_path / "fewer", 4_000, seed=1, compress=True)
    assert (tmp_path / "fewer" / "events.csv.gz").exists()
    fewer = frames_of(tmp_path / "fewer")
    assert len(fewer["clicks_train"]) == 4_000
    # The last two displays are made to fit.
    last = fewer["events"]["display_id"].iloc[-2]
    for name, frame in fewer.items():
        kept = frame[frame["display_id"] < last] if "display_id" in frame else frame
        pd.testing.assert_frame_equal(more[name].iloc[: len(kept)], kept.reset_index(drop=True), check_dtype=False)
    generate(tmp_path / "other", 1_000, seed=2)
    assert not frames_of(tmp_path / "other")["clicks_train"].equals(more["clicks_train"][:1_000])


def test_any_number_of_rows_is_whole_displays() -> None:
    drawn = [displays for displays, _ in islice(blocks(seed=4), 2)]
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
