"""Finds the files of interactions that a job reads, and the split of each."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rayrec.common.errors import ConfigError, UserError
from rayrec.preprocessing.rows_job import check_files
from rayrec.raw.input_files import InputFile, list_inputs
from rayrec.sources.interactions.config import (
    InteractionFilesSplitConfig,
    InteractionSourceConfig,
    LeaveOneOutSplitConfig,
)
from rayrec.sources.interactions.interaction_reader import InteractionReader

_HELD_OUT = ("validation", "test")
_RATINGS_FILE = re.compile(r"^(u\.data|ratings\.(dat|csv|parquet))(\.gz)?$")
_PAPER_FILE = re.compile(r"\.((?P<train>train)\.(rating|pairs\.tsv)|(?P<held_out>validation|test)\.negative)(\.gz)?$")


@dataclass(frozen=True)
class InteractionInputs:
    """Raw files in the order of their rows."""

    files: tuple[InputFile, ...]
    splits: tuple[str, ...]
    """The split of each file: `train` for interactions, `validation` or `test` for lists of candidates."""
    reader: InteractionReader


def resolve_interactions(
    source: InteractionSourceConfig,
    split: LeaveOneOutSplitConfig | InteractionFilesSplitConfig,
    paths: Mapping[str | None, Sequence[str]],
) -> InteractionInputs:
    """Find the raw files and look at the beginning of each: `paths` by split, or all under None.

    Raises UserError if a path gives no file, or the files do not suit the config.
    """
    if isinstance(split, LeaveOneOutSplitConfig):
        found = _of_leave_one_out(paths)
    else:
        found = _of_files(split, paths)
    files, splits = tuple(file for file, _ in found), tuple(name for _, name in found)
    check_files(files)
    inputs = InteractionInputs(files, splits, InteractionReader.detect(source, files))
    _check_layouts(inputs)
    return inputs


def _of_leave_one_out(paths: Mapping[str | None, Sequence[str]]) -> list[tuple[InputFile, str]]:
    named = [name for name in paths if name is not None]
    if named:
        raise ConfigError(
            f"--input {named[0]}=...: preprocess.split.kind is 'leave_one_out', which splits the rows itself; add "
            "--set 'preprocess.split={kind: files}' or give the paths alone"
        )
    found = []
    for path in paths[None]:
        # The folders of MovieLens hold other files than ratings, too: movies.csv, tags.csv, u.item.
        files = list_inputs([path])
        found += [file for file in files if _RATINGS_FILE.match(file.base_name)] or files
    return [(file, "train") for file in found]


def _of_files(
    split: InteractionFilesSplitConfig, paths: Mapping[str | None, Sequence[str]]
) -> list[tuple[InputFile, str]]:
    unknown = next((name for name in paths if name not in (None, "train", *_HELD_OUT)), None)
    if unknown is not None:
        raise ConfigError(f"--input {unknown}=...: no split of interactions; use train, validation or test")
    found = [(file, name) for name, given in paths.items() if name is not None for file in list_inputs(given)]
    for path in paths.get(None, ()):
        found += _paper_files(path)
    # Rows are read in this order, whatever the order on the command line.
    found.sort(key=lambda entry: ("train", *_HELD_OUT).index(entry[1]))
    given = {name for _, name in found}
    if "train" not in given:
        raise ConfigError("--input: preprocess.split.kind is 'files' and no files are for train; add train=PATH")
    if split.validation and "validation" in given:
        raise ConfigError(
            "--input validation=...: preprocess.split.validation makes that split from train; leave one of them out"
        )
    return found


def _paper_files(path: str) -> list[tuple[InputFile, str]]:
    """Return the files of the NCF paper at a path, without *.test.rating, whose content is in the lists too."""
    named = [(file, _PAPER_FILE.search(file.base_name)) for file in list_inputs([path])]
    wanted = [(file, name["train"] or name["held_out"]) for file, name in named if name]
    if not wanted:
        raise UserError(
            f"{path}: no files NAME.train.rating and NAME.test.negative; name the files: --input train=PATH "
            "--input test=PATH"
        )
    return wanted


def _check_layouts(inputs: InteractionInputs) -> None:
    timed: dict[bool, InputFile] = {}
    for file, split, layout in zip(inputs.files, inputs.splits, inputs.reader.layouts, strict=True):
        if split != "train" and layout.table is not None:
            raise UserError(
                f"{file.name}: no lists of a positive and its negatives, as {split}=PATH needs (*.test.negative); give "
                "these, or all interactions with preprocess.split.kind 'leave_one_out'"
            )
        if split == "train":
            if layout.table is None:
                raise UserError(
                    f"{file.name}: lists of negatives, no interactions; give it as test=PATH with "
                    "preprocess.split.kind 'files'"
                )
            timed.setdefault(layout.timestamp is not None, file)
    if len(timed) == 2:
        raise UserError(f"{timed[False].name}: has no timestamp, unlike {timed[True].name}; give files of one kind")
