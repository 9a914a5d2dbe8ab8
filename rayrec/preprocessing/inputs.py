"""The raw files of a job of rows: found, in the order of their rows, by split and day."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rayrec.common.errors import ConfigError, UserError
from rayrec.config.preprocess import DaySplitConfig, FileSplitConfig, RowsPreprocessConfig, TimeSplitConfig
from rayrec.config.table import FileFormat
from rayrec.ingest.dataset import COUNTS_FOLDER, REJECTED_FOLDER, VOCABULARY_FOLDER
from rayrec.raw.input_files import InputFile, list_inputs
from rayrec.raw.table_reader import TableFiles, open_table

_SPLIT_NAME = re.compile(r"^[a-z][a-z0-9_]*$")
_DAY_FILE = re.compile(r"^day_(\d+)(\..+)?$")
"""Names of files that hold the rows of one day: day_7, day_7.gz."""


@dataclass(frozen=True)
class Inputs:
    """Raw files in the order of their rows: by day if all names contain one, else as given."""

    files: tuple[InputFile, ...]
    splits: tuple[str | None, ...]
    """The split of each file; None if splits do not come as files."""
    days: tuple[int | None, ...]
    """The day of each file that is named day_N."""


def resolve_inputs(config: RowsPreprocessConfig, paths: Mapping[str | None, Sequence[str]]) -> Inputs:
    """Find the raw files: `paths` by split, or all under None if splits do not come as files.

    Raises UserError if a path gives no file, all files are empty, or the files do not suit the config.
    """
    _check_split_names(config, paths)
    found = [(file, split) for split, given in paths.items() for file in list_inputs(given)]
    check_files([file for file, _ in found])
    days_of = {file: _DAY_FILE.match(file.base_name) for file, _ in found}
    entries = [(file, split, int(day[1]) if (day := days_of[file]) else None) for file, split in found]
    if all(day is not None for _, _, day in entries):
        entries.sort(key=lambda entry: entry[2] or 0)
    _check_days(config, entries)
    files, splits, days = zip(*entries, strict=True)
    return Inputs(files, splits, days)


def check_files(files: Sequence[InputFile]) -> None:
    """Raise UserError if a file is given twice, or all are empty."""
    names = [file.name for file in files]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated:
        raise UserError(f"{repeated}: given for two splits; give every file once")
    if not any(file.bytes for file in files):
        raise UserError(f"{names[0]}: empty; there are no rows to preprocess")


def _check_split_names(config: RowsPreprocessConfig, paths: Mapping[str | None, Sequence[str]]) -> None:
    if isinstance(config.split, FileSplitConfig):
        if None in paths:
            raise ConfigError(
                f"--input {paths[None][0]}: preprocess.split.kind is 'files', so name its split: --input train=PATH"
            )
        if "train" not in paths:
            raise ConfigError("--input: preprocess.split.kind is 'files' and no files are for train; add train=PATH")
        for split in (split for split in paths if split is not None):
            if not _SPLIT_NAME.match(split) or split in {VOCABULARY_FOLDER, REJECTED_FOLDER, COUNTS_FOLDER}:
                raise ConfigError(f"--input {split}=...: not a name for a split; use train, validation or test")
    else:
        require_no_names(config.split.kind, paths)


def require_no_names(kind: str, paths: Mapping[str | None, Sequence[str]]) -> None:
    """Raise ConfigError if paths are given by split, though a split of this kind makes these of all rows."""
    for named in (split for split in paths if split is not None):
        raise ConfigError(
            f"--input {named}=...: preprocess.split.kind is '{kind}', which splits the rows itself; add "
            "--set 'preprocess.split={kind: files}' or give the paths alone"
        )


def _check_days(config: RowsPreprocessConfig, entries: Sequence[tuple[InputFile, str | None, int | None]]) -> None:
    split, order = config.split, config.order
    if not isinstance(split, DaySplitConfig) and order != "day_random":
        return
    if order == "day_random" and isinstance(split, TimeSplitConfig):
        raise ConfigError(
            "preprocess.order: 'day_random' does not suit preprocess.split.kind 'time', which splits within the "
            "files of days; use total_random, or input"
        )
    setting = "preprocess.split.kind: day" if isinstance(split, DaySplitConfig) else "preprocess.order: day_random"
    seen: dict[int, str] = {}
    for file, _, day in entries:
        if day is None:
            raise UserError(
                f"{file.name}: {setting} needs files named day_0, day_1, ...; rename it or change {setting}"
            )
        if day in seen:
            raise UserError(f"{file.name}: holds the same day as {seen[day]}; give every day once")
        seen[day] = file.name
    if isinstance(split, DaySplitConfig):
        if split.held_out_day not in seen:
            raise UserError(
                f"preprocess.split.held_out_day: no file day_{split.held_out_day} among the {len(seen)} inputs (days "
                f"{min(seen)} to {max(seen)}); set it to one of these"
            )
        if len(seen) == 1:
            raise UserError("preprocess.split: the held-out day is the only input, so no rows are left for train")


def open_beside(where: str, path: str, config: FileFormat) -> TableFiles:
    """Return the files of a table beside the log. Raises UserError naming the key in the recipe, `where`."""
    try:
        return open_table(list_inputs([path]), config)
    except UserError as error:
        raise type(error)(f"{where}: {error}") from None
