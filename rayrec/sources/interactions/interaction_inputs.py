"""Finds the files of interactions that a job reads, by split."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rayrec.common.errors import ConfigError, UserError
from rayrec.preprocessing.rows_job import check_files, require_no_names
from rayrec.raw.input_files import InputFile, list_inputs
from rayrec.sources.interactions.config import (
    InteractionFilesSplitConfig,
    InteractionSourceConfig,
    InteractionSplitConfig,
)
from rayrec.sources.interactions.interaction_reader import InteractionReader, has_lists

_SPLITS = ("train", "validation", "test")
_RATINGS_FILE = re.compile(r"^(u\.data|ratings\.(dat|csv|parquet))(\.gz)?$")
_PAPER_FILE = re.compile(r"\.((?P<train>train)\.(rating|pairs\.tsv)|(?P<held_out>validation|test)\.negative)(\.gz)?$")


@dataclass(frozen=True)
class InteractionInputs:
    """Raw files in the order of their rows."""

    files: tuple[InputFile, ...]
    """Files of interactions, from which `train` comes."""
    lists: dict[str, tuple[InputFile, ...]]
    """Files of lists of candidates by split, `validation` or `test`."""
    reader: InteractionReader


def resolve_interactions(
    source: InteractionSourceConfig,
    split: InteractionSplitConfig,
    paths: Mapping[str | None, Sequence[str]],
) -> InteractionInputs:
    """Find the raw files and look at the beginning of each: `paths` by split, or all under None.

    Raises UserError if a path gives no file, or the files do not suit the config.
    """
    found = _of_files(split, paths) if isinstance(split, InteractionFilesSplitConfig) else _of_leave_one_out(paths)
    check_files([file for of_split in found.values() for file in of_split])
    for name, of_split in found.items():
        for file in of_split:
            if name == "train" and has_lists(source, file):
                raise UserError(
                    f"{file.name}: lists of negatives, no interactions; give it as test=PATH with "
                    "preprocess.split.kind 'files'"
                )
            if name != "train" and not has_lists(source, file):
                raise UserError(
                    f"{file.name}: no lists of a positive and its negatives, as {name}=PATH needs (*.test.negative); "
                    "give these, or all interactions with preprocess.split.kind 'leave_one_out'"
                )
    files = tuple(found.pop("train"))
    lists = {name: tuple(of_split) for name, of_split in found.items()}
    return InteractionInputs(files, lists, InteractionReader.of_tables(source, files))


def _of_leave_one_out(paths: Mapping[str | None, Sequence[str]]) -> dict[str, list[InputFile]]:
    require_no_names("leave_one_out", paths)
    found = []
    for path in paths[None]:
        # The folders of MovieLens hold other files than ratings, too: movies.csv, tags.csv, u.item.
        files = list_inputs([path])
        found += [file for file in files if _RATINGS_FILE.match(file.base_name)] or files
    return {"train": found}


def _of_files(
    split: InteractionFilesSplitConfig, paths: Mapping[str | None, Sequence[str]]
) -> dict[str, list[InputFile]]:
    unknown = next((name for name in paths if name not in (None, *_SPLITS)), None)
    if unknown is not None:
        raise ConfigError(f"--input {unknown}=...: no split of interactions; use train, validation or test")
    found = {name: list_inputs(paths.get(name, ())) for name in _SPLITS}
    for path in paths.get(None, ()):
        # Of the paper's files *.test.rating is left out, whose content is in the lists too.
        named = [(file, _PAPER_FILE.search(file.base_name)) for file in list_inputs([path])]
        if not any(name for _, name in named):
            raise UserError(
                f"{path}: no files NAME.train.rating and NAME.test.negative; name the files: --input train=PATH "
                "--input test=PATH"
            )
        for file, name in named:
            if name:
                found[name["train"] or name["held_out"]].append(file)
    if not found["train"]:
        raise ConfigError("--input: preprocess.split.kind is 'files' and no files are for train; add train=PATH")
    if split.validation and found["validation"]:
        raise ConfigError(
            "--input validation=...: preprocess.split.validation makes that split from train; leave one of them out"
        )
    return {name: files for name, files in found.items() if files}
