"""Counts the rows whose key is found in each look-up, and says why one finds almost none."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config.table import SideTableConfig
from rayrec.features.lookup_table import LookupTable
from rayrec.features.lookups import KEY, SEPARATOR, Lookups
from rayrec.features.raw_columns import History, Lookup, Rate, SideTable
from rayrec.features.text_forms import in_form
from rayrec.ingest.dataset import FoundKeys
from rayrec.preprocessing.lookups import CompletedRows
from rayrec.preprocessing.segments import Segment, count_rows
from rayrec.preprocessing.workspace import Workspace, counted_rows

_COMPARED = 1_000_000
"""Keys of a table that are compared with those of rows which find none."""
_SAMPLED = 16
"""Segments whose first rows are compared."""
_GAIN = 0.1
"""Share of the rows from which it is no chance that keys written in another way would be found."""
_NUMBER = r"^[+-]?([0-9]{1,15}\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,2})?$"
"""Numbers that a float64 holds."""


def _as_numbers(keys: pa.Array) -> pa.Array:
    is_number = pc.match_substring_regex(keys, _NUMBER)
    return pc.replace_with_mask(keys, is_number, keys.filter(is_number).cast(pa.float64()).cast(pa.string()))


_FORMS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "zeros at the front": lambda keys: pc.replace_substring_regex(keys, r"^0+(.)", r"\1"),
    "upper case": pc.utf8_lower,
    "blanks": lambda keys: pc.replace_substring_regex(keys, r"[\s\p{Z}\x{200B}-\x{200D}\x{2060}\x{FEFF}]+", ""),
    "`.0` at the end": lambda keys: pc.replace_substring_regex(keys, r"\.0*$", ""),
    "quotes": lambda keys: pc.replace_substring_regex(keys, r"""["'`]""", ""),
    "the difference of 1e5 and 100000, or true and 1": lambda keys: _as_numbers(in_form(keys, "number")),
    "marks": lambda keys: pc.replace_substring_regex(keys, r"[^\p{L}\p{N}]+", ""),
    "full-width and other forms of letters": lambda keys: pc.utf8_normalize(keys, "NFKC"),
}
"""What the same keys often differ by in two tables, and what makes them one."""


def count_found_keys(
    workspace: Workspace,
    rows: CompletedRows,
    segments: Mapping[str, Sequence[Segment]],
    tables: Mapping[str, SideTableConfig],
    *,
    rates_of_train: bool,
) -> tuple[dict[str, FoundKeys], list[str]]:
    """Return by look-up how many rows have its key, and how many of these keys it has; and warnings.

    `tables`: the side tables by name. `rates_of_train`: label rates were counted in `train`, so that other rows alone
    tell what they know. Raises UserError if fewer rows than `SideTableConfig.least_found` find a side table's key.
    """
    lookups = rows.schema.lookups
    work = [(split, segment) for split, of_split in segments.items() for segment in of_split]
    with counted_rows(
        workspace.engine, workspace.progress, "find keys", count_rows(segment for _, segment in work)
    ) as counter:

        def of_segment(item: tuple[str, Segment]) -> list[FoundKeys]:
            split, segment = item
            counted = [FoundKeys() for _ in lookups]
            opened = Lookups.cached(rows.schema, rows.dataset)
            reads = opened.reads(())
            for batch in rows.read(segment, reads, reads):
                for lookup, _, keys, found in opened.keys_found(batch):
                    if not (rates_of_train and split == "train" and isinstance(lookup, Rate)):
                        counted[lookups.index(lookup)] += FoundKeys(
                            rows=len(keys) - keys.null_count,
                            found=int(np.count_nonzero(found)),
                            of_past=isinstance(lookup, History),
                        )
            counter.add(segment.piece.rows)
            return counted

        by_segment = workspace.engine.run(work, of_segment)
    total = {
        lookup.name: sum(of_lookup, FoundKeys())
        for lookup, of_lookup in zip(lookups, zip(*by_segment, strict=True), strict=True)
    }
    warnings = []
    for lookup in lookups:
        counts = total[lookup.name]
        if isinstance(lookup, Rate) and not counts.rows:
            continue  # no row was held out
        config = tables[lookup.name] if isinstance(lookup, SideTable) else None
        least = 0.0 if config is None else config.least_found
        if counts.share >= 1 - _GAIN and counts.share >= least:
            continue
        if isinstance(lookup, History) and counts.found:
            continue  # the first rows of a key have no past
        of_lookup = [
            segment
            for split, of_split in segments.items()
            for segment in of_split
            if not isinstance(lookup, Rate) or split != "train" or not rates_of_train
        ]
        reason, gain = _why(workspace, rows, lookup, of_lookup)
        kind = "history" if isinstance(lookup, History) else "label rate"
        what = f"{kind} '{lookup.name}'" if config is None else f"side table '{lookup.name}' ({config.path})"
        text = f"{what}: {counts.described(' and '.join(lookup.keys))}{reason}"
        if counts.share < least:
            raise UserError(
                f"{text}; write the keys of both alike, or set source.tables.{lookup.name}.least_found "
                f"({least:g}) to less"
            )
        if gain >= _GAIN:
            warnings.append(f"{text}; write the keys of both alike")
        elif not counts.found:
            warnings.append(text)
    return total, warnings


def _why(workspace: Workspace, rows: CompletedRows, lookup: Lookup, segments: Sequence[Segment]) -> tuple[str, float]:
    """Return three keys of rows that find none and three of the table, and the way of writing them by which most would
    be found, with the share of rows that it would add.
    """

    def look(chosen: Sequence[Segment]) -> tuple[str, float]:
        opened, all_keys, all_found = Lookups.cached(rows.schema, rows.dataset), [], []
        for segment in chosen:
            batch = next(rows.read(segment, opened.reads(())))
            for of_batch, table, keys, found in opened.keys_found(batch):
                if of_batch == lookup:
                    all_keys.append(keys.cast(pa.string()))
                    all_found.append(found)
                    its_table = table
        return _described(pa.concat_arrays(all_keys), np.concatenate(all_found), its_table)

    # In a task, which can read the files. A few rows from everywhere tell how keys are written.
    ((reason, gain),) = workspace.engine.run([segments[:: -(-len(segments) // _SAMPLED)]], look)
    return reason, gain


def _described(keys: pa.Array, found: NDArray[np.bool_], table: LookupTable) -> tuple[str, float]:
    given = len(keys) - keys.null_count
    if not given:
        return "", 0.0
    counted = keys.filter(pa.array(~found)).drop_null().value_counts()
    missing, rows = counted.field("values"), counted.field("counts").to_numpy()
    held = table.column(KEY, np.arange(min(len(table), _COMPARED)), pa.string())
    # A history has keys that it finds nothing of, as their events come later: no way of writing them is to blame.
    rows = np.where(pc.is_in(missing, held).to_numpy(zero_copy_only=False), 0, rows)

    def share(forms: Iterable[str]) -> float:
        ours, theirs = missing, held
        for form in forms:
            ours, theirs = _FORMS[form](ours), _FORMS[form](theirs)
        return float(rows[pc.is_in(ours, theirs).to_numpy(zero_copy_only=False)].sum()) / given

    one = max(_FORMS, key=lambda form: share([form]))
    # Where no single form makes them alike, several may.
    forms = [one] if share([one]) >= _GAIN else list(_FORMS)
    gain = share(forms)
    known = float(np.count_nonzero(found)) / given
    # The most frequent keys of rows, and the first of the table in their order: both as people look for them.
    of_rows = missing.take(pa.array(np.argsort(-rows, kind="stable")[:3]))
    text = f"; rows have {_shown(of_rows)}, the table has {_shown(held.sort()[:3]) or 'no key'}"
    if gain >= _GAIN:
        text += f"; without {', '.join(forms[:-1])}{' and ' if forms[1:] else ''}{forms[-1]} {known + gain:.0%} would"
    return text, gain


def _shown(keys: pa.Array) -> str:
    return ", ".join(f"{key[:40].replace(SEPARATOR, ', ')!a}" for key in keys.to_pylist())
