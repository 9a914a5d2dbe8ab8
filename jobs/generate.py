"""`rayrec generate`: raw data with the real layout, drawn from a known truth."""

from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt

from jobs.command import Command, Metavar, Overrides, PathText, Positional, Request, Result, main
from rayrec.common.errors import ConfigError
from rayrec.common.plugins import SOURCES
from rayrec.common.progress import Progress
from rayrec.recipes import load_recipe
from rayrec.store.paths import Folder


class GenerateRequest(Request):
    source: Annotated[str, AfterValidator(SOURCES.known), Positional("|".join(SOURCES.packages))]
    """Source whose layout to write; `table` writes the columns of --recipe."""
    rows: PositiveInt
    """Number of rows."""
    output: Folder
    """New folder, with truth.json if the best reachable metric is known."""
    seed: NonNegativeInt = 0
    """Seed of the rows."""
    days: PositiveInt | None = None
    """Number of daily files; by default one file without days."""
    drift: float | None = Field(None, ge=0, le=10)
    """Change from day to day, from 0 (none) to 10; by default 1 with --days. Without days, `interactions` writes people
    who come and change in one file."""
    compress: bool = False
    """Write gzip files."""
    recipe: PathText | None = None
    """Recipe that names the columns of `table`."""
    set: Overrides = ()
    """Override a key of the recipe; repeatable."""
    cardinality: Annotated[Overrides, Metavar("COLUMN=N")] = ()
    """Number of distinct values of a column, or of all columns that match a pattern; by default 1,000; repeatable."""

    small_files: ClassVar[tuple[str, ...]] = ("recipe",)

    @property
    def cardinalities(self) -> dict[str, int]:
        """Return the values of `cardinality` by column. Raises ConfigError."""
        found = {}
        for given in self.cardinality:
            column, _, count = given.rpartition("=")
            if not column or not count.isdecimal() or not int(count):
                raise ConfigError(f"--cardinality {given}: write it as COLUMN=N, N being 1 or more")
            found[column] = int(count)
        return found

    def check(self) -> None:
        from rayrec.sources.registry import source_of

        source = source_of(self.source)
        if source.generates_from_recipe:
            if self.recipe is None:
                raise ConfigError(f"--recipe: missing; source '{self.source}' has the columns that a recipe names")
            recipe = load_recipe(self.recipe, self.set)
            if recipe.source.kind != self.source:
                raise ConfigError(
                    f"--recipe {self.recipe}: its source is '{recipe.source.kind}'; generate that, or give a recipe of "
                    f"'{self.source}'"
                )
            self.cardinalities  # noqa: B018 -- for its errors
        elif self.recipe is not None or self.set or self.cardinality:
            raise ConfigError(
                f"--recipe, --set, --cardinality: source '{self.source}' has columns of its own; leave them out"
            )
        elif source.generated is None:
            raise ConfigError(f"source '{self.source}' has no generator; give raw files of your own")
        drifts = source.generated is not None and source.generated.drifts_in_a_file
        if self.drift is not None and self.days is None and not drifts:
            raise ConfigError("drift: without days nothing changes; add --days N")


def run(request: GenerateRequest, progress: Progress) -> Result:
    """Write the data; `details` has what is known about it."""
    from rayrec.sources.generated_files import GeneratorOptions
    from rayrec.sources.registry import source_of

    source = source_of(request.source)
    if request.days is not None and not (source.generated and source.generated.has_days):
        raise ConfigError(f"days: source '{request.source}' has no files of days; leave it out")
    options = GeneratorOptions(
        rows=request.rows,
        seed=request.seed,
        days=request.days,
        drift=request.drift if request.drift is not None else float(request.days is not None),
        compress=request.compress,
        recipe=None if request.recipe is None else load_recipe(request.recipe, request.set),
        cardinality=request.cardinalities,
    )
    details = source.generate(request.output, options, progress)
    return Result(command="generate", output=request.output, rows=request.rows, details=details)


COMMAND = Command("generate", GenerateRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
