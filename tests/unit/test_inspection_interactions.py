"""What `rayrec inspect` makes of tables of who chose what: the columns, and a recipe that drops nobody."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayrec.common.errors import ConfigError, UserError
from rayrec.config.table import LabelCondition
from rayrec.ingest.dataset import Dataset
from rayrec.inspection.table.inspected_table import InspectedTable, inspect_table
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.recipes import Recipe, load_recipe
from rayrec.sources.registry import preprocessing


def choices(people: int, least: int = 1, seed: int = 0) -> pd.DataFrame:
    """Between `least` and nine rows a person, in no order: user, item, rating, and seconds since 1970."""
    random = np.random.default_rng(seed)
    user = np.repeat(np.arange(people), random.integers(least, 10, people))
    item = random.integers(0, 80, len(user))
    when = 1_500_000_000 + random.permutation(len(user)) * 1_000
    return pd.DataFrame({"user": user, "item": item, "rating": random.integers(1, 6, len(user)), "time": when})


def inspected(path: Path, model: str | None = None, label: str | None = None) -> tuple[InspectedTable, Recipe]:
    found = inspect_table([str(path)], label, model, 100_000, "rayrec inspect")
    (path.parent / "recipe.yaml").write_text(found.recipe)
    return found, load_recipe(path.parent / "recipe.yaml")


@pytest.mark.parametrize(
    ("names", "roles"),
    [
        (["user_id", "item_id", "rating", "timestamp"], ["user", "item", "ignored", "time"]),
        (["reviewerID", "asin", "overall", "unixReviewTime"], ["user", "item", "ignored", "time"]),
        (["CustomerId", "ProductId", "Score", "Date"], ["user", "item", "ignored", "time"]),
        (["movieId:token", "userId:token", "rating:float", "timestamp:float"], ["item", "user", "ignored", "time"]),
    ],
)
def test_columns_by_their_names(tmp_path: Path, names: list[str], roles: list[str]) -> None:
    table = choices(80)
    columns = {"user": "user", "item": "item", "ignored": "rating", "time": "time"}
    path = tmp_path / "table.csv"
    pd.DataFrame({name: table[columns[role]] for name, role in zip(names, roles, strict=True)}).to_csv(
        path, index=False
    )
    found, recipe = inspected(path)
    assert [decision.role for decision in found.decisions] == roles
    by_role = dict(zip(roles, names, strict=True))
    source = recipe.source.model_dump()
    assert [source[key] for key in ("kind", "user", "item", "timestamp")] == [
        "interactions", by_role["user"], by_role["item"], by_role["time"]
    ]  # fmt: skip


@pytest.mark.parametrize(
    "form", ["seconds", "dates", "tab, no header", "parquet", "no times", "a few bad rows", "parquet with gaps"]
)
def test_nobody_is_dropped_by_its_recipe(tmp_path: Path, form: str) -> None:
    table = choices(200)
    path = tmp_path / ("table.parquet" if form.startswith("parquet") else "table.csv")
    ordered = table.sort_values("time", kind="stable")
    if form in ("dates", "parquet"):
        table["time"] = pd.to_datetime(table["time"], unit="s")
    if form == "no times":
        table = ordered.drop(columns="time")
    if form == "parquet with gaps":
        table["time"] = pd.to_datetime(table["time"], unit="s").astype(str)
    if form in ("a few bad rows", "parquet with gaps"):
        table.loc[::30, "user"] = None  # so that pandas writes 7.0 for 7
        ordered = table.dropna().sort_values("time", kind="stable")
    if path.suffix == ".parquet":
        table.to_parquet(path)
    else:
        is_plain = form == "tab, no header"
        table.to_csv(path, index=False, header=not is_plain, sep="\t" if is_plain else ",")
    found, recipe = inspected(path, "neumf" if form == "tab, no header" else None)
    assert bool(found.warnings) == (form in ("no times", "a few bad rows", "parquet with gaps"))
    assert (recipe.train.recency is None) == (form == "no times")
    preprocessing(recipe, {None: [str(path)]}, tmp_path / "dataset").run(EmbeddedEngine(2))
    dataset = Dataset.open(tmp_path / "dataset")
    assert not any(dropped.users for dropped in dataset.manifest.dropped.values())
    # The last of each person who has another one and two more rows are held out.
    distinct = ordered.drop_duplicates(["user", "item"]).groupby("user").size()
    assert dataset.split("test").positives == (distinct > 2).sum()
    assert dataset.schema.categorical[0].cardinality == 1 + len(distinct)


UGLY: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # how times are written; how the file is; what the recipe says of it
    "semicolons, dates of Excel": (
        {"time": "%d.%m.%Y %H:%M:%S"},
        {"sep": ";"},
        {"separator": ";", "timestamp": {"column": "time", "format": "%d.%m.%Y %H:%M:%S"}},
    ),
    "milliseconds": ({"time": 1_000}, {}, {"timestamp": {"column": "time", "format": "ms"}}),
    "other characters": ({"user": "Jörg {}"}, {"encoding": "latin-1"}, {"encoding": "windows-1252"}),
    "a byte order mark": ({}, {"encoding": "utf-8-sig"}, {}),
    "UTF-16": ({}, {"encoding": "utf-16"}, {}),
    "leading zeros, blanks around": ({"user": "{:06d}", "item": " {} "}, {}, {}),
    "newlines in quotes": ({"title": 'a "b",\nc'}, {}, {}),
    "two colons": ({}, {"sep": "::"}, {"header": ("c1", "c2", "c3", "c4"), "timestamp": "c4"}),
    "no header": ({}, {"header": False}, {"header": ("c1", "c2", "c3", "c4"), "timestamp": "c4"}),
    "JSON lines": ({}, {"orient": "records", "lines": True}, {}),
}


@pytest.mark.parametrize("case", UGLY)
def test_tables_as_they_come(case: str, tmp_path: Path) -> None:
    """The recipe says what a file needs, and the dataset is that of the plain file."""
    values, form, said = UGLY[case]
    plain = choices(200)
    written = plain.copy()
    for name, way in values.items():
        if name not in written:
            written[name] = way
        elif isinstance(way, int):
            written[name] *= way
        else:
            moments = pd.to_datetime(written[name], unit="s")
            written[name] = moments.dt.strftime(way) if "%" in way else written[name].map(way.format)
    plain.to_csv(tmp_path / "plain.csv", index=False)
    path = tmp_path / "written.csv"
    if "lines" in form:
        path = tmp_path / "written.jsonl"
        written.to_json(path, **form)
    elif form.get("sep") == "::":
        path.write_text("".join("::".join(map(str, row)) + "\n" for row in written.to_numpy().tolist()))
    else:
        written.to_csv(path, index=False, **form)
    found, counts = {}, []
    for file in (tmp_path / "plain.csv", path):
        recipe = inspected(file, "neumf")[1]
        preprocessing(recipe, {None: [str(file)]}, tmp_path / file.stem).run(EmbeddedEngine(2))
        dataset = Dataset.open(tmp_path / file.stem)
        manifest = dataset.manifest
        counts.append((manifest.times, manifest.dropped, {name: split.rows for name, split in manifest.splits.items()}))
        found = recipe.source.model_dump(exclude_defaults=True)
    assert counts[0] == counts[1]
    assert {key: found[key] for key in found if key not in ("user", "item")} == {"timestamp": "time", **said}


def test_ratings_with_decimal_commas_say_which_rows_are_choices(tmp_path: Path) -> None:
    plain = choices(200)
    plain["rating"] += 0.5
    plain.to_csv(tmp_path / "plain.csv", index=False)
    plain.to_csv(tmp_path / "commas.csv", index=False, sep=";", decimal=",")
    rows = []
    for name in ("plain", "commas"):
        recipe = inspected(tmp_path / f"{name}.csv", "neumf", "rating>=3")[1]
        preprocessing(recipe, {None: [str(tmp_path / f"{name}.csv")]}, tmp_path / name).run(EmbeddedEngine(2))
        rows.append(Dataset.open(tmp_path / name).manifest.dropped)
    assert rows[0] == rows[1] and rows[0]


def test_a_larger_table_has_another_recipe(tmp_path: Path) -> None:
    dense, sparse = choices(400, least=8), choices(100)
    dense = pd.concat([dense.assign(item=dense["item"] + 80 * copy) for copy in range(12)])
    recipes = []
    for number, table in enumerate((dense, sparse)):
        table.to_csv(tmp_path / f"{number}.csv", index=False)
        recipes.append(inspected(tmp_path / f"{number}.csv")[1])
    assert recipes[0].train.embedding_l2 < recipes[1].train.embedding_l2, "what occurs often needs less"
    assert recipes[0].preprocess.split.negatives == 99 > recipes[1].preprocess.split.negatives  # type: ignore[attr-defined]


def test_the_next_item_is_held_out_by_time_if_there_are_times(tmp_path: Path) -> None:
    for columns, split in ((["user", "item", "time"], "time"), (["user", "item"], "leave_one_out")):
        choices(80)[columns].to_csv(tmp_path / "table.csv", index=False)
        _, recipe = inspected(tmp_path / "table.csv", model="sasrec")
        content = recipe.model_dump()
        assert content["preprocess"]["split"]["kind"] == split
        assert content["evaluate"]["ranking"]["candidates"] == "next"


@pytest.mark.parametrize("days", [1, 2, 6])
def test_few_days_do_not_divide_the_choices(tmp_path: Path, days: int) -> None:
    """One day orders nothing, and of six the last has more than a tenth."""
    table, path = choices(150, least=3), tmp_path / "table.csv"
    table["day"] = [f"2024-05-{1 + number % days:02d}" for number in range(len(table))]
    table[["user", "item", "day"]].to_csv(path, index=False)
    found, recipe = inspected(path, "sasrec")
    assert recipe.preprocess.split.kind == "leave_one_out"  # type: ignore[attr-defined]
    (day,) = [decision for decision in found.decisions if decision.column.name == "day"]
    assert day.role == ("ignored" if days == 1 else "time")
    preprocessing(recipe, {None: [str(path)]}, tmp_path / "dataset").run(EmbeddedEngine(2))
    assert all(split.rows for split in Dataset.open(tmp_path / "dataset").manifest.splits.values())


def test_sizes_are_those_of_a_log_without_repeats(tmp_path: Path) -> None:
    """Who hears a song a hundred times has chosen it once, and the last rows may be all repeats."""
    table = choices(150, least=3).drop_duplicates(["user", "item"])
    again = pd.concat([table, *(table.assign(time=table["time"] + 10**8 * k) for k in range(1, 20))])
    found = []
    for name, rows in (("once", table), ("often", again)):
        rows[["user", "item", "time"]].to_csv(tmp_path / f"{name}.csv", index=False)
        found.append(inspected(tmp_path / f"{name}.csv", "sasrec"))
    (once, plain), (often, recipe) = found
    assert recipe.train == plain.train and recipe.model == plain.model
    assert not any("repeat" in warning for warning in once.warnings)
    assert any("95% of the rows repeat" in warning for warning in often.warnings)
    assert plain.preprocess.split.kind == "time"  # type: ignore[attr-defined]
    assert recipe.preprocess.split.kind == "leave_one_out"  # type: ignore[attr-defined]


def test_other_columns_or_a_label_make_it_a_table(tmp_path: Path) -> None:
    table = choices(100)
    path = tmp_path / "table.csv"
    table.assign(price=np.arange(len(table)) % 7).to_csv(path, index=False)
    with pytest.raises(ConfigError, match="--label"):
        inspected(path)
    assert inspected(path, "neumf")[1].source.kind == "interactions"
    assert inspected(path, label="rating>=4")[1].source.kind == "table"
    table.assign(rating=table["rating"] % 2).to_csv(path, index=False)
    with pytest.raises(ConfigError, match="--label"):
        inspected(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n3,4\n", "needs one column of users"),
        ("user,item\n1,2\n3,4\n", "no user has two items"),
        ("user,item\n1,2\n1,2\n3,4\n", "no user has two items"),
        ("user,item\n1,2\n1,2\n", "there is one item"),
        ("user,item,item\n1,2,3\n1,3,3\n", "two columns 'item' in its first line; rename one"),
    ],
)
def test_what_cannot_be_learnt_is_said(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(content)
    with pytest.raises((UserError, ConfigError), match=message):
        inspected(path, "neumf")


def test_a_condition_says_which_rows_are_choices(tmp_path: Path) -> None:
    """What a person did not like is known: never a positive, a drawn negative, or recommended."""
    table, path = choices(200), tmp_path / "table.csv"
    table.to_csv(path, index=False)
    recipe = inspected(path, "neumf", "rating>=3")[1]
    assert inspected(path)[1].train.embedding_l2 < recipe.train.embedding_l2, "fewer choices a person"
    preprocessing(recipe, {None: [str(path)]}, tmp_path / "dataset").run(EmbeddedEngine(2))
    dataset = Dataset.open(tmp_path / "dataset")
    liked = table[table["rating"] >= 3]
    dropped = dataset.manifest.dropped["rows that are not choices (source.choices)"]
    assert (dropped.rows, dropped.users) == (len(table) - len(liked), 200 - liked["user"].nunique())
    positives, others = (
        {tuple(pair) for pair in rows[["user", "item"]].to_numpy().tolist()}
        for rows in (liked, table.drop(liked.index))
    )
    names = [
        pq.read_table(dataset.folder / f"vocabulary/{name}.parquet")["value"].cast(pa.int64()).to_pylist()
        for name in ("user", "item")
    ]
    found: dict[tuple[str, int], set[tuple[int, ...]]] = {}
    for split in dataset.manifest.splits:
        for batch in dataset.rows(split, ["user", "item", "label"], 100_000):
            for row in batch.to_pylist():
                pair = (names[0][row["user"] - 1], names[1][row["item"] - 1])
                found.setdefault((split, int(row["label"])), set()).add(pair)
    assert found["train", 1] | found["validation", 1] | found["test", 1] == positives
    assert found["known", 1] == found["train", 1]
    assert {pair for pair in others - positives if pair[0] in set(liked["user"])} <= found["known", 0] <= others
    assert not (found["test", 0] | found["validation", 0]) & (positives | others)
    with pytest.raises(UserError, match="no column 'stars'; it has user, item"):
        other = recipe.source.model_copy(update={"choices": LabelCondition(column="stars", at_least=3)})
        preprocessing(recipe.model_copy(update={"source": other}), {None: [str(path)]}, tmp_path / "other")
