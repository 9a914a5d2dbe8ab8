"""The commands, one module each: a request (`class TrainRequest(Request)`) and `run(request, progress) -> Result`.

A command is declared once, by its request. `jobs.command` makes from it the command line (`rayrec train ...`, and
`python -m jobs.train ...` with the same arguments) and the Python function (`rayrec.train`).
"""

from collections.abc import Sequence
from typing import NamedTuple


class Listed(NamedTuple):
    """A command in the list of commands."""

    summary: str
    example: str
    """A whole command line."""
    details: str = ""
    """More sentences for the command's own help."""

    @property
    def text(self) -> str:
        """Return summary and details, a paragraph each."""
        return "\n\n".join(filter(None, (self.summary, self.details)))


GROUPS = {
    "Start": {
        "demo": Listed("Generate data, train, export and serve one request.", "rayrec demo"),
        "doctor": Listed("Check this machine, and print the fix for each problem.", "rayrec doctor"),
        "recipes": Listed(
            "List the shipped recipes, or print one in full.",
            "rayrec recipes clicks.yaml",
            "With --schema, print the JSON Schema of recipes for editors.",
        ),
    },
    "Data": {
        "inspect": Listed(
            "Read a sample of raw files, and write a recipe for them.",
            "rayrec inspect clicks.csv --label click --output clicks.yaml",
            "With --against, compare new files with a dataset instead.",
        ),
        "generate": Listed(
            "Write synthetic raw files, drawn from a known truth.",
            "rayrec generate table --recipe clicks.yaml --rows 100000 --output raw",
        ),
        "preprocess": Listed(
            "Turn raw files into a dataset folder.",
            "rayrec preprocess clicks.yaml --input clicks.csv --output dataset",
        ),
        "verify": Listed("Compare the files of a folder with their checksums.", "rayrec verify dataset"),
        "forget": Listed(
            "Take a person out of the look-ups of datasets and models.",
            "rayrec forget clicks --key user_id=123",
            "Print what was removed, and what cannot be reached.",
        ),
    },
    "Train": {
        "run": Listed(
            "Preprocess, train and export with one command.",
            "rayrec run clicks.yaml --input clicks.csv --output out",
            "Run it again to continue where it stopped.",
        ),
        "train": Listed(
            "Train a recipe's model on a dataset folder.",
            "rayrec train clicks.yaml --data dataset --output run",
        ),
        "tune": Listed(
            "Search for better values of a recipe's keys.",
            "rayrec tune clicks.yaml --data dataset --trials 20 --output sweep",
        ),
        "follow": Listed(
            "Train on new files as they land, and publish new versions.",
            "rayrec follow clicks.yaml --input landing --serve versions/clicks",
            "Run until Ctrl-C.",
        ),
        "plan": Listed(
            "Show how the embedding tables would be sharded.",
            "rayrec plan clicks.yaml --data dataset --workers 8",
        ),
    },
    "Judge": {
        "report": Listed(
            "Write an HTML page about a dataset, run, model or search.",
            "rayrec report out/run --output report",
        ),
        "runs": Listed(
            "List the runs below a folder, best metrics first.",
            "rayrec runs .",
            "The second training of `rayrec run`, on all rows, is left out: it has no metrics of its own.",
        ),
        "evaluate": Listed(
            "Compute exact metrics of a model over a split.",
            "rayrec evaluate out/model --data out/dataset --split test",
        ),
        "explain": Listed(
            "Measure how much each feature matters to a model.",
            "rayrec explain out/model --data out/dataset --output explained",
            "Also show how scores change with the values of some features.",
        ),
        "compare": Listed(
            "Test whether runs differ by more than chance.",
            "rayrec compare run-a run-b --output compared",
            "Runs that differ in their seed alone count as repetitions of one recipe.",
        ),
    },
    "Serve": {
        "serve": Listed("Answer HTTP and gRPC requests with trained models.", "rayrec serve out/model"),
        "predict": Listed(
            "Score rows with a model, or recommend items to all users.",
            "rayrec predict out/model --raw --input new.csv --output scores",
        ),
        "export": Listed(
            "Write the model folder that serve and predict read.",
            "rayrec export out/run --output model",
        ),
    },
    "Operate": {
        "submit": Listed(
            "Run a command as a job on a Ray cluster.",
            "rayrec submit train clicks.yaml --data /shared/dataset --output /shared/run",
            "Follow its log, and exit with its code. Paths are on storage that all nodes share; a recipe file is sent "
            "along.",
        ),
        "benchmark": Listed(
            "Measure how fast this machine trains or predicts.",
            "rayrec benchmark train clicks.yaml --data dataset",
        ),
        "benchmark serve": Listed(
            "Measure the latency and the throughput of a server.",
            "rayrec benchmark serve out/model",
            "Start `rayrec serve` on this machine, and send the model's example rows again and again.",
        ),
    },
}
"""Commands by group, kept here so that listing them imports none of them; the first one of a group is its example."""

COMMANDS = {name: listed for group in GROUPS.values() for name, listed in group.items()}


def split_command(words: Sequence[str]) -> tuple[str, list[str]]:
    """Split `words` into the name of a command, which may be two words, and its arguments."""
    length = 2 if " ".join(words[:2]) in COMMANDS else 1
    return " ".join(words[:length]), list(words[length:])
