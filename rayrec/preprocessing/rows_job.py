"""The job of tables: find files, parse, split, look up, fit, encode, write. Each is a stage, or several (`Stages`)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from rayrec.common.errors import ConfigError
from rayrec.config.preprocess import (
    HashSplitConfig,
    PreprocessConfig,
    RowsPreprocessConfig,
)
from rayrec.config.table import HistoryConfig, TableSourceConfig
from rayrec.features.events import with_forms
from rayrec.features.lookups import RATES_FOLDER, lookup_folder
from rayrec.features.raw_columns import SECOND, STATISTICS_FOLDER, History, Lookup, Rate, SideTable
from rayrec.features.schema import Feature, Schema
from rayrec.features.text_forms import TextForm
from rayrec.ingest.dataset import (
    Dataset,
    FoundKeys,
    SplitInfo,
    Times,
)
from rayrec.ingest.held_out_rows import MOST_LOOKED_AT, held_out_rows, write_held_out_rows
from rayrec.preprocessing.column_plan import plan_columns
from rayrec.preprocessing.extension import (
    earlier_events,
    growth_of,
    new_events,
    require_features,
    require_histories,
    require_new,
)
from rayrec.preprocessing.extract import Extracted, ExtractedChunk, extract, text_forms
from rayrec.preprocessing.fitting import fit_features
from rayrec.preprocessing.found_keys import count_found_keys
from rayrec.preprocessing.histories import Events, events_of_files, events_reader, write_history
from rayrec.preprocessing.inputs import open_beside, resolve_inputs
from rayrec.preprocessing.lookups import (
    CompletedRows,
    Folds,
    WrittenTable,
    table_reader,
    write_rates,
    write_served_rates,
    write_side_table,
)
from rayrec.preprocessing.numbers import Number, Summary, summarize
from rayrec.preprocessing.parts import Encode, NewPositions, RandomGroups, RowEncoder, write_in_order, write_shuffled
from rayrec.preprocessing.row_splits import (
    KeptColumns,
    RowDivision,
    keys_of_files,
    rows_by_day,
    split_rows,
)
from rayrec.preprocessing.segments import Piece, Segment, read_segment, segments_by_split
from rayrec.preprocessing.vocabularies import GrowthRules, HeldOut, KnownValues
from rayrec.preprocessing.workspace import Stages, Workspace, WrittenDataset
from rayrec.random.arrays import BlockwisePermutation, HashPermutation
from rayrec.raw.rows import Reason, describe_others
from rayrec.raw.table_reader import open_table
from rayrec.store.files import copy as copy_files
from rayrec.store.paths import file_name


class RowsJob:
    """A job whose inputs and config were checked."""

    def __init__(
        self,
        source: TableSourceConfig,
        config: PreprocessConfig,
        inputs: Mapping[str | None, Sequence[str]],
        parent: Dataset | None = None,
    ) -> None:
        """`config` is a `RowsPreprocessConfig`; `parent`: the dataset that is extended.

        Raises UserError on inputs or a config that cannot work.
        """
        assert isinstance(config, RowsPreprocessConfig)
        if source.group is not None and config.order != "total_random":
            raise ConfigError(
                f"preprocess.order: '{config.order}' does not suit source.group, whose lists are shuffled; leave it out"
            )
        self._source, self._config, self._parent = source, config, parent
        self._inputs = resolve_inputs(config, inputs)
        require_new(self._inputs.files, parent)
        log = open_table(
            self._inputs.files, source, is_ignored=lambda name: name != source.label_column and source.is_ignored(name)
        )
        self._tables = {
            name: open_beside(f"source.tables.{name}.path", table.path, table) for name, table in source.tables.items()
        }
        self._events = {
            name: open_beside(f"source.histories.{name}.path", history.path, history)
            for name, history in source.histories.items()
            if history.path is not None
        }
        self._new_events = {name: new_events(name, files.files, parent) for name, files in self._events.items()}
        beside = (*self._tables.values(), *self._events.values())
        self.files = (*self._inputs.files, *(file for table in beside for file in table.files))
        names = {name: table.columns.names for name, table in self._tables.items()}
        self._plan = plan_columns(source, config.split, log.columns.names, names)
        if parent is not None:
            require_features([feature.name for feature in self._plan.features], parent)
            require_histories([history for history, _ in self._plan.histories], parent)
        self._hashed: str | None = None
        if isinstance(config.split, HashSplitConfig):
            self._hashed = config.split.column or source.group
        lengths = self._plan.list_lengths
        self._reader = replace(self._plan.reader(log, source, config.split), counts_others=True)
        self._readers = {
            table.name: table_reader(
                self._tables[table.name], table, self._plan.columns, source.tables[table.name], lengths
            )
            for table in self._plan.tables
        }
        given = {column.name: column for column in self._plan.columns}
        self._event_readers = {
            history.name: events_reader(self._events[history.name], history, given)
            for history, config in self._plan.histories
            if config.path is not None
        }

    def write(self, workspace: Workspace) -> WrittenDataset:
        """Write look-ups, vocabularies, splits and bad rows. Raises UserError."""
        config, plan = self._config, self._plan
        stages = Stages(workspace.scratch, workspace.progress)
        kept, extracted, rejected, pieces = self._parse_and_split(workspace, stages)
        segments = segments_by_split(pieces)
        found = stages.run("times", tuple[Times, ...], lambda files: self._times(workspace.within(files), segments))
        times = found[0] if found else None
        growth = growth_of(self._parent, times, config.expire_after, compact=config.compact)

        # Look up: side tables and label rates come before the fits, as features are made of their columns, too. Rows of
        # `train` are read with rates that leave out their own fold.
        roles = {column.role: column.name for column in plan.kept}
        schema = Schema(label=plan.label, features=(), columns=plan.columns, **roles)
        forms = self._forms_of_texts(extracted)
        train, others = self._write_lookups(workspace, stages, schema, forms, segments, rejected, growth)
        keys_found, warnings = dict[str, FoundKeys](), list[str]()
        if others.schema.lookups:
            keys_found, warnings = stages.run(
                "find-keys",
                tuple[dict[str, FoundKeys], list[str]],
                lambda _: count_found_keys(
                    workspace, others, segments, self._source.tables, rates_of_train=self._parent is None
                ),
            )
        # Fit transforms and vocabularies to `train`.
        plan = replace(plan, columns=others.schema.columns)
        held_out = {split: of_split for split, of_split in segments.items() if split != "train" and of_split}

        def read_held_out(item: tuple[str, Segment], columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
            return ((item[0], batch) for batch in others.read(item[1], columns, columns))

        items = [(split, segment) for split, of_split in held_out.items() for segment in of_split]
        features, known_values = stages.run(
            "fit",
            tuple[tuple[Feature, ...], KnownValues],
            lambda files: fit_features(
                workspace.within(files),
                stages,
                train.read,
                segments["train"],
                plan,
                config,
                growth,
                HeldOut(items, read_held_out, tuple(held_out)),
            ),
        )
        schema = Schema.model_validate({**dict(others.schema), "features": features})

        # Encode and write, a split at a time where it is shuffled; splits in the order of the input are one stage.
        def shuffled(split: str, encoder: RowEncoder, order: NewPositions | RandomGroups) -> SplitInfo:
            return stages.run(
                f"write-{split}",
                SplitInfo,
                lambda _: write_shuffled(workspace, encoder, split, segments[split], order, config.layout),
                workspace.folder / split,
            )

        splits: dict[str, SplitInfo] = {}
        in_order: dict[str, tuple[Encode, Sequence[Segment]]] = {}
        for split, of_split in segments.items():
            rows = train if split == "train" else others
            encoder = RowEncoder(schema, workspace.folder, kept.fields, rows.read)
            order = self._order(split, pieces[split], extracted)
            if order is None:
                in_order[split] = encoder.encode, of_split
            else:
                splits[split] = shuffled(split, encoder, order)
        if in_order:
            written = stages.run(
                "write-in-order",
                list[SplitInfo],
                lambda _: write_in_order(workspace, in_order, schema.label, config.layout),
                *(workspace.folder / split for split in in_order),
            )
            splits |= zip(in_order, written, strict=True)
        if held_out:
            stages.leave("held-out", lambda _: _write_held_out_rows(workspace.folder, schema, held_out))
        # Columns that only later rows of JSON have were not known when the features were planned.
        late: Counter[str] = sum((Counter(chunk.others) for chunk in extracted), Counter())
        known = self._reader.file_columns
        late = Counter({n: rows for n, rows in late.items() if n not in known and not self._source.is_ignored(n)})
        if late:
            warnings = [describe_others(late), *warnings]
        warnings = [*self._reader.warnings, *warnings]
        return WrittenDataset(
            schema,
            splits,
            rejected,
            times,
            growth.moment,
            found_keys=keys_found,
            known_values=known_values,
            warnings=warnings,
        )

    def _parse_and_split(
        self, workspace: Workspace, stages: Stages
    ) -> tuple[KeptColumns, list[ExtractedChunk], dict[str, int], dict[str, list[Piece]]]:
        """Return the columns that stay as they are, the parsed chunks, bad rows by reason, and the rows by split."""
        config, plan, inputs = self._config, self._plan, self._inputs
        # Parse: raw files become Parquet files of the columns that are needed, bad rows set aside. Where the split of a
        # row follows from the row alone, they are divided into splits at once.
        in_requests = {column.name for column in plan.columns}
        raw = [column for column in plan.read if column.name in {*in_requests, *plan.event_columns, plan.time}]
        kept = KeptColumns(plan.label, plan.kept, tuple(pa.field(column.name, column.arrow) for column in raw))
        keys = keys_of_files([file.name for file in inputs.files], self._parent)
        division = RowDivision(config.split, config.seed, self._hashed, kept, self._reader, keys)
        fixes: dict[str, str] = {
            Reason.LABEL: f"source.label: {{column: {plan.label}, at_least: NUMBER}} turns other values into a label",
            Reason.NUMBER: "`number_format` of the source or of a rule says how people write numbers, such as 1.234,5",
            Reason.TIME: "`format` of its rule, or of source.time, says how times are written",
        }
        most = config.max_rejected_fraction
        extracted, rejected = stages.run(
            "parse",
            Extracted,
            lambda files: extract(workspace.within(files), self._reader, inputs.files, most, division, fixes),
        )
        # Split what needs all rows to be known: shares, days, moments.
        pieces = stages.run(
            "split",
            dict[str, list[Piece]],
            lambda files: split_rows(
                workspace.within(files), config.split, extracted, inputs.splits, inputs.days, plan.time
            ),
        )
        return kept, extracted, rejected, pieces

    def encode_again(self, workspace: Workspace, dataset: Dataset, split: str, staleness: int) -> SplitInfo:
        """Write a split of the dataset that this job has made as it would be if its histories were `staleness` seconds
        old at each row, by the features and look-ups of the dataset. Raises UserError.
        """
        kept, extracted, _, pieces = self._parse_and_split(workspace, Stages(workspace.scratch, workspace.progress))
        lookups = tuple(
            lookup.model_copy(update={"staleness": staleness * SECOND}) if isinstance(lookup, History) else lookup
            for lookup in dataset.schema.lookups
        )
        schema = dataset.schema.model_copy(update={"lookups": lookups})
        encoder = RowEncoder(schema, dataset.folder, kept.fields, CompletedRows(schema, dataset.folder).read)
        segments, layout = segments_by_split(pieces)[split], self._config.layout
        order = self._order(split, pieces[split], extracted)
        if order is not None:
            return write_shuffled(workspace, encoder, split, segments, order, layout)
        (info,) = write_in_order(workspace, {split: (encoder.encode, segments)}, schema.label, layout)
        return info

    def _forms_of_texts(self, extracted: Sequence[ExtractedChunk]) -> dict[str, TextForm]:
        """Choose the forms of texts: those of the dataset that is extended, or what all rows of the log say."""
        if self._parent is not None:
            schema = self._parent.schema
            of_events = (field for history in schema.histories for field in history.fields)
            return {column.name: column.form for column in (*of_events, *schema.columns)}
        shared = {feature.shares for feature in self._plan.features}
        # Columns that share a vocabulary have the same texts for the same values.
        sharing = [f.inputs[0] for f in self._plan.features if f.shares or f.name in shared]
        return {**text_forms(extracted), **dict.fromkeys(sharing, "number")}

    def _write_lookups(
        self,
        workspace: Workspace,
        stages: Stages,
        schema: Schema,
        forms: Mapping[str, TextForm],
        segments: Mapping[str, Sequence[Segment]],
        rejected: dict[str, int],
        growth: GrowthRules,
    ) -> tuple[CompletedRows, CompletedRows]:
        """Write side tables, histories and rates; return the readers of rows of `train` and of others. Counts bad rows.

        `forms`: those of the texts of the log; those of side tables are found here.
        """
        source, plan, statistics = self._source, self._plan, workspace.folder / STATISTICS_FOLDER
        most = self._config.max_rejected_fraction

        def write_table(table: SideTable, forms: Mapping[str, TextForm]) -> WrittenTable:
            config = source.tables[table.name]
            reader, files = self._readers[table.name], self._tables[table.name].files
            return stages.run(
                f"table-{file_name(table.name)}",
                WrittenTable,
                lambda _: write_side_table(workspace, table, config, reader, files, most, forms),
                lookup_folder(statistics, table),
            )

        for table in plan.tables:
            written = write_table(table, forms)
            for reason, number in written.rejected.items():
                rejected[reason] = rejected.get(reason, 0) + number
            forms = {**written.forms, **forms}
        of_past = [taken for history, _ in plan.histories for taken in history.takes if taken.of is not None]
        forms = {**{taken.column: forms.get(taken.of or "", "text") for taken in of_past}, **forms}
        columns = tuple(c.model_copy(update={"form": forms.get(c.name, c.form)}) for c in schema.columns)
        with_tables = schema.model_copy(update={"columns": columns, "lookups": plan.tables})
        folds = Folds(source.rate_folds, self._config.seed, workspace.scratch / "rates", source.group)
        rates: tuple[Rate, ...] = ()
        if self._parent is not None:
            # Counted in earlier rows alone, so they tell a row nothing of its own label.
            rates = tuple(lookup for lookup in self._parent.schema.lookups if isinstance(lookup, Rate))
            if rates:
                earlier = self._parent.folder / STATISTICS_FOLDER / RATES_FOLDER
                stages.leave("rates", lambda folder: copy_files(earlier, folder), statistics / RATES_FOLDER)
        elif plan.rates:
            rows = CompletedRows(with_tables, workspace.folder)
            rates = stages.run(
                "rates", tuple[Rate, ...], lambda _: write_rates(workspace, rows, segments["train"], plan.rates, folds)
            )
            stages.leave(
                "served-rates",
                lambda folder: write_served_rates(workspace, rates, folds, folder),
                statistics / RATES_FOLDER,
            )
        rows = CompletedRows(with_tables, workspace.folder)
        every_segment = [segment for of_split in segments.values() for segment in of_split]
        types = {column.name: column.arrow for column in (*plan.read, *plan.columns)}

        def write_events(history: History, config: HistoryConfig) -> History:
            """Write the table of a history, which goes on from that of the parent; return it with its end."""
            earlier = None if self._parent is None else earlier_events(self._parent, history, growth)

            def work(folder: Path) -> History:
                events = Events(every_segment, rows.read, history.time, schema.label, types, forms)
                if config.path is not None:
                    reader, files = self._event_readers[history.name], self._new_events[history.name]
                    events = events_of_files(workspace, history, reader, files, most, forms)
                until = write_history(workspace, history, events, folder, earlier)
                return with_forms(history.model_copy(update={"until": until}), forms)

            return stages.run(f"history-{file_name(history.name)}", History, work, lookup_folder(statistics, history))

        histories = [write_events(*planned) for planned in plan.histories]
        lookups: tuple[Lookup, ...] = (*plan.tables, *rates, *histories)
        complete = with_tables.model_copy(update={"lookups": lookups})
        others = CompletedRows(complete, workspace.folder)
        by_fold = rates and self._parent is None
        return CompletedRows(complete, workspace.folder, folds) if by_fold else others, others

    def _times(self, workspace: Workspace, segments: Mapping[str, Sequence[Segment]]) -> tuple[Times, ...]:
        """Return the times of rows, if they have any; `segments` by split."""
        if self._plan.time is None:
            return ()
        moment = Number(self._plan.time, (self._plan.time,))

        def range_of(some: Sequence[Segment]) -> Summary | None:
            found = summarize(workspace, "find the range of times", read_segment, some, [moment]) if some else {}
            return found.get(moment.name)

        held_out = [segment for split, of_split in segments.items() if split != "train" for segment in of_split]
        train, later = range_of(segments["train"]), range_of(held_out)
        found = [one for one in (train, later) if one is not None]
        if not found:
            return ()
        first_later = None
        if train is not None and later is not None and train.most <= later.least:
            first_later = later.least / SECOND
        return (
            Times(
                first=min(one.least for one in found) / SECOND,
                last=max(one.most for one in found) / SECOND,
                held_out=first_later,
            ),
        )

    def _order(
        self, split: str, pieces: Sequence[Piece], extracted: Sequence[ExtractedChunk]
    ) -> NewPositions | RandomGroups | None:
        """Return the order in which a split is written; None keeps the order of the input.

        Rows that extend a dataset stay in their order, which is mostly that of time: models go on with them so.
        """
        config = self._config
        if self._source.group is not None:
            return RandomGroups(config.seed)
        if split != "train" or config.order == "input" or self._parent is not None:
            return None
        if config.order == "total_random":
            return HashPermutation(sum(piece.rows for piece in pieces), config.seed)
        return BlockwisePermutation(rows_by_day(pieces, extracted, self._inputs.days), config.seed)


def _write_held_out_rows(folder: Path, schema: Schema, segments: Mapping[str, Sequence[Segment]]) -> None:
    """Write a few rows of each held-out split as they were parsed, without what is looked up for them."""
    columns = schema.given_columns
    names = [*(column.name for column in columns), schema.label]
    found = {}
    for split, of_split in segments.items():
        batches, rows = list[pa.RecordBatch](), 0
        for batch in (batch for segment in of_split for batch in read_segment(segment, names)):
            batches.append(batch.slice(0, MOST_LOOKED_AT - rows))
            rows += batches[-1].num_rows
            if rows == MOST_LOOKED_AT:
                break
        found[split] = held_out_rows(split, pa.Table.from_batches(batches), columns, schema.label)
    write_held_out_rows(folder, found)
