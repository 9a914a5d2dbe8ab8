"""Mistakes that a user can make, and the one line that each gets; docs/errors.md shows the same table.

`python -m tests.end_to_end.bad_inputs` writes docs/errors.md from it.
"""

import gzip
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from rayrec.recipes import load_recipe
from tests.builders import make_dataset
from tests.end_to_end import bad_tables
from tests.end_to_end.conftest import REPOSITORY
from tests.end_to_end.mistake import BadInput, BadRequest, instances

DOCUMENT = REPOSITORY / "docs" / "errors.md"
TRAIN = "train dlrm-criteo-debug --data dataset --output run"
TUNE = "tune dlrm-criteo-debug --data dataset --trials 4 --output"
PREPROCESS = "preprocess dlrm-criteo-debug --output out --input"
_NAMES = re.compile(r"^(--)?[\w.*-]+( '[^']*')?(?=:)|'[^']*'|`[^`]*`|[\w*-]+[./:][\w./:*-]*|\(.*\)|\d[\d,.]*")
"""What a message says of one case alone: fields, files, values, numbers, and what is in brackets."""


USAGE = [
    BadInput("unknown command", "trian", 2, "no command 'trian'; did you mean 'train'? See `rayrec --help`"),
    BadInput(
        "option left out",
        "train dlrm-criteo-debug --output run",
        2,
        "missing option '--data'; see `rayrec train --help`",
    ),
    BadInput(
        "misspelt option",
        f"{TRAIN} --wokers 2",
        2,
        "no option '--wokers'; did you mean --workers? See `rayrec train --help`",
    ),
    BadInput(
        "no workers",
        f"{TRAIN} --workers 0",
        2,
        "workers: write a number above 0, or MIN:MAX to train elastically (got '0')",
    ),
    BadInput(
        "unknown precision",
        f"{TRAIN} --precision fp8",
        2,
        "precision: must be 'auto', 'fp32', 'tf32', 'bf16' or 'fp16' (got 'fp8')",
    ),
    BadInput(
        "unknown source",
        "generate movies --rows 10 --output raw",
        2,
        "source: no such kind; use criteo, interactions, outbrain, table (got 'movies')",
    ),
    BadInput("port out of range", "serve full --port 99999", 2, "port: must be at most 65535 (got '99999')"),
    BadInput(
        "gRPC port on a local host",
        "serve full --grpc-port 9000",
        2,
        "--grpc-port: gRPC listens on all addresses of the machine; add --host 0.0.0.0 to allow it",
    ),
    BadInput(
        "unknown precision of exported tables",
        "export full --output model --tables int4",
        2,
        "tables: must be 'fp32', 'fp16' or 'int8' (got 'int4')",
    ),
    BadInput(
        "URI without a bucket",
        "train dlrm-criteo-debug --data s3:///dataset --output run",
        2,
        "data: names no folder; write it as s3://BUCKET/FOLDER, without names in dots (got 's3:///dataset')",
    ),
    BadInput(
        "URI with a password",
        "train dlrm-criteo-debug --data s3://me:secret@bucket/dataset --output run",
        2,
        "data: leave the password out, because URIs are stored with the results; set AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or the variables of your file system, instead (got 's3://...@bucket/dataset')",
    ),
    BadInput(
        "URI instead of a local file",
        "serve full --token-file s3://bucket/tokens",
        2,
        "token_file: takes a local path, not a URI (got 's3://bucket/tokens')",
    ),
    BadInput(
        "text instead of a number",
        "generate criteo --rows many --output raw",
        2,
        "rows: must be a whole number (got 'many')",
    ),
    BadInput(
        "expectation without a comparison",
        "report dataset --output out --expect auc",
        2,
        "--expect 'auc': write it as METRIC OPERATOR NUMBER, such as 'auc >= 0.76' (>=, <=, ==, !=, >, <)",
    ),
    BadInput(
        "expectation of an unknown metric",
        "report dataset --output out --expect 'train.row > 1'",
        2,
        "--expect 'train.row > 1': no metric 'train.row'; did you mean 'train.rows'?",
    ),
    BadInput("run compared with itself", "compare full full --output out", 2, "full: given twice; give every run once"),
    BadInput("unknown command to submit", "submit trian", 2, "no command 'trian'; did you mean 'train'?"),
    BadInput(
        "no cluster to submit to",
        f"submit {TRAIN} --address http://127.0.0.1:9",
        1,
        "http://127.0.0.1:9: no Ray dashboard answers; give --address http://HEAD:8265 of a running cluster",
    ),
    BadInput(
        "mistake in a submitted command",
        f"submit {TRAIN} --set train.epochs=many",
        2,
        "--set train.epochs: must be a whole number (got 'many')",
    ),
]
CONFIG = [
    BadInput(
        "unknown recipe",
        "train dlrm-critoe --data dataset --output run",
        2,
        "recipe 'dlrm-critoe': not shipped; did you mean 'dlrm-criteo'? (a recipe file's name ends in .yaml)",
    ),
    BadInput(
        "recipe file missing",
        "train missing.yaml --data dataset --output run",
        2,
        "missing.yaml: no such file or directory; give a recipe file",
    ),
    BadInput(
        "invalid YAML",
        "train broken.yaml --data dataset --output run",
        2,
        "broken.yaml, line 3: did not find expected key; fix the YAML",
    ),
    BadInput(
        "misspelt key",
        "train typo.yaml --data dataset --output run",
        2,
        "typo.yaml: unknown key 'train.ephocs'; did you mean 'epochs'?",
    ),
    BadInput(
        "contradicting fields",
        "train widths.yaml --data dataset --output run",
        2,
        "widths.yaml: model: bottom_mlp must end in embedding_dim (64) for interaction 'dot', not in 128",
    ),
    BadInput(
        "override without a value",
        f"{TRAIN} --set train.epochs",
        2,
        "--set train.epochs: write it as section.key=value",
    ),
    BadInput(
        "override of a wrong type",
        f"{TRAIN} --set train.epochs=many",
        2,
        "--set train.epochs: must be a whole number (got 'many')",
    ),
    BadInput(
        "search space missing",
        f"{TUNE} run --space nowhere.yaml",
        2,
        "nowhere.yaml: no such file or directory; give a search space file",
    ),
    BadInput(
        "search over a fixed key",
        f"{TUNE} run --space space.yaml",
        2,
        "space.yaml: train.workers: cannot be searched: it is the same for all trials; use --set",
    ),
    BadInput(
        "override of a searched key",
        f"{TUNE} run --set train.dense_optimizer.lr=0.1",
        2,
        "--set train.dense_optimizer.lr=0.1: search_space.yaml of 'dlrm' searches train.dense_optimizer.lr; leave one "
        "of them out",
    ),
    BadInput(
        "grid larger than --trials",
        f"{TUNE} run --search grid",
        2,
        "--trials 4: the grid of search_space.yaml of 'dlrm' has 648 points (choices, and the ends and the middle of "
        "ranges); give as many --trials, or a smaller space",
    ),
    BadInput(
        "--confirm with --search pbt",
        f"{TUNE} run --search pbt --confirm 2",
        2,
        "--confirm: under population based training values change while a model trains, so there is no recipe to train "
        "again; leave it out",
    ),
    BadInput(
        "batch that workers cannot share equally",
        f"{TRAIN} --workers 3",
        2,
        "dlrm-criteo-debug: train: global_batch_size (512) must be a multiple of workers (3)",
    ),
    BadInput(
        "unknown column",
        f"{PREPROCESS} good.tsv --set source.group=C77",
        2,
        "source.group: the files have no column 'C77'; did you mean 'C7'?",
    ),
    BadInput(
        "files of splits without names",
        f"{PREPROCESS} good.tsv --set preprocess.split={{kind:\\ files}}",
        2,
        "--input good.tsv: preprocess.split.kind is 'files', so name its split: --input train=PATH",
    ),
    BadInput(
        "named split, but kind is not files",
        f"{PREPROCESS} train=good.tsv",
        2,
        "--input train=...: preprocess.split.kind is 'hash', which splits the rows itself; add --set "
        "'preprocess.split={kind: files}' or give the paths alone",
    ),
]
FILES = [
    BadInput(
        "input missing",
        f"{PREPROCESS} nowhere.tsv",
        1,
        "nowhere.tsv: no such file, or a folder without files; give a file, a folder, a glob or a URI",
    ),
    BadInput("input empty", f"{PREPROCESS} empty.tsv", 1, "empty.tsv: empty; there are no rows to preprocess"),
    BadInput(
        "input given twice", f"{PREPROCESS} good.tsv --input good.tsv", 1, "good.tsv: given twice; give every file once"
    ),
    BadInput(
        "output exists",
        "preprocess dlrm-criteo-debug --input good.tsv --output full",
        1,
        "full: already exists; give another --output, or remove it first",
    ),
    BadInput(
        "output below a file",
        "report dataset --output good.tsv/out",
        1,
        "good.tsv/out: cannot be created, because good.tsv is not a folder; give another --output",
    ),
    BadInput(
        "URI of an unknown kind",
        "train dlrm-criteo-debug --data foo://bucket/dataset --output run",
        1,
        "foo://bucket: cannot be opened: unknown kind of store; use s3://, gs://, az:// or abfs://",
    ),
    BadInput(
        "store that does not answer",
        'train dlrm-criteo-debug --data dataset --output "s3://bucket/run?endpoint_override=127.0.0.1:9&scheme=http"',
        1,
        "s3://bucket/run?endpoint_override=127.0.0.1:9&scheme=http: cannot be read: no answer; check AWS_ENDPOINT_URL "
        "(or the URI's endpoint_override) and the network",
    ),
    BadInput(
        "lists of rows without groups",
        f"{TRAIN} --set train.loss.listwise=0.5",
        2,
        "train.loss.listwise: the dataset has no group column, so it has no lists of rows; set it to 0, or give a "
        "dataset of displays",
    ),
    BadInput(
        "report of an unrelated folder",
        "report full --output out",
        1,
        "full: no dataset, run, model or search; give the folder that another command wrote",
    ),
    BadInput(
        "run folder exists",
        "train dlrm-criteo-debug --data dataset --output full",
        1,
        "full: already exists; give another --output, or remove it first",
    ),
    BadInput(
        "no search to resume",
        f"{TUNE} damaged --resume",
        1,
        "damaged: no sweep to resume (no sweep.json); give the output of `rayrec tune`",
    ),
    BadInput(
        "no run to resume",
        "train dlrm-criteo-debug --data dataset --output damaged --resume",
        1,
        "damaged: not a run folder (no run.json); give the output of `rayrec train`",
    ),
    BadInput(
        "dataset missing",
        "train dlrm-criteo-debug --data nowhere --output run",
        1,
        "nowhere: no such folder; give the output of `rayrec preprocess`",
    ),
    BadInput(
        "dataset of another source",
        "train neumf-ml-1m-debug --data dataset --output run",
        2,
        "source.kind: is 'interactions', but dataset was made with 'criteo'; set it back, or preprocess with this "
        "recipe",
    ),
    BadInput(
        "dataset without a full batch",
        f"{TRAIN} --set train.global_batch_size=128",
        2,
        "train.global_batch_size: 64 rows of split 'train' fill no batch of 128; lower it, or set "
        "train.ingest.drop_last=false",
    ),
    BadInput(
        "unknown split of the dataset",
        f"{TRAIN} --set train.evaluation_split=tset",
        2,
        "train.evaluation_split: dataset has no split 'tset'; did you mean 'test'?",
    ),
    BadInput(
        "dataset unfinished",
        "train dlrm-criteo-debug --data unfinished --output run",
        1,
        "unfinished/manifest.json: missing, so this is not a finished dataset; give the output of `rayrec preprocess`",
    ),
    BadInput(
        "dataset damaged",
        "train dlrm-criteo-debug --data damaged --output run",
        1,
        "damaged/manifest.json: damaged (not whole JSON); make it again",
    ),
    BadInput(
        "evaluating a folder that is not a run",
        "evaluate full --data dataset",
        1,
        "full: neither a model nor a run folder; give the output of `rayrec export` or `train`",
    ),
    BadInput(
        "exporting a folder that is not a run",
        "export full --output model",
        1,
        "full: not a run folder (no run.json); give the output of `rayrec train`",
    ),
    BadInput(
        "raw rows without --raw",
        "predict full --input good.tsv --output scores",
        2,
        "--input good.tsv: not a dataset folder; add --raw for raw rows",
    ),
    BadInput(
        "serving a folder that is not a model",
        "serve full",
        1,
        "full: neither a model folder nor a folder of model folders; give the output of `rayrec export`",
    ),
    BadInput(
        "unreadable amount of memory",
        "plan dlrm-criteo-debug --data dataset --memory-per-worker lots",
        2,
        "memory 'lots': write it as 80GB or 64GiB",
    ),
]
ROWS = [
    BadInput(
        "too many bad rows",
        f"{PREPROCESS} bad.tsv",
        1,
        "10 of 100 rows are bad (label other than 0 or 1: 6, wrong column count: 4), more than "
        "preprocess.max_rejected_fraction (0.01); the first is bad.tsv, line 91: label other than 0 or 1 (column "
        "'label': '2'); source.label: {column: label, at_least: NUMBER} turns other values into a label",
    ),
    BadInput(
        "damaged gzip file",
        f"{PREPROCESS} cut.tsv.gz",
        1,
        "cut.tsv.gz: damaged gzip file (Truncated compressed stream); fetch it again",
    ),
]
COMMANDS = [*USAGE, *CONFIG, *FILES, *ROWS]


REQUESTS = [
    BadRequest("unknown model", instances({"I1": 3}), 404, "no model 'modle'; did you mean 'model'?", "modle"),
    BadRequest("empty body", "", 400, 'the body is empty; send {"instances": [{"FEATURE": VALUE, ...}, ...]}'),
    BadRequest("no rows", instances(), 422, "instances: empty; send at least one row"),
    BadRequest(
        "instances not a list",
        json.dumps({"instances": {"I1": 3}}),
        422,
        "instances: must be a list of objects of features",
    ),
    BadRequest(
        "misspelt feature", instances({"I1": 3}, {"CC1": "a"}), 422, "row 1: unknown feature 'CC1'; did you mean 'C1'?"
    ),
    BadRequest(
        "text where a number belongs",
        instances({"I1": "three"}),
        422,
        "row 0, 'I1': the string 'three'; needs a number, or null if it is missing",
    ),
    BadRequest(
        "list where a category belongs",
        instances({"C1": ["a"]}),
        422,
        "row 0, 'C1': a list; needs a text, or null if it is missing",
    ),
]


def good_row(label: str = "1") -> str:
    """Return a whole line of a Criteo file, without the newline."""
    return "\t".join([label, *(str(i) for i in range(13)), *(f"{i:08x}" for i in range(26))])


def prepare(folder: Path) -> None:
    """Make the files that the commands name."""
    (folder / "good.tsv").write_text("".join(f"{good_row(str(i % 2))}\n" for i in range(100)))
    (folder / "empty.tsv").write_text("")
    (folder / "full").mkdir()
    (folder / "full" / "precious").write_text("1")
    (folder / "unfinished").mkdir()
    (folder / "broken.yaml").write_text("model:\n  kind: dlrm\n bottom_mlp: [1]\n")
    criteo = "source: {kind: criteo}\nmodel: {kind: dlrm"
    (folder / "typo.yaml").write_text(f"{criteo}}}\ntrain:\n  ephocs: 3\n")
    (folder / "space.yaml").write_text("train.workers: {choice: [1, 2]}\n")
    (folder / "widths.yaml").write_text(
        "source: {kind: criteo}\nmodel: {kind: dlrm, embedding_dim: 64, bottom_mlp: [512, 128]}\n"
    )
    make_dataset(folder / "dataset", {"train": 64, "test": 16}, recipe=load_recipe("dlrm-criteo-debug"))
    make_dataset(folder / "damaged", {"train": 64})
    (folder / "damaged" / "manifest.json").write_text("{")
    rows = [good_row()] * 90 + [good_row("2")] * 6 + ["1\t2\t3"] * 4
    (folder / "bad.tsv").write_text("".join(f"{row}\n" for row in rows))
    whole = gzip.compress("".join(f"{good_row(str(i % 2))}\n" for i in range(1000)).encode())
    (folder / "cut.tsv.gz").write_bytes(whole[: len(whole) // 2])
    bad_tables.prepare(folder)


def document() -> str:
    """docs/errors.md: each kind of message once, where it occurs first; the tests try every case."""
    shown: set[str] = set()
    lines = [
        "# Error messages",
        "",
        "A mistake gets one line on stderr, `error: MESSAGE`, which names the file or field and the fix; a server",
        'answers `{"error": "MESSAGE"}` and counts rows from 0. Exit code 2 is wrong usage or a wrong recipe, 1 is',
        "everything else. `--debug` adds the traceback.",
        "",
        "To find your message, search for a part without names of your own. Similar messages are listed once.",
        *_messages("Command line", USAGE, shown),
        *_messages("Recipes", [*CONFIG, *bad_tables.RECIPES], shown),
        *_messages("Files and folders", [*FILES, *bad_tables.FILES], shown),
        *_messages("`rayrec inspect`", bad_tables.INSPECT, shown),
        *_messages("Rows", [*ROWS, *bad_tables.BAD_ROWS], shown),
        "",
        "[preprocessing.md](preprocessing.md#bad-rows) lists the reasons for bad rows.",
        *_messages("HTTP requests", [*REQUESTS, *bad_tables.REQUESTS, *bad_tables.PAST], shown),
    ]
    return "\n".join(lines) + "\n"


def _messages(heading: str, cases: Iterable[BadInput | BadRequest], shown: set[str]) -> list[str]:
    return ["", f"## {heading}", "", *(f"- {case.title}: {_code(case.message)}" for case in _once(cases, shown))]


def _once(cases: Iterable[BadInput | BadRequest], shown: set[str]) -> Iterator[BadInput | BadRequest]:
    """Yield the cases whose messages say something that none in `shown` does, apart from names, values and the fix."""
    for case in cases:
        kind = _NAMES.sub("", case.message.partition(";")[0])
        if kind not in shown:
            shown.add(kind)
            yield case


def _code(text: str) -> str:
    if not text:
        return ""
    fence = "``" if "`" in text else "`"
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}"


if __name__ == "__main__":
    DOCUMENT.write_text(document())
