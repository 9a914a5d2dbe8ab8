"""The commands, one module each: a request (`class TrainRequest(Request)`) and `run(request, progress) -> Result`.

A command is declared once, by its request. `jobs.command` makes from it the command line (`rayrec train ...`, and
`python -m jobs.train ...` with the same arguments) and the Python function (`rayrec.train`).
"""

from collections.abc import Sequence

COMMANDS = {
    "demo": "Generate data, preprocess, train on two workers, evaluate, export, serve one request.",
    "doctor": "Check this machine and environment, and print the fix for each thing wrong.",
    "recipes": "List the shipped recipes, or print one with every default filled in.",
    "inspect": "Look at a sample of raw files, and write a recipe for them; or compare new files with a dataset.",
    "generate": "Write data with the real layout, drawn from a known truth.",
    "preprocess": "Turn raw logs into a dataset folder, by threads of this process or with Spark on Ray.",
    "verify": "Compare every file of a dataset folder with the checksums in its manifest.",
    "train": "Train a recipe's model on a dataset folder, with TorchRec, in this process or with Ray Train.",
    "run": "Preprocess, train and export in one job; run again, it continues where it stopped.",
    "follow": "Take in files as they land in a folder, train on them, and publish what has changed, until Ctrl-C.",
    "evaluate": "Compute exact metrics over a split, each row once.",
    "explain": "Measure which features a model's scores rest on, and how scores depend on the values of some.",
    "predict": "Score a file or folder, streaming; or recommend items to every user.",
    "export": "Write the model folder that serve and predict read.",
    "tune": "Search for better values of a recipe's keys, with Ray Tune.",
    "report": "Write a page on a dataset, a run, a model or a search, and check what is expected of it.",
    "compare": "Tell whether one recipe is better than another, or its run was lucky.",
    "plan": "Show how the tables would be sharded, without training.",
    "serve": "Answer HTTP and gRPC requests with raw features, through Ray Serve.",
    "benchmark": "Measure training or inference on this machine.",
    "benchmark serve": "Measure a server on this machine: its latency, and the rows that it scores a second.",
    "submit": "Run a command as a job of a Ray cluster, follow its log and exit with its code.",
}
"""Command -> first line of its request's docstring, so that listing the commands imports none of them."""


def split_command(words: Sequence[str]) -> tuple[str, list[str]]:
    """The name of the command that `words` begin with, which may be two words, and its arguments."""
    length = 2 if " ".join(words[:2]) in COMMANDS else 1
    return " ".join(words[:length]), list(words[length:])
