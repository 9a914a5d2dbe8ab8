"""`rayrec preprocess`: turns raw logs into a dataset folder."""

import re
from collections.abc import Iterable
from typing import Annotated, Self

from pydantic import Field

from jobs.command import Command, PathTexts, RecipeRequest, Result, absolute_path, main
from rayrec.common.files import owned
from rayrec.common.progress import Progress
from rayrec.recipes import Recipe
from rayrec.storage.location import Folder

_NAMED = re.compile(r"(?P<split>[A-Za-z_]\w*)=(?P<path>.+)", re.DOTALL)


class PreprocessRequest(RecipeRequest):
    """Turn raw logs into a dataset folder, with Spark on Ray."""

    input: Annotated[PathTexts, Field(min_length=1)]
    """Raw file, folder, glob or URI; SPLIT=PATH if preprocess.split.kind is files; repeatable."""
    output: Folder
    """Dataset folder to write; must not exist."""

    def inputs(self, recipe: Recipe) -> dict[str | None, list[str]]:
        """The input paths by split; those that name no split under None."""
        return inputs_by_split(self.input, named=recipe.preprocess.reads_splits_from_files)

    def with_absolute_paths(self) -> Self:
        inputs = tuple(
            absolute_path(path) if split is None else f"{split}={absolute_path(path)}"
            for split, paths in self.inputs(self.load_recipe()).items()
            for path in paths
        )
        return super().with_absolute_paths().model_copy(update={"input": inputs})


def run(request: PreprocessRequest, progress: Progress) -> Result:
    """Preprocess; `rows` counts those of all splits, `details` those of each, and the rejected ones by reason."""
    from cluster.nodes import all_nodes_see
    from cluster.ray_session import ray_session
    from cluster.spark_session import spark_session
    from rayrec.sources.registry import preprocessing

    recipe = request.load_recipe()
    job = preprocessing(recipe, request.inputs(recipe), request.output)
    progress.stage("start Spark on Ray")
    with owned(request.output), ray_session():
        is_shared = all_nodes_see(request.output.parent)
        if not is_shared:
            progress.message(f"not all nodes see {request.output.parent}: Spark works on this node alone")
        with spark_session(recipe.preprocess.spark, on_all_nodes=is_shared) as spark:
            manifest = job.run(spark, progress)
    splits = {name: split.rows for name, split in manifest.splits.items()}
    return Result(
        command="preprocess",
        output=request.output,
        rows=sum(splits.values()),
        details={"splits": splits, "rejected": manifest.rejected},
    )


def inputs_by_split(inputs: Iterable[str], *, named: bool) -> dict[str | None, list[str]]:
    """Paths by split; those that name no split under None.

    `named`: whether the recipe expects SPLIT=PATH. If not, only the usual names of splits are read as such, since a
    path may contain an equals sign (`year=2014/clicks`).
    """
    paths: dict[str | None, list[str]] = {}
    for text in inputs:
        match = _NAMED.fullmatch(text)
        is_split = match is not None and (named or match["split"] in {"train", "validation", "test"})
        split, path = (match["split"], match["path"]) if match and is_split else (None, text)
        paths.setdefault(split, []).append(path)
    return paths


COMMAND = Command("preprocess", PreprocessRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
