"""The dataset folder: what preprocessing writes and ingest reads.

schema.json   vocabulary/   counts/   train/ validation/ test/ (Parquet parts)   rejected/   dropped/
held_out_rows.json   manifest.json (written last)
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field

from rayrec.common.errors import ConfigError, UserError
from rayrec.common.text import shell_line
from rayrec.config import Config
from rayrec.config.execution import Execution
from rayrec.features.schema import Schema
from rayrec.recipes import Recipe, differences
from rayrec.store.artifact import Manifest, Parent, StoredFile
from rayrec.store.parquet import open_parquet
from rayrec.store.paths import to_path

VOCABULARY_FOLDER = "vocabulary"
REJECTED_FOLDER = "rejected"
DROPPED_FOLDER = "dropped"
"""Interactions of users who are not in the dataset, for those that extend it: a user may come back."""
COUNTS_FOLDER = "counts"
"""How often each categorical value occurred, for datasets that extend this one."""
KNOWN_SPLIT = "known"
"""A split of a dataset of interactions where more is known than `train`: its pairs, those of all splits of the datasets
that it extends, and those that are no choices; by user in the order of time. Not labelled, but what was never chosen
has label 0."""

_ROWS_AT_ONCE = 16_384
_SPREAD_GROUPS = 32
_WITHOUT_EFFECT = frozenset(
    {("source", "items"), *(("preprocess", key) for key in ("layout", "max_rejected_fraction", "spark"))}
)
"""Keys of a recipe that say how a dataset is made, and nothing of its rows."""
_OF_FILES_BESIDE = frozenset({("source", "tables"), ("source", "histories")})
"""Sections of a recipe that name files beside the log."""


class PartInfo(StoredFile):
    """One Parquet part."""

    rows: int
    row_groups: tuple[int, ...]
    """Rows of each row group."""
    longest_group: int | None = None
    """Rows of the largest group (`Schema.group`) if the rows of each group follow each other in one row group; None if
    that is not known."""


class SplitInfo(Config):
    """One split: its parts in the order of its rows."""

    rows: int
    positives: float
    """Sum of the labels, from which normalized entropy takes its base rate."""
    parts: tuple[PartInfo, ...]
    labelled: bool = True
    """Whether the labels are known; otherwise they are 0, and nothing is measured on the split."""

    @property
    def longest_group(self) -> int | None:
        """Rows of the largest group of all parts; None if one of them does not know it."""
        longest = [part.longest_group for part in self.parts]
        return None if None in longest else max((rows for rows in longest if rows is not None), default=None)


class SourceFile(Config):
    """Identifies a raw input file, to tell whether a dataset was made from it."""

    path: str
    bytes: int
    modified: float
    """Seconds since the epoch."""
    digest: str
    """A hash of its size and of its first and last bytes, by which a copy of the file is known."""


class Dropped(Config):
    """Good rows that preprocessing leaves out by a rule of the recipe."""

    rows: int
    users: int = 0
    """Users of whom nothing is left."""
    items: int = 0
    """Items of which nothing is left."""
    of_users: int = 0
    """All users of the files."""


class FoundKeys(Config):
    """How many rows find the key of a look-up, such as a side table."""

    rows: int = 0
    """Rows that have a key; of a label rate only those that it was not counted in."""
    found: int = 0
    of_past: bool = Field(False, exclude_if=lambda given: not given)
    """Whether these are rows with an event before them: of a history."""

    def __add__(self, other: "FoundKeys") -> "FoundKeys":
        of_past = self.of_past or other.of_past
        return FoundKeys(rows=self.rows + other.rows, found=self.found + other.found, of_past=of_past)

    @property
    def share(self) -> float:
        """Share of the rows with a key that find it."""
        return self.found / self.rows if self.rows else 0.0

    def described(self, key: str) -> str:
        """Return the counts as a part of a line."""
        if not self.rows:
            return f"no row has a value of {key}"
        finds = "have an earlier event" if self.of_past else "find it"
        return f"{self.found:,} of {self.rows:,} rows with {key} {finds} ({self.share:.2%})"


class Times(Config):
    """Times of the rows of a dataset, in seconds since 1970."""

    first: float
    last: float
    held_out: float | None = Field(None, exclude_if=lambda given: given is None)
    """Of the first held-out row, if no row of `train` happened after it."""


class DatasetManifest(Manifest):
    """The manifest of a dataset; its `files` are all but the parts: schema, vocabularies, statistics, rejected rows."""

    command = "preprocess"

    kind: Literal["dataset"] = "dataset"
    version: Literal[2] = 2
    splits: dict[str, SplitInfo]
    rejected: dict[str, int]
    """Rejected rows by reason."""
    dropped: dict[str, Dropped] = {}
    """Good rows that were left out, by the rule."""
    found_keys: dict[str, FoundKeys] = {}
    """How many rows find their key, by look-up."""
    known_values: dict[str, dict[str, FoundKeys]] = {}
    """How many held-out rows have a value that `train` has, by split and column with a vocabulary."""
    warnings: tuple[str, ...] = ()
    """What a person should know of the rows, which nobody can tell from the dataset."""
    sources: tuple[SourceFile, ...]
    config: dict[str, Any]
    """The resolved recipe."""
    sequence: int = 0
    """The number of datasets that it extends, one after the other."""
    times: Times | None = None
    """The times of its rows; None if they have none."""
    moment: int = 0
    """The last of these times; without them a day after the parent's, so that the age of a value can be told."""
    earlier_sources: tuple[str, ...] = ()
    """The digests of the raw files of all datasets that it extends."""
    execution: Execution | None = None
    """How it was made; None if that was not recorded."""

    @property
    def parent(self) -> Parent | None:
        """Return the dataset whose vocabularies this one goes on with; None if it begins anew."""
        return self.made_of.get("parent")

    @property
    def every_file(self) -> list[StoredFile]:
        return [*(part for split in self.splits.values() for part in split.parts), *super().every_file]


def judged_split(preferred: str, labelled: Collection[str]) -> str | None:
    """Return the one of these held-out splits that a model is judged by: see `Dataset.split_to_judge`."""
    return next((name for name in (preferred, "test", *labelled) if name in labelled), None)


@dataclass(frozen=True)
class Dataset:
    """A finished dataset folder."""

    folder: Path
    schema: Schema
    manifest: DatasetManifest
    id: str
    """The id of its manifest, also of a `head` of it."""

    @classmethod
    def open(cls, folder: str | Path) -> "Dataset":
        """Open a finished dataset folder, of which only descriptions are read.

        Raises UserError if it is missing, unfinished or invalid, or if a file does not have the size that it should.
        """
        folder = to_path(folder).absolute()
        if not folder.is_dir():
            what = "not a folder" if folder.exists() else "no such folder"
            raise UserError(f"{folder}: {what}; give the output of `rayrec preprocess`")
        verify = f"`rayrec verify {shell_line([str(folder)])}` looks at every file"
        manifest = DatasetManifest.load_whole(folder, verify)
        return cls(folder, Schema.load(folder), manifest, manifest.id)

    def split(self, name: str) -> SplitInfo:
        """Return a split. Raises UserError if the dataset does not have it, or it has no rows."""
        split = self.manifest.splits.get(name)
        if split is None or split.rows == 0:
            filled = [n for n, s in self.manifest.splits.items() if s.rows]
            raise UserError(f"{self.folder}: no rows in split '{name}'; it has {', '.join(filled) or 'none'}")
        return split

    def head(self, name: str, most: int | None) -> "Dataset":
        """Return the same dataset with at most the first `most` rows of a split, of which the positives are not known.

        Raises UserError like `split`.
        """
        split = self.split(name)
        if most is None or most >= split.rows:
            return self
        parts, left = list[PartInfo](), most
        for part in split.parts:
            groups: list[int] = []
            for rows in part.row_groups:
                groups.append(min(rows, left))
                left -= groups[-1]
            parts.append(part.model_copy(update={"rows": sum(groups), "row_groups": tuple(groups)}))
        cut = split.model_copy(update={"rows": most, "positives": math.nan, "parts": tuple(parts)})
        manifest = self.manifest.model_copy(update={"splits": {**self.manifest.splits, name: cut}})
        return replace(self, manifest=manifest)

    @property
    def known_split(self) -> str:
        """Split with the pairs in `train`, in datasets that this one extends, and of rows that are no choices."""
        return KNOWN_SPLIT if KNOWN_SPLIT in self.manifest.splits else "train"

    @property
    def evaluation_splits(self) -> list[str]:
        """Splits on which a model can be measured: all but `train` that have rows with known labels."""
        return [n for n, split in self.manifest.splits.items() if n != "train" and split.rows and split.labelled]

    def split_to_judge(self, preferred: str) -> str | None:
        """Return the split that a model is judged by: `preferred`, else `test`, else the first one with labels.

        The one rule of training, reports, comparisons and the gate of a new day; `preferred` is what the recipe says
        (`train.evaluation_split`). None if no rows with labels were held out.
        """
        return judged_split(preferred, self.evaluation_splits)

    def labelled_split(self, name: str) -> SplitInfo:
        """Return a split with known labels. Raises UserError if there is none of this name."""
        split = self.split(name)
        if not split.labelled:
            raise UserError(
                f"{self.folder}: split '{name}' has no labels to measure a model by; use `rayrec predict`, or evaluate "
                f"on {', '.join(self.evaluation_splits) or 'another dataset'}"
            )
        return split

    def rows(self, split: str, columns: Sequence[str], most: int, *, spread: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield up to `most` rows of a split, in batches: the first ones in the order of the files.

        `spread`: rows of row groups that lie evenly over the split, whose order may be that of time; then about `most`.
        Raises UserError if there is no such split.
        """
        parts, left = self.split(split).parts, most
        # Whole row groups at even distances, and the head of each.
        if spread:
            groups = [(part.path, group) for part in parts for group in range(len(part.row_groups))]
            chosen = groups[:: -(-len(groups) // _SPREAD_GROUPS)]
            for path, group in chosen:
                with open_parquet(self.folder / path) as parquet:
                    table = parquet.read_row_group(group, columns=list(columns))
                    yield from table.slice(0, -(-most // len(chosen))).combine_chunks().to_batches()
            return
        for part in parts:
            with open_parquet(self.folder / part.path) as parquet:
                for batch in parquet.iter_batches(batch_size=_ROWS_AT_ONCE, columns=list(columns)):
                    yield batch.slice(0, left)
                    left -= batch.num_rows
                    if left <= 0:
                        return

    def files_in(self, folder: str) -> list[Path]:
        """Return the Parquet files of one of its folders, by name."""
        names = sorted(file.path for file in self.manifest.files if file.path.startswith(f"{folder}/"))
        return [self.folder / name for name in names if name.endswith(".parquet")]

    @property
    def recipe(self) -> Recipe:
        """Recipe with which the dataset was made."""
        return Recipe.model_validate(self.manifest.config)

    def require_source(self, recipe: Recipe, fix: str = "set it back, or preprocess with this recipe") -> None:
        """Raise ConfigError, which ends with `fix`, if the recipe reads other columns or files than the dataset's own.

        Side tables and events may lie elsewhere.
        """
        for difference in self._differences("source", recipe):
            raise ConfigError(f"{difference}; {fix}")

    def other_preprocessing(self, recipe: Recipe) -> list[str]:
        """Say where the recipe would preprocess otherwise than the dataset was, whose rows are what they are."""
        return [f"{difference}; the dataset is used as it is" for difference in self._differences("preprocess", recipe)]

    def _differences(self, section: str, recipe: Recipe) -> Iterator[str]:
        made_with, given = (getattr(of, section).model_dump(mode="json") for of in (self.recipe, recipe))
        found = differences(made_with, given, (section,))
        # Sections of other kinds have other keys.
        for key, old, new in sorted(found, key=lambda difference: difference[0][-1] != "kind"):
            is_place = key[:2] in _OF_FILES_BESIDE and key[3:] == ("path",)
            if is_place or key[:2] in _WITHOUT_EFFECT:
                continue
            is_long = isinstance(old, dict | list) or isinstance(new, dict | list)
            now, before = ("is not what", "") if is_long else (f"is {new!r}, but", f" {old!r}")
            yield f"{'.'.join(key)}: {now} {self.folder} was made with{before}"
