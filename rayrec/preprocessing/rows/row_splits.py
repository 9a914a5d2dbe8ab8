"""Decides which rows belong to which split."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import pyarrow as pa
from xxhash import xxh64_intdigest

from rayrec.common.errors import UserError
from rayrec.config.preprocess import DaySplitConfig, FileSplitConfig, FractionSplitConfig, HashSplitConfig, SplitConfig
from rayrec.preprocessing.extract import ExtractedChunk, pieces_of
from rayrec.preprocessing.segments import Piece, cut_pieces
from rayrec.raw.blocks import RawBlock

SPLIT_ORDER = ("train", "validation", "test")


@dataclass(frozen=True)
class HashedSplits:
    """Splits by a hash of the row's text: equal rows fall into the same split, whatever the files around them."""

    config: HashSplitConfig
    seed: int

    @property
    def names(self) -> tuple[str, ...]:
        return ("train", *(["validation"] if self.config.validation else []), *(["test"] if self.config.test else []))

    def divide(self, block: RawBlock, first_line: int) -> dict[str, pa.RecordBatch]:
        """The rows of a block by split; `first_line` is the number of the block's first line in `block.lines`."""
        lines = block.text.replace(b"\r\n", b"\n").split(b"\n")
        digests = map(xxh64_intdigest, lines[:-1], repeat(self.seed & (2**64 - 1)))
        hashes = np.fromiter(digests, np.uint64, block.num_lines)[block.lines - first_line]
        shares = hashes / 2.0**64
        test_from = 1.0 - self.config.test
        bounds = [0.0, test_from - self.config.validation, test_from, 1.0 + 1e-9]
        return {
            name: block.rows.filter(pa.array((shares >= low) & (shares < high)))
            for name, low, high in zip(SPLIT_ORDER, bounds[:-1], bounds[1:], strict=True)
            if name in self.names
        }


def split_rows(
    config: SplitConfig,
    extracted: Sequence[ExtractedChunk],
    splits: Sequence[str | None],
    days: Sequence[int | None],
) -> dict[str, list[Piece]]:
    """The rows of each split in the order of the input; `splits` and `days` are given by file.

    Raises UserError if no rows are left for train.
    """
    match config:
        case HashSplitConfig():
            result = {name: pieces_of(extracted, name) for name in extracted[0].rows}
        case FileSplitConfig():
            given = sorted({s for s in splits if s is not None}, key=_split_rank)
            result = {s: pieces_of(c for c in extracted if splits[c.chunk.file_index] == s) for s in given}
        case FractionSplitConfig():
            result = _by_fraction(config, pieces_of(extracted))
        case DaySplitConfig():
            result = _by_day(config, extracted, days)
    if _count_rows(result["train"]) == 0:
        total = sum(_count_rows(pieces) for pieces in result.values())
        raise UserError(f"preprocess.split: of {total:,} good rows none falls into train; give more rows or change it")
    return result


def _count_rows(pieces: Iterable[Piece]) -> int:
    return sum(piece.rows for piece in pieces)


def _split_rank(split: str) -> tuple[int, str]:
    return (SPLIT_ORDER.index(split) if split in SPLIT_ORDER else len(SPLIT_ORDER), split)


def _by_fraction(config: FractionSplitConfig, pieces: list[Piece]) -> dict[str, list[Piece]]:
    total = _count_rows(pieces)
    test_from = total - round(total * config.test)
    validation_from = test_from - round(total * config.validation)
    result = {"train": cut_pieces(pieces, 0, validation_from)}
    if config.validation:
        result["validation"] = cut_pieces(pieces, validation_from, test_from)
    if config.test:
        result["test"] = cut_pieces(pieces, test_from, total)
    return result


def _by_day(
    config: DaySplitConfig, extracted: Sequence[ExtractedChunk], days: Sequence[int | None]
) -> dict[str, list[Piece]]:
    held_out = [c for c in extracted if days[c.chunk.file_index] == config.held_out_day]
    # As `head -n` counts: bad lines are counted too, and the first half is the longer one.
    remaining = -(-sum(c.lines for c in held_out) // 2)
    test_rows = 0
    for chunk in held_out:
        lines = min(remaining, chunk.lines)
        test_rows += chunk.rows_before_line(lines)
        remaining -= lines
    pieces = pieces_of(held_out)
    return {
        "train": pieces_of(c for c in extracted if days[c.chunk.file_index] != config.held_out_day),
        "validation": cut_pieces(pieces, test_rows, _count_rows(pieces)),
        "test": cut_pieces(pieces, 0, test_rows),
    }


def rows_by_day(pieces: Iterable[Piece], extracted: Sequence[ExtractedChunk], days: Sequence[int | None]) -> list[int]:
    """The number of rows of each day, in the order of days."""
    day_of_path = {path: days[c.chunk.file_index] for c in extracted for path, _ in c.rows.values()}
    totals: dict[int | None, int] = {}
    for piece in pieces:
        day = day_of_path[piece.path]
        totals[day] = totals.get(day, 0) + piece.rows
    return list(totals.values())
