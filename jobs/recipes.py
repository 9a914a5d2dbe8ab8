"""`rayrec recipes`: lists the shipped recipes, or prints one with every default filled in."""

from jobs.command import Command, RecipeText, Request, Result, main, text_table
from rayrec.common.progress import Progress
from rayrec.recipes import Recipe, dump_recipe, load_recipe, shipped_recipes


class RecipesRequest(Request):
    """List the shipped recipes, or print one in full."""

    name: RecipeText | None = None
    """Shipped recipe or YAML file to print with every default filled in."""


def run(request: RecipesRequest, progress: Progress) -> Result:
    """List (`details.recipes`: name -> description) or resolve (`details.recipe`)."""
    if request.name is not None:
        recipe = load_recipe(request.name)
        return Result(command="recipes", details={"recipe": recipe.model_dump(mode="json")})
    return Result(
        command="recipes", details={"recipes": {name: load_recipe(name).description for name in shipped_recipes()}}
    )


def describe(result: Result) -> str:
    """The recipe as YAML, or a line for each recipe."""
    if "recipe" in result.details:
        return dump_recipe(Recipe.model_validate(result.details["recipe"])).rstrip()
    return text_table([{"recipe": name, "for": text} for name, text in result.details["recipes"].items()])


COMMAND = Command("recipes", RecipesRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
