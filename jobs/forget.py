"""`rayrec forget`: takes what is known of a person out of the look-ups of datasets and models."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from jobs.command import Command, Positional, Request, Result, main
from jobs.command.result import describe_outcome
from jobs.verify import load_manifest
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import Progress
from rayrec.store.paths import Folder

if TYPE_CHECKING:
    from rayrec.features.schema import Schema
    from rayrec.store.artifact import Manifest

_KINDS = ("dataset", "model", "delta")
_LEFT = {
    "dataset": (
        "rows of its splits, which hold the id of the value",
        "counts of its values, rejected and held-out rows in their raw form",
    ),
    "model": (
        "weights, which have learned from these rows",
        "rows shown as examples, and held-out rows in their raw form",
        "what a running server has mapped, until it starts again",
        "the dataset that it was made of, of which another export has the same again",
    ),
}
_LEFT_OF_ALL = (
    "sums over all keys by minute, and what other keys' histories have of shared events",
    "the value in vocabularies, and the embedding row of its id",
    "raw files, from which side tables are read again each day",
    "runs, checkpoints, predictions, and datasets and models elsewhere, backups among them",
)
"""What no rewriting of look-ups reaches."""


class ForgetRequest(Request):
    folder: Annotated[Folder, Positional("MODEL_OR_DATASET")]
    """Folder of a dataset, a model or a version of one; or a folder around these, such as that of `rayrec run`."""
    key: str
    """Key column and value, such as user_id=123: rows of this key leave every table that is looked up by the column. Of
    models of users and items, user=123: the user's items.
    """

    def check(self) -> None:
        if not all(self.key.partition("=")):
            raise ConfigError(f"--key {self.key}: give COLUMN=VALUE, such as user_id=123")


def run(request: ForgetRequest, progress: Progress) -> Result:
    """Rewrite tables in place; what was killed is whole again after another run.

    `details.removed` has folder, look-up, keys and events of each table; `details.left` what was not reached. Raises
    UserError if the folder has no dataset and no model, and ConfigError if none of them has a table by the column.
    """
    from rayrec.features.schema import Schema

    column, _, value = request.key.partition("=")
    removed: list[dict[str, Any]] = []
    refused: ConfigError | None = None
    kinds: dict[str, None] = {}
    folders = list(_artifacts(request.folder))
    if not folders:
        raise UserError(
            f"{request.folder}: no dataset or model in it; give the output of `rayrec preprocess` or `export`"
        )
    progress.stage("forget", len(folders))
    for folder in folders:
        try:
            manifest = load_manifest(folder)
            removed += _forget(folder, manifest, Schema.load(folder), column, value)
            kinds["dataset" if manifest.kind == "dataset" else "model"] = None
        except ConfigError as error:
            refused = error
        progress.advance(1)
    if refused is not None and not kinds:
        raise refused
    left = [*(text for kind in kinds for text in _LEFT[kind]), *_LEFT_OF_ALL]
    return Result(command="forget", details={"removed": removed, "left": left})


def _artifacts(folder: Path) -> Iterator[Path]:
    """Yield the datasets and models that are, or lie in, a folder; with a delta its base, whose tables it reads."""
    from rayrec.inference.folder.versions import folders_of
    from rayrec.store.artifact import MANIFEST_FILE, kind_of
    from rayrec.store.files import files_below

    if kind_of(folder) in _KINDS:
        yield from folders_of(folder)
        return
    for name in sorted(files_below(folder)):
        path = folder / name
        if path.name == MANIFEST_FILE and kind_of(path.parent) in _KINDS:
            yield path.parent


def _forget(folder: Path, manifest: "Manifest", schema: "Schema", column: str, value: str) -> Iterator[dict[str, Any]]:
    """Take a key out of an artifact's tables, and say in its manifest which files are others now."""
    from rayrec.features.forgetting import forget_key, key_text
    from rayrec.features.raw_columns import STATISTICS_FOLDER
    from rayrec.inference.folder.facts import KNOWN_ITEMS_FILE, forget_items
    from rayrec.store.artifact import stored_files
    from rayrec.store.folders import owned

    # The items of users are a table of their own, which lies in models.
    of_users = [file for file in manifest.files if file.path == KNOWN_ITEMS_FILE]
    user = schema.interactions.user if schema.interactions is not None and of_users else None
    text = key_text(schema, column, value, [user] if user else [])
    with owned(folder):
        for found in forget_key(folder, schema, column, text):
            yield {"folder": str(folder), "lookup": found.lookup, "keys": found.keys, "events": found.events}
        if column == user:
            items = forget_items(folder, text)
            yield {"folder": str(folder), "lookup": "known items", "keys": int(items > 0), "events": items}
        tables = [file for file in manifest.files if file.path.startswith(f"{STATISTICS_FOLDER}/")] + of_users
        now = stored_files(folder, [file.path for file in tables])
        manifest.rewritten_as(now).save(folder)


def describe(result: Result) -> str:
    """Return a line for each table that had the key, and what was not reached."""
    details = result.details
    if not details:
        return describe_outcome(result)
    found = [one for one in details["removed"] if one["keys"]]
    lines = [
        f"  {one['folder']}: '{one['lookup']}' had {one['keys']:,} keys with {one['events']:,} events" for one in found
    ]
    return "\n".join(
        [
            describe_outcome(result),
            *(lines or ["  no table has the key"]),
            "  not reached:",
            *(f"    {text}" for text in details["left"]),
        ]
    )


COMMAND = Command("forget", ForgetRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
