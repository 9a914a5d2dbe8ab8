"""`rayrec recipes`: lists the shipped recipes, prints one with every default filled in, or the JSON Schema of all."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from jobs.command import Command, Metavar, RecipeText, Request, Result, main, text_table
from rayrec.common.errors import ConfigError
from rayrec.common.progress import Progress
from rayrec.config.validation import is_yaml_file
from rayrec.recipes import Recipe, dump_recipe, load_recipe, recipe_schema, shipped_recipes, write_recipe_file
from rayrec.store.files import as_json, write_atomically
from rayrec.store.folders import OutputKind
from rayrec.store.paths import LocalPath


class RecipesRequest(Request):
    name: RecipeText | None = None
    """Shipped recipe or YAML file to print with every default filled in."""
    output: Annotated[LocalPath, Metavar("FILE")] | None = None
    """New file for the recipe or the schema. The schema is also written beside a recipe, whose first line names it for
    editors."""
    schema_: bool = False
    """Print the JSON Schema of recipes, with all installed sources and models."""

    outputs: ClassVar[Mapping[str, OutputKind]] = {"output": "file"}

    def check(self) -> None:
        if self.schema_ and self.name is not None:
            raise ConfigError("--schema: all recipes have the same schema; leave out the recipe")
        if self.output is not None and self.name is not None and not is_yaml_file(self.output):
            raise ConfigError(f"--output {self.output}: a recipe file's name ends in .yaml")
        if self.output is not None and self.name is None and not self.schema_:
            raise ConfigError("--output: name the recipe to write, or add --schema")


def run(request: RecipesRequest, progress: Progress) -> Result:
    """List (`details.recipes`: name -> description), resolve (`details.recipe`) or describe (`details.schema`)."""
    if request.schema_:
        schema = recipe_schema()
        if request.output is not None:
            write_atomically(request.output, as_json(schema))
        return Result(command="recipes", output=request.output, details={"schema": schema})
    if request.name is not None:
        recipe = load_recipe(request.name)
        if request.output is not None:
            write_recipe_file(request.output, dump_recipe(recipe))
        return Result(command="recipes", output=request.output, details={"recipe": recipe.model_dump(mode="json")})
    return Result(
        command="recipes", details={"recipes": {name: load_recipe(name).description for name in shipped_recipes()}}
    )


def describe(result: Result) -> str:
    """Return the name of the file written, the JSON Schema, the recipe as YAML, or a line for each recipe."""
    if result.output is not None:
        return f"{result.output} is written"
    if "schema" in result.details:
        return as_json(result.details["schema"]).rstrip()
    if "recipe" in result.details:
        return dump_recipe(Recipe.model_validate(result.details["recipe"])).rstrip()
    return text_table([{"recipe": name, "for": text} for name, text in result.details["recipes"].items()])


COMMAND = Command("recipes", RecipesRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
