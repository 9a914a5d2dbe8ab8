"""What keeps a run from going on from another one is said in one line that names the feature or field, and the fix."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rayrec.common.errors import ConfigError
from rayrec.features.schema import CategoricalFeature, Feature, MultiHotFeature, NumericFeature, Schema
from rayrec.ingest.dataset import Dataset
from rayrec.models.registry import build_model
from rayrec.recipes import Recipe
from rayrec.training.run.compatibility import require_compatible
from rayrec.training.run.folder import Origin, RunFolder
from tests.builders import make_rows, write_dataset
from tests.daily_datasets import vocabulary_of

WIDE = {"kind": "wide_deep", "part": "wide"}
DLRM = {"kind": "dlrm", "embedding_dim": 4, "bottom_mlp": [4], "top_mlp": [8]}


def _recipe(model: dict[str, Any], **train: Any) -> Recipe:
    both = ("embedding_optimizer", "dense_optimizer")
    train = {**train, **{name: {"kind": "sgd", "lr": 24.0, **train.get(name, {})} for name in both}}
    return Recipe.model_validate({"name": "test", "source": {"kind": "criteo"}, "model": model, "train": train})


def _dataset(folder: Path, change: Callable[[list[Feature]], list[Feature]] = list, listed: str = "abc") -> Dataset:
    """A number and tables of ids; `C1` has the vocabulary `listed`."""
    features: list[Feature] = [
        NumericFeature(name="I1"),
        NumericFeature(name="I2"),
        CategoricalFeature(name="C1", cardinality=9, transforms=(vocabulary_of(folder, "C1", listed),)),
        CategoricalFeature(name="C2", cardinality=9),
        CategoricalFeature(name="C3", cardinality=9),
    ]
    schema = Schema(label="label", features=tuple(change(features)))
    return write_dataset(folder, schema, {"train": make_rows(schema, 50, 1)})


def _run(folder: Path, recipe: Recipe) -> RunFolder:
    dataset = _dataset(folder / "old")
    schema = build_model(recipe.model, dataset.schema, "meta").schema
    return RunFolder.create(folder / "run", recipe, dataset, schema)


def _without(name: str) -> Callable[[list[Feature]], list[Feature]]:
    return lambda features: [feature for feature in features if feature.name != name]


def _with(new: Feature) -> Callable[[list[Feature]], list[Feature]]:
    """The feature in the place of that of its name, else as the last one."""

    def change(features: list[Feature]) -> list[Feature]:
        names = [feature.name for feature in features]
        return [new if f.name == new.name else f for f in features] + ([new] if new.name not in names else [])

    return change


def _swapped(features: list[Feature]) -> list[Feature]:
    return [*features[:-2], features[-1], features[-2]]


LISTS = MultiHotFeature(name="C2", cardinality=9, hotness=2)
NEW = CategoricalFeature(name="C4", cardinality=5)
NEW_RUN = "train a new run, without --warm-start"
CASES = [
    (DLRM, _without("I2"), {}, r"^feature 'I2' of RUN is missing in DATA; " + NEW_RUN),
    (DLRM, _without("C3"), {}, r"^feature 'C3' of RUN is missing in DATA; " + NEW_RUN),
    (WIDE, _without("C3"), {}, r"^feature 'C3' of RUN is missing in DATA; give --reset C3 to begin with a new table$"),
    (DLRM, _with(NEW), {}, r"^feature 'C4' is not in RUN; " + NEW_RUN),
    (WIDE, _with(NEW), {}, r"^feature 'C4' is not in RUN; give --reset C4 to begin with a new table$"),
    (DLRM, _with(NumericFeature(name="I3")), {}, r"^feature 'I3' is not in RUN; " + NEW_RUN),
    (DLRM, _with(LISTS), {}, r"^feature 'C2' is multi_hot and was categorical in RUN; give --reset C2 to begin"),
    (DLRM, _swapped, {}, r"^feature 'C3' is at the place of 'C2' in RUN; keep the order of the features, or"),
    (DLRM, list, {"embedding_dims": {"C2": 8}, "interaction": "cat"},
     r"^feature 'C2' has embedding_dim 8 and had 4 in RUN; " + NEW_RUN),
    (DLRM, list, {"top_mlp": [16]},
     r"^model: parameter dense_network\.top_mlp\.0\.weight is \(16, 10\) and was \(8, 10\) in RUN; keep its features"),
    (DLRM, list, {"kind": "dcnv2"}, r"^model\.kind is 'dcnv2' and was 'dlrm' in RUN; " + NEW_RUN),
]  # fmt: skip


@pytest.mark.parametrize(("model", "change", "changes", "message"), CASES)
def test_features_and_models(
    tmp_path: Path,
    model: dict[str, Any],
    change: Callable[[list[Feature]], list[Feature]],
    changes: dict[str, Any],
    message: str,
) -> None:
    before = {**model, "interaction": "cat"} if "interaction" in changes else model
    after = {"kind": changes["kind"]} if "kind" in changes else {**before, **changes}
    run, dataset = _run(tmp_path, _recipe(before)), _dataset(tmp_path / "new", change)
    _refused(run, _recipe(after), dataset, (), message)


@pytest.mark.parametrize(
    ("model", "change", "reset"),
    [
        (DLRM, list, ()),
        (DLRM, list, ("C1", "C3")),
        (WIDE, _without("C3"), ("C3",)),
        (WIDE, _with(NEW), ("C4",)),
        (DLRM, _with(LISTS), ("C2",)),
        (DLRM, _with(CategoricalFeature(name="C2", cardinality=99)), ()),
    ],
)
def test_what_fits(
    tmp_path: Path, model: dict[str, Any], change: Callable[[list[Feature]], list[Feature]], reset: tuple[str, ...]
) -> None:
    run, dataset = _run(tmp_path, _recipe(model)), _dataset(tmp_path / "new", change)
    require_compatible(run, _origin(reset), _recipe(model), dataset)


FTRL = {"kind": "ftrl"}
PARTS = {"parts": {"wide": {"embedding_optimizer": FTRL}}}


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        ({}, {"embedding_optimizer": {"kind": "adagrad"}},
         r"^train\.embedding_optimizer\.kind is adagrad and was sgd in RUN, so its optimizer state does not fit"),
        ({"dense_optimizer": {"kind": "adam"}}, {}, r"^train\.dense_optimizer\.kind is sgd and was adam in RUN"),
        ({}, {"dense_optimizer": {"momentum": 0.9}}, r"^train\.dense_optimizer\.momentum is above 0 and was 0 in RUN"),
        ({}, PARTS, r"^train\.parts\.wide\.embedding_optimizer\.kind is ftrl and was absent in RUN"),
        ({"embedding_optimizer": {"kind": "adam"}},
         {"embedding_optimizer": {"kind": "adam"}, "sharding": {"default": "data_parallel"}},
         r"^train\.sharding is data_parallel and was not data_parallel in RUN"),
        ({"freeze": ["dense_network"]}, {}, r"^train\.freeze: 'dense_network' was frozen in RUN, which has no"),
    ],
)  # fmt: skip
def test_optimizers(tmp_path: Path, before: dict[str, Any], now: dict[str, Any], message: str) -> None:
    run, dataset = _run(tmp_path, _recipe(WIDE, **before)), _dataset(tmp_path / "new")
    _refused(run, _recipe(WIDE, **now), dataset, (), message)


def test_settings_that_keep_the_state_may_change(tmp_path: Path) -> None:
    before = {"dense_optimizer": {"kind": "adam", "lr": 0.1}, "seed": 1}
    now = {"dense_optimizer": {"kind": "adam", "lr": 0.2}, "seed": 2, "workers": 2, "freeze": ["embeddings"]}
    run, dataset = _run(tmp_path, _recipe(DLRM, **before)), _dataset(tmp_path / "new")
    require_compatible(run, _origin(), _recipe(DLRM, **now), dataset)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("C11", r"^--reset: no feature 'C11' has a table; did you mean 'C1'\?"),
        ("I1", r"^--reset: no feature 'I1' has a table; use C1, C2, C3$"),
        ("no_such_thing", r"^--reset: no feature 'no_such_thing' has a table; use C1, C2, C3$"),
    ],
)
def test_unknown_names_to_reset(tmp_path: Path, name: str, message: str) -> None:
    run, dataset = _run(tmp_path, _recipe(DLRM)), _dataset(tmp_path / "new")
    _refused(run, _recipe(DLRM), dataset, (name,), message)


def test_the_old_dataset_is_needed_only_for_look_ups(tmp_path: Path) -> None:
    recipe = _recipe(DLRM)
    run = _run(tmp_path, recipe)
    longer, renumbered = _dataset(tmp_path / "longer", listed="abcd"), _dataset(tmp_path / "other", listed="cba")
    require_compatible(run, _origin(), recipe, renumbered)
    needed = "^feature 'C1': its vocabulary does not begin with that of RUN, whose dataset "
    other = _dataset(tmp_path / "old2", listed="xyz")
    other.manifest.model_copy(update={"rejected": {"some": 1}}).save(tmp_path / "old")
    _refused(run, recipe, renumbered, (), needed + r"has changed \(.*old\); restore it, or give --reset C1")
    shutil.rmtree(tmp_path / "old")
    _refused(run, recipe, renumbered, (), needed + r"cannot be read \(.*\); restore it, or give --reset C1")
    require_compatible(run, _origin(), recipe, longer)
    require_compatible(run, _origin(("C1",)), recipe, renumbered)


def _origin(reset: tuple[str, ...] = ()) -> Origin:
    return Origin("RUN", "step-00000001", "0", reset)


def _refused(run: RunFolder, recipe: Recipe, dataset: Dataset, reset: tuple[str, ...], message: str) -> None:
    message = message.replace("DATA", ".*new")
    with pytest.raises(ConfigError, match=message) as raised:
        require_compatible(run, _origin(reset), recipe, dataset)
    assert "\n" not in str(raised.value)
