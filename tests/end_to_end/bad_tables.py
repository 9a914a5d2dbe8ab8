"""Mistakes with tables of one's own: in recipes, files and requests, and with `rayrec inspect`."""

import json
import lzma
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.end_to_end.mistake import BadInput, BadRequest, instances

ROWS = 200
COLUMNS = ("click", "rating", "user", "price", "tags", "time", "fold")
FAR = 1_000_000
"""The line of a long file that does not fit the others."""
RECIPE = """\
source:
  kind: table
  label: click
  ignore: [rating, fold]
  features:
    - {columns: user, kind: categorical}
    - {columns: price, kind: numeric, transforms: [log, standardize]}
    - {columns: tags, kind: list, separator: "|"}
    - {columns: time, kind: timestamp}
preprocess:
  frequency_limit: 1
model:
  kind: wide_deep
"""


def _recipe(title: str, changes: str | tuple[str, ...], message: str, code: int = 2) -> BadInput:
    return _files(title, f"clicks.csv{_set(changes)}", message, code)


def _set(changes: str | tuple[str, ...]) -> str:
    return "".join(f' --set "{change}"' for change in ((changes,) if isinstance(changes, str) else changes))


def _files(title: str, files: str, message: str, code: int = 1) -> BadInput:
    return BadInput(title, f"preprocess mine.yaml --output out --input {files}", code, message)


def _past(title: str, history: str, message: str, *changes: str) -> BadInput:
    return _recipe(title, ("source.time={column: time}", *changes, f"source.histories.past={history}"), message)


def _inspect(title: str, arguments: str, message: str, code: int = 2) -> BadInput:
    return BadInput(title, f"inspect {arguments}", code, message)


def _predict(title: str, row: object, message: str) -> BadRequest:
    return BadRequest(title, instances(row), 422, message, "table")


def _of_past(title: str, row: object, message: str) -> BadRequest:
    return BadRequest(title, instances(row), 422, message, "past")


def _rank(title: str, body: object, message: str) -> BadRequest:
    return BadRequest(title, json.dumps(body), 422, message, "table", "rank")


def _rules(*rules: str) -> str:
    return f"source.features=[{', '.join(rules)}]"


RECIPES = [
    _recipe(
        "misspelt key of a rule",
        _rules("{columns: '*', kind: numeric, transform: [log]}"),
        "--set source.features: unknown key 'source.features.0.transform'; did you mean 'transforms'?",
    ),
    _recipe(
        "unknown kind of column",
        _rules("{columns: '*', kind: number}"),
        "--set source.features.0.kind: no such kind 'number'; did you mean 'numeric'?",
    ),
    _recipe(
        "rule without a kind",
        _rules("{columns: '*', transforms: [log]}"),
        "--set source.features.0: say which kind it is (key 'kind')",
    ),
    _recipe(
        "unknown transform",
        _rules("{columns: '*', kind: numeric, transforms: [logarithm]}"),
        "--set source.features.0.transforms.0.op: no such op 'logarithm'; use log, log2, clip, fill, "
        "standardize, min_max, quantile",
    ),
    _recipe(
        "setting without a transform",
        _rules("{columns: '*', kind: numeric, transforms: [{offset: 1}]}"),
        "--set source.features.0.transforms.0: say which op it is (key 'op')",
    ),
    _recipe(
        "transform of a category",
        _rules("{columns: user, kind: categorical, transforms: [log]}"),
        "--set source.features: unknown key 'source.features.0.transforms'; known keys: cardinality, columns, "
        "hash_buckets, kind, max_size, min_count, name, number_format, share, unlisted_buckets, values",
    ),
    _recipe(
        "scalar where a list belongs",
        _rules("{columns: price, kind: numeric, transforms: log}"),
        "--set source.features.0.transforms: must be a list (got 'log')",
    ),
    _recipe(
        "list where a scalar belongs",
        "source.label=[click, rating]",
        "--set source.label: must be a text or a section of keys and values (got ['click', 'rating'])",
    ),
    _recipe(
        "misspelt condition of the label",
        "source.label={column: rating, atleast: 4}",
        "--set source.label: unknown key 'source.label.atleast'; did you mean 'at_least'?",
    ),
    _recipe(
        "condition of the label without a value",
        "source.label={column: rating}",
        "--set source.label: give either at_least or equals",
    ),
    _recipe(
        "unknown label column",
        "source.label=clik",
        "source.label: the files have no column 'clik'; did you mean 'click'?",
    ),
    _recipe(
        "label among the features",
        ("source.ignore=[]", "source.label=user"),
        "source.features.0: column 'user' is the label; a feature made from it would give away the answer",
    ),
    _recipe(
        "column matched twice",
        _rules("{columns: user, kind: categorical}", "{columns: user, kind: list}"),
        "source.features.1: column 'user' is also matched by source.features.0; remove one, or give one a `name` "
        "to keep both",
    ),
    _recipe(
        "column after the pattern that takes it",
        _rules("{columns: '*', kind: categorical}", "{columns: price, kind: numeric}"),
        "source.features.1: column 'price' is also matched by source.features.0; put this rule before that one",
    ),
    _recipe(
        "column that no rule matches",
        "source.ignore=[fold]",
        "source.features: no rule matches column 'rating'; add a rule, or list it in source.ignore",
    ),
    _recipe(
        "unknown column of a rule",
        _rules("{columns: prise, kind: numeric}"),
        "source.features.0: the files have no column 'prise'; did you mean 'price'?",
    ),
    _recipe(
        "pattern that matches nothing",
        _rules("{columns: 'C*', kind: categorical}"),
        "source.features.0: no column matches 'C*'; they have click, rating, user, price, tags, time, fold",
    ),
    _recipe(
        "column with two types",
        _rules("{columns: '*', kind: categorical}", "{columns: user, kind: numeric, name: user_number}"),
        "source.features.1: column 'user' would be read as number here and as text in source.features.0; a column "
        "can be read in one way only, so change one of them",
    ),
    _recipe(
        "two features of one name",
        _rules("{columns: '*', kind: categorical}", "{columns: price, name: user, kind: categorical}"),
        "source.features.1: two columns of the dataset would be named 'user' (also source.features.0); give one "
        "another `name`",
    ),
    _recipe(
        "two encodings",
        _rules("{columns: '*', kind: categorical, hash_buckets: 100, values: [u1, u2]}"),
        "--set source.features.0: hash_buckets and values exclude each other; keep one",
    ),
    _recipe(
        "cardinality not a number",
        _rules("{columns: '*', kind: categorical, cardinality: many}"),
        "--set source.features.0.cardinality: must be a whole number or 'auto' (got 'many')",
    ),
    _recipe(
        "boundaries out of order",
        _rules("{columns: price, kind: buckets, boundaries: [10, 5]}"),
        "--set source.features.0: boundaries must ascend, each once",
    ),
    _recipe(
        "ranges without boundaries",
        _rules("{columns: price, kind: buckets}"),
        "--set source.features.0: give either boundaries or quantiles",
    ),
    _recipe(
        "bounds of clip swapped",
        _rules("{columns: price, kind: numeric, transforms: [{op: clip, min: 9, max: 1}]}"),
        "--set source.features.0.transforms.0: clip: min 9 is above max 1",
    ),
    _recipe(
        "vector without a size",
        _rules("{columns: tags, kind: vector}"),
        "--set source.features.0.size: missing; it is required",
    ),
    _recipe(
        "format of times in words",
        _rules("{columns: time, kind: timestamp, format: YYYY-MM-DD}"),
        "--set source.features.0.format: no such format of times; give iso, s, ms, us, ns, or a pattern such"
        " as %Y-%m-%d (got 'YYYY-MM-DD')",
    ),
    _recipe(
        "unknown time zone",
        _rules("{columns: time, kind: timestamp, zone: Vienna}"),
        "--set source.features.0.zone: no such time zone; give an IANA name such as Europe/Vienna (got 'Vienna')",
    ),
    _recipe(
        "age without a time of rows",
        _rules("{columns: time, kind: timestamp, derive: [age]}", "{columns: '*', kind: categorical}"),
        "source.features.0.derive: 'age' needs the time of the row; add source.time",
    ),
    _recipe(
        "cross of a number",
        _rules(
            "{columns: price, kind: numeric}", "{columns: '*', kind: categorical}", "{kind: cross, of: [user, price]}"
        ),
        "source.features.2.of: feature 'price' is numeric, but a cross needs one category a row; make it "
        "categorical or buckets",
    ),
    _recipe(
        "shared vocabulary of an unknown feature",
        _rules("{columns: '*', kind: categorical}", "{columns: user, name: friend, kind: categorical, share: item}"),
        "source.features.1.share: no feature 'item'; there are user, price, tags, time, friend",
    ),
    _recipe(
        "unknown weights of a list",
        _rules(
            "{columns: tags, kind: list, separator: '|', weights: tag_weights}", "{columns: '*', kind: categorical}"
        ),
        "source.features.0.weights: the files have no column 'tag_weights'; they have click, rating, user, price, "
        "tags, time, fold",
    ),
    _recipe(
        "unknown weight column",
        "source.weight=importance",
        "source.weight: the files have no column 'importance'; they have click, rating, user, price, tags, time, fold",
    ),
    _recipe(
        "lists in the order of the input",
        ("source.group=user", "preprocess.order=input"),
        "preprocess.order: 'input' does not suit source.group, whose lists are shuffled; leave it out",
    ),
    _recipe(
        "missing side table",
        "source.tables.users={path: people.csv, key: user}",
        "source.tables.users.path: people.csv: no such file, or a folder without files; give a file, a folder, a "
        "glob or a URI",
        1,
    ),
    _recipe(
        "side table without its key",
        "source.tables.users={path: users.csv, key: user_id}",
        "source.tables.users.key: the files have no column 'user_id'; they have id, age",
    ),
    _recipe(
        "side table whose key the log lacks",
        "source.tables.users={path: users.csv, key: id, on: user_id}",
        "source.tables.users.on: the files have no column 'user_id'; did you mean 'user'?",
    ),
    _recipe(
        "misspelt key of a side table",
        "source.tables.users={path: users.csv, ky: id}",
        "--set source.tables.users: unknown key 'source.tables.users.ky'; did you mean 'key'? (and 1 more)",
    ),
    _recipe(
        "side table of unmatched columns",
        "source.tables.users={path: users.csv, key: id, on: user}",
        "source.features: no rule matches column 'users_age'; add a rule, or list it in source.ignore",
    ),
    _recipe(
        "rate by an unknown column",
        "source.rates=[{keys: [user, hour]}]",
        "source.rates.0.keys: the files have no column 'hour'; they have click, rating, user, price, tags, time, fold",
    ),
    _recipe(
        "rate by the label",
        "source.rates=[{keys: click}]",
        "source.rates.0.keys: column 'click' is the label; name another column",
    ),
    _past(
        "history without a time",
        "{by: user, take: [count]}",
        "mine.yaml: source: histories.past: the past of a row needs its time; add `time`",
        "source.time=null",
    ),
    _recipe(
        "history without a name",
        "source.histories={'': {by: user, take: [count]}}",
        "--set source.histories: one has no name, which its columns begin with; give it one",
    ),
    _past(
        "history by an unknown column",
        "{by: usr, take: [count]}",
        "source.histories.past.by: the files have no column 'usr'; did you mean 'user'?",
    ),
    _past(
        "misspelt take of a history",
        "{by: user, take: [cuont]}",
        "--set source.histories.past.take.0.op: no such op 'cuont'; did you mean 'count'?",
    ),
    _past(
        "mean of the label's column",
        "{by: user, take: [{op: mean, column: click}]}",
        "source.histories.past.take.0.column: column 'click' is the label; leave it out of a rate, which is of the "
        "label",
    ),
    _past(
        "last values of lists",
        "{by: user, take: [{op: last, column: tags}]}",
        "source.histories.past.take.0.column: column 'tags' is a list itself; take the last values of a column of "
        "categories",
    ),
    _past(
        "label rate of events without labels",
        "{by: user, path: other.csv, take: [rate]}",
        "--set source.histories.past: take.0.column: missing; events at `path` have no label, so name a column",
    ),
    _past(
        "time of the log's own events",
        "{by: user, time: time, take: [count]}",
        "--set source.histories.past: time: is that of events at `path`; those of the log have source.time",
    ),
    _past(
        "empty window",
        "{by: user, take: [count], window: 0d}",
        "--set source.histories.past: window: is empty; give a longer one, or leave it out to count all earlier events",
    ),
    _past(
        "history of which all is ignored",
        "{by: user, take: [count]}",
        "source.histories.past: source.ignore has all of its columns; remove the history, or ignore fewer of them",
        "source.ignore=[rating, fold, past_count]",
    ),
    _recipe(
        "split by an unknown column",
        "preprocess.split={kind: column, column: flod}",
        "preprocess.split.column: the files have no column 'flod'; did you mean 'fold'?",
    ),
    _recipe(
        "split by time without a time",
        "preprocess.split={kind: time, test: 1d}",
        "preprocess.split: kind 'time' needs a column with the time of each row; add source.time",
    ),
    _recipe(
        "duration in words",
        "preprocess.split={kind: time, test: 1 day}",
        "--set preprocess.split.test: give a fraction from 0 to 1 or a duration such as 12h or 1d (s, m, h,"
        " d or w) (got '1 day')",
    ),
    _recipe(
        "shares that leave no rows to train on",
        "preprocess.split={kind: hash, validation: 0.5, test: 0.5}",
        "--set preprocess.split: validation + test must be below 1, so that rows are left for train",
    ),
    _recipe(
        "unknown split",
        "preprocess.split={kind: random}",
        "--set preprocess.split.kind: no such kind 'random'; use day, fraction, hash, time, column, files",
    ),
    _recipe(
        "model that needs users and items",
        "model.kind=neumf",
        "--set model.kind: 'neumf' needs a user and an item, which source.kind 'table' does not have; use "
        "dcnv2, dlrm, wide_deep, or source.kind interactions",
    ),
    _recipe(
        "names of columns twice",
        "source.header=[click, user, user]",
        "--set source.header: 'user' is there twice; name every column once (got ['click', 'user', 'user'])",
    ),
]
FILES = [
    _files(
        "empty folder",
        "nothing",
        "nothing: no such file, or a folder without files; give a file, a folder, a glob or a URI",
    ),
    _files(
        "pattern without files",
        "'clicks-*.csv'",
        "clicks-*.csv: no such file, or a folder without files; give a file, a folder, a glob or a URI",
    ),
    _files(
        "file without a header",
        "bare.csv",
        "source.label: the files have no column 'click'; they have 0, 1, u0, 0.0, a|d, 2024-05-01, f0; if their "
        "first line is a row, list the column names as `header`",
        2,
    ),
    _files(
        "file without a header, equal values",
        "twins.csv",
        "twins.csv: two columns '1' in its first line; rename one, or list all names as 'header'",
    ),
    _files(
        "second file with other columns",
        "clicks.csv --input other.csv",
        "clicks.csv: no column 'cost', which other.csv has; give files of the same columns, "
        "or list it in source.ignore",
    ),
    _files("semicolons", "semicolons.csv", "semicolons.csv: no tab and no comma in its first line; add separator: ';'"),
    _files(
        "Latin-1 text",
        "western.csv",
        "western.csv: its first line is not UTF-8 text; set 'encoding', such as latin-1, or unpack it, or set 'format'",
    ),
    _files("spreadsheet", "sheet.xlsx", "sheet.xlsx: a spreadsheet; save it as CSV"),
    _files("two files in a zip file", "two.zip", "two.zip: a zip file of 2 files; give one file in each, or unpack it"),
    _files(
        "damaged xz file",
        "cut.csv.xz",
        "cut.csv.xz: damaged xz file (Compressed file ended before the end-of-stream marker was reached); "
        "fetch it again",
    ),
    _files(
        "damaged zstd file",
        "cut.csv.zst",
        "cut.csv.zst: damaged zstd file (Truncated compressed stream); fetch it again",
    ),
    _files(
        "damaged Parquet file",
        "cut.parquet",
        "cut.parquet: damaged Parquet file (Parquet magic bytes not found in footer. Either the file is corrupted or "
        "this is not a parquet file.); fetch it again",
    ),
    _files(
        "Parquet column of another type",
        "lists.parquet",
        "lists.parquet: column 'price': holds list<element: double>, needs a number",
    ),
    _files(
        "array of JSON that breaks off",
        "array.json",
        f"array.json: breaks off after {ROWS - 1:,} objects; fetch it again, or mend its end",
    ),
    _files(
        "text instead of JSON lines",
        "text.jsonl",
        "text.jsonl: no JSON object in its first lines; write one object a line, or set 'format'",
    ),
    _files(
        "list without a separator",
        "clicks.csv" + _set(_rules("{columns: '*', kind: list}")),
        "clicks.csv: column 'user': holds string, needs a list of texts; give its `separator`",
    ),
]
BAD_ROWS = [
    _recipe(
        "label of five values",
        ("source.label=rating", "source.ignore=[click, fold]"),
        "160 of 201 rows are bad (label other than 0 or 1: 160), more than preprocess.max_rejected_fraction "
        "(0.01); the first is clicks.csv, line 3: label other than 0 or 1 (column 'rating': '2'); source.label: "
        "{column: rating, at_least: NUMBER} turns other values into a label",
        1,
    ),
    _recipe(
        "constant label",
        ("source.label={column: rating, at_least: 9}", "source.ignore=[click, fold]"),
        "source.label: column 'rating' is 0 in all 182 rows of train, so there is nothing to learn; give rows"
        " of both kinds, or change preprocess.split",
        1,
    ),
    _recipe(
        "duplicate key in a side table",
        (
            "source.tables.users={path: twice.csv, key: id, on: user}",
            _rules("{columns: users_age, kind: numeric}", "{columns: '*', kind: categorical}"),
        ),
        "side table 'users' (twice.csv): key id has the value u0 twice; keep one row for each key",
        1,
    ),
    _recipe(
        "cardinality too small",
        _rules(
            "{columns: '*', kind: categorical}", "{columns: rating, name: stars, kind: categorical, cardinality: 3}"
        ),
        "source.features.1.cardinality: ids of 'stars' go up to 5 in train, so 3 is too small; give 6 or more",
        1,
    ),
    _recipe(
        "frequency limit too high",
        ("preprocess.frequency_limit=1000", _rules("{columns: '*', kind: categorical}")),
        "preprocess.frequency_limit: no value of a categorical column occurs 1000 times in train, so none would be "
        "listed; lower it, or give the rules a min_count",
        1,
    ),
    _recipe(
        "split by values that do not occur",
        "preprocess.split={kind: column, column: fold, values: {test: [f99]}}",
        "preprocess.split.test: none of 200 good rows falls into test; change it",
        1,
    ),
    _recipe(
        "split that takes all rows",
        "preprocess.split={kind: column, column: user, values: {test: [u0, u1, u2, u3, u4, u5, u6]}}",
        "preprocess.split: none of 200 good rows falls into train; give more rows, or change it",
        1,
    ),
    _files("header alone", "header.csv", "header.csv: no good rows in the input; give files with rows"),
    _files(
        "decimal commas",
        "commas.csv",
        "10 of 201 rows are bad (wrong column count: 10), more than preprocess.max_rejected_fraction (0.01); the "
        "first is commas.csv, line 2: wrong column count",
    ),
    _files(
        "unclosed double quotes",
        "quotes.csv",
        "10 of 201 rows are bad (unclosed double quote: 10), more than preprocess.max_rejected_fraction (0.01); "
        "the first is quotes.csv, line 2: unclosed double quote",
    ),
    _files(
        f"text in row {FAR:,} of a column of numbers",
        "far.csv" + _set(("preprocess.max_rejected_fraction=0", _rules("{columns: price, kind: numeric}"))),
        "1 of 1,000,000 rows are bad (not a number: 1), more than preprocess.max_rejected_fraction (0); the first "
        "is far.csv, line 1000000: not a number (column 'price': 'cheap'); `number_format` of the source or of a rule "
        "says how people write numbers, such as 1.234,5",
    ),
    _files(
        "weights below zero",
        "debts.csv --set source.weight=price",
        "10 of 201 rows are bad (weight below 0 or not a number: 10), more than preprocess.max_rejected_fraction "
        "(0.01); the first is debts.csv, line 11: weight below 0 or not a number (column 'price': '-1.5')",
    ),
    _files(
        "rows without a group",
        "gaps.csv --set source.group=user",
        "29 of 201 rows are bad (no value in a required column: 29), more than preprocess.max_rejected_fraction "
        "(0.01); the first is gaps.csv, line 2: no value in a required column (column 'user': '')",
    ),
    _files(
        "vectors of two lengths",
        "vectors.csv" + _set(_rules("{columns: point, kind: vector, size: 3, separator: ';'}")),
        "10 of 201 rows are bad (wrong size of vector: 10), more than preprocess.max_rejected_fraction (0.01); the "
        "first is vectors.csv, line 2: wrong size of vector (column 'point': '0.5;1')",
    ),
    _files(
        "fewer weights than values of a list",
        "weights.csv" + _set(_rules("{columns: tags, kind: list, separator: ';', weights: shares}")),
        "10 of 201 rows are bad (not one weight of at least 0 for each value: 10), more than "
        "preprocess.max_rejected_fraction (0.01); the first is weights.csv, line 2: not one weight of at least 0 "
        "for each value (column 'shares': '0.5')",
    ),
    _files(
        "milliseconds read as seconds",
        "millis.csv" + _set(_rules("{columns: time, kind: timestamp, format: s}")),
        "200 of 201 rows are bad (not a time: 200), more than preprocess.max_rejected_fraction (0.01); the first "
        "is millis.csv, line 2: not a time (column 'time': '1714521600000'); `format` of its rule, or of "
        "source.time, says how times are written",
    ),
    _files(
        "JSON lines that are not objects",
        "some.jsonl",
        "10 of 200 rows are bad (not a JSON object: 10), more than preprocess.max_rejected_fraction (0.01); the "
        "first is some.jsonl, line 1: not a JSON object",
    ),
]
INSPECT = [
    _inspect(
        "no file",
        "nowhere.csv --label click",
        "nowhere.csv: no such file, or a folder without files; give a file, a folder, a glob or a URI",
        1,
    ),
    _inspect("no rows", "clicks.csv --label click --rows 0", "rows: must be above 0 (got '0')"),
    _inspect("header alone", "header.csv --label click", "header.csv: no rows; give files with rows", 1),
    _inspect(
        "unknown label column", "clicks.csv --label clik", "--label clik: no column 'clik'; did you mean 'click'?"
    ),
    _inspect(
        "label of five values",
        "clicks.csv --label rating",
        "--label rating: has 5 values ('1', '2', '3', '4', '5'); a label has two: write a condition, such as "
        "--label 'rating>=4'",
        1,
    ),
    _inspect(
        "label of two words",
        "words.csv --label fate",
        "--label fate: its values are kept and sold; say which one is 1, such as --label fate=sold",
        1,
    ),
    _inspect(
        "constant label",
        "constant.csv --label click",
        "--label click: all rows of the sample have '0'; a label needs two values: name another column, or "
        "give files with both",
        1,
    ),
    _inspect(
        "two possible labels",
        "undecided.csv",
        "--label: name the column of the label; columns of two values: seen, kept",
    ),
    _inspect(
        "condition that is never true",
        "clicks.csv --label 'rating>=9'",
        "--label rating>=9: no row of the sample meets it; its values are '1', '2', '3', '4', '5'",
        1,
    ),
    _inspect(
        "condition with another sign",
        "clicks.csv --label 'rating<3'",
        "--label rating<3: no condition with '<'; write 'rating>=VALUE' or 'rating=VALUE'",
    ),
    _inspect(
        "condition on a text",
        "clicks.csv --label 'user>=3'",
        "--label user>=3: column 'user' holds 'u0', 'u1', 'u2', 'u3', 'u4', ..., no numbers; write 'user=VALUE'",
        1,
    ),
    _inspect(
        "one column alone",
        "single.csv --label click",
        "single.csv: no column can be a feature (there is none besides the label)",
        1,
    ),
    _inspect(
        "only row ids",
        "rowids.csv --label click",
        "rowids.csv: no column can be a feature (id a row id: all 200 values differ)",
        1,
    ),
    _inspect(
        "array of JSON that breaks off",
        "array.json --label click",
        f"array.json: breaks off after {ROWS - 1:,} objects; fetch it again, or mend its end",
        1,
    ),
    _inspect(
        "damaged file",
        "cut.csv.zst --label click",
        "cut.csv.zst: damaged zstd file (Truncated compressed stream); fetch it again",
        1,
    ),
    _inspect(
        "unknown model",
        "clicks.csv --label click --model dlmr",
        "model: no such kind; use dcnv2, dlrm, neumf, sasrec, wide_deep (got 'dlmr')",
    ),
    _inspect(
        "recipe exists",
        "clicks.csv --label click --output mine.yaml",
        "mine.yaml: already exists; give another --output, or remove it first",
        1,
    ),
    _inspect(
        "recipe with another ending",
        "clicks.csv --label click --output mine.txt",
        "--output mine.txt: a recipe file's name ends in .yaml",
    ),
    _inspect(
        "compared with no folder",
        "clicks.csv --against nowhere",
        "nowhere: no such folder; give the output of `rayrec preprocess`",
        1,
    ),
    _inspect(
        "compared with a folder that is not a dataset",
        "clicks.csv --against full",
        "full/manifest.json: missing, so this is not a finished dataset; give the output of `rayrec preprocess`",
        1,
    ),
    _inspect(
        "compared with a label",
        "clicks.csv --against full --label click",
        "--label: the dataset says what the label is; leave it out with --against",
    ),
    _inspect(
        "compared with a label for rows without one",
        "clicks.csv --against full --missing-label 0",
        "--missing-label: the dataset says what the label is; leave it out with --against",
    ),
    _inspect(
        "compared files of other columns",
        "clicks.csv --against dataset",
        "clicks.csv: no row can be read like the dataset's rows; give files with the same columns",
        1,
    ),
]
_MOMENT = 1_700_600_000
PAST = [
    _of_past(
        "event that the model knows",
        {"ts": _MOMENT, "user_events": [{"ts": 1_700_000_000, "rating": 5}]},
        "row 0, 'user_events', event 0: is before 2023-11-21T09:10:20Z; leave out events that the model knows",
    ),
    _of_past(
        "event without a label",
        {"ts": _MOMENT, "user_events": [{"ts": _MOMENT, "rating": 5}, {"ts": _MOMENT}]},
        "row 0, 'user_events', event 1: has no 'rating' that tells its label",
    ),
    _of_past(
        "event that is no object",
        {"ts": _MOMENT, "user_events": [3]},
        "row 0, 'user_events', event 0: the number 3; needs an object with ts, rating, item_id",
    ),
    _of_past(
        "unknown field of an event",
        {"ts": _MOMENT, "user_events": [{"ts": _MOMENT, "stars": 5}]},
        "row 0, 'user_events', event 0: unknown field 'stars'; fields: ts, rating, item_id",
    ),
    _of_past(
        "row before what the model knows",
        {"user_id": "3", "ts": 1_700_000_000},
        "row 0, 'ts': 2023-11-14T22:13:20Z is too old; the model knows what was before 2023-11-21T09:10:20Z or later",
    ),
]
"""Of the model of `tests.integration.test_serve_past`."""
REQUESTS = [
    _predict("unknown column", {"txt": "red"}, "row 0: unknown feature 'txt'; did you mean 'text'?"),
    _predict(
        "feature name instead of its column",
        {"hour": 12},
        "row 0: unknown feature 'hour'; features: number, integer, text, time, seconds, texts, integers, "
        "numbers, weights, users_age, users_city, rate_text",
    ),
    _predict("row not an object", "red", "row 0: the string 'red'; a row is an object of feature names and values"),
    _predict(
        "text where a number belongs",
        {"number": "2,5"},
        "row 0, 'number': the string '2,5'; needs a number, or null if it is missing",
    ),
    _predict(
        "fraction where an integer belongs",
        {"integer": 1.5},
        "row 0, 'integer': the number 1.5; needs an integer, or null if it is missing",
    ),
    _predict(
        "list where a scalar belongs",
        {"text": ["red", "7"]},
        "row 0, 'text': a list; needs a text, or null if it is missing",
    ),
    _predict(
        "scalar where a list belongs",
        {"integers": 3},
        "row 0, 'integers': the number 3; needs a list of integers, or null if it is missing",
    ),
    _predict(
        "text where a list without a separator belongs",
        {"integers": "1,2"},
        "row 0, 'integers': the string '1,2'; needs a list of integers, or null if it is missing",
    ),
    _predict(
        "text in a vector",
        {"numbers": [1, "two", 3]},
        "row 0, 'numbers': the string 'two'; needs a number, or null if it is missing",
    ),
    _predict(
        "vector of another length",
        {"numbers": [1, 2]},
        "row 0, 'numbers': a list of 2 numbers; needs 3, or null if it is missing",
    ),
    _predict(
        "fewer weights than values of a list",
        {"texts": ["red", "7"], "weights": [0.5]},
        "row 0, 'weights': a list of 1 weights; 'texts' has 2 values; give one for each, or null if all weigh the same",
    ),
    _predict(
        "weight below zero",
        {"texts": ["red"], "weights": [-1]},
        "row 0, 'weights': the weight -1.0; needs a number of at least 0 for each value",
    ),
    _predict(
        "time of another format",
        {"time": "31.03.2024"},
        "row 0, 'time': the string '31.03.2024'; needs a time as ISO 8601 writes it, or null if it is missing",
    ),
    _predict(
        "time in milliseconds where seconds belong",
        {"seconds": 1714521600000},
        "row 0, 'seconds': the number 1714521600000; needs a time in s since 1970, or null if it is missing",
    ),
    _predict(
        "number beyond float32", {"number": 1e39}, "row 0, 'number': a number is out of range; numbers go up to 3.4e+38"
    ),
    BadRequest(
        "NaN",
        '{"instances": [{"number": NaN}]}',
        400,
        "the body is not valid JSON: expected value at line 1 column 27",
        "table",
    ),
    _rank("no candidates", {"context": {"number": 1}}, "candidates: must be a list of at least one id"),
    _rank("candidates not a list", {"candidates": "red"}, "candidates: must be a list of at least one id"),
    _rank(
        "candidate of another type",
        {"candidates": ["red", ["blue"]]},
        "candidates[1], 'text': a list; needs a text, or null if it is missing",
    ),
    _rank(
        "unknown column of a candidate",
        {"candidates": [{"text": "red", "colour": 1}]},
        "candidates[0]: unknown feature 'colour'; features: number, integer, text, time, seconds, texts, "
        "integers, numbers, weights, users_age, users_city, rate_text",
    ),
    _rank(
        "unknown column of the context",
        {"context": {"numbr": 1}, "candidates": ["red"]},
        "context: unknown feature 'numbr'; did you mean 'number'?",
    ),
    _rank(
        "context not an object",
        {"context": ["red"], "candidates": ["red"]},
        "context: must be an object; leave it out if nothing is known",
    ),
    _rank(
        "k of 0", {"candidates": ["red"], "k": 0}, "k: must be a whole number from 1, or left out for all candidates"
    ),
]


def prepare(folder: Path) -> None:
    """Make the files that the commands name."""
    (folder / "mine.yaml").write_text(RECIPE)
    header = ",".join(COLUMNS)
    lines = [
        f"{i % 2},{i % 5 + 1},u{i % 7},{i * 0.25},{'abc'[i % 3]}|d,2024-05-{i % 28 + 1:02d},f{i % 10}"
        for i in range(ROWS)
    ]
    rows = [line.split(",") for line in lines]

    def write(name: str, lines: list[str], encoding: str = "utf-8") -> bytes:
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding)
        return (folder / name).read_bytes()

    text = write("clicks.csv", [header, *lines])
    write("users.csv", ["id,age", *(f"u{i},{20 + i}" for i in range(7))])
    (folder / "nothing").mkdir()
    write("header.csv", [header])
    write("bare.csv", lines)
    write("twins.csv", [line.replace("u0", "1") for line in lines])
    write("other.csv", [header.replace("price", "cost"), *lines])
    write("semicolons.csv", [line.replace(",", ";") for line in (header, *lines)])
    write("western.csv", [header.replace("user", "usér"), *lines], "latin-1")
    for name, members in (("sheet.xlsx", ["[Content_Types].xml", "xl/workbook.xml"]), ("two.zip", ["a.csv", "b.csv"])):
        with zipfile.ZipFile(folder / name, "w") as archive:
            for member in members:
                archive.writestr(member, text)
    (folder / "cut.csv.xz").write_bytes(lzma.compress(text)[:-40])
    packed = pa.compress(text, "zstd", asbytes=True)
    (folder / "cut.csv.zst").write_bytes(packed[: len(packed) // 2])
    columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
    pq.write_table(pa.table(columns), folder / "cut.parquet")
    (folder / "cut.parquet").write_bytes((folder / "cut.parquet").read_bytes()[:-100])
    pq.write_table(pa.table({**columns, "price": [[1.0, 2.0]] * ROWS}), folder / "lists.parquet")
    objects = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    (folder / "array.json").write_text(json.dumps(objects)[:-5])
    write("text.jsonl", lines)
    write("some.jsonl", [json.dumps(o if i % 20 else [*o.values()]) for i, o in enumerate(objects)])
    write("twice.csv", ["id,age", *(f"u{i % 7},{20 + i}" for i in range(10))])
    write("commas.csv", [header, *(line if i % 20 else line.replace(".", ",", 1) for i, line in enumerate(lines))])
    write("quotes.csv", [header, *(line if i % 20 else line.replace("u", '"u', 1) for i, line in enumerate(lines))])
    write(
        "debts.csv",
        [header, *(line if i % 20 != 9 else line.replace(f",{i * 0.25},", ",-1.5,") for i, line in enumerate(lines))],
    )
    write("gaps.csv", [header, *(line.replace("u0", "") for line in lines)])
    write("far.csv", ["click,price", *(f"{i % 2},{i / 4}" for i in range(FAR - 2)), "1,cheap"])
    write("vectors.csv", ["click,point", *(f"{i % 2},{'0.5;1;2' if i % 20 else '0.5;1'}" for i in range(ROWS))])
    write("weights.csv", ["click,tags,shares", *(f"{i % 2},a;b,{'0.5;2' if i % 20 else '0.5'}" for i in range(ROWS))])
    write("millis.csv", ["click,time", *(f"{i % 2},{1714521600000 + i}" for i in range(ROWS))])
    write("words.csv", ["fate,price", *(f"{('sold', 'kept')[i % 2]},{i}" for i in range(ROWS))])
    write("constant.csv", ["click,price", *(f"0,{i % 50}" for i in range(ROWS))])
    write("undecided.csv", ["seen,kept,price", *(f"{i % 2},{i // 2 % 2},{i % 50}" for i in range(ROWS))])
    write("single.csv", ["click", *(str(i % 2) for i in range(ROWS))])
    write("rowids.csv", ["click,id", *(f"{i % 2},row-{i}" for i in range(ROWS))])
