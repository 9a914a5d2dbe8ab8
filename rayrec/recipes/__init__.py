"""A recipe describes a whole run; the shipped ones lie beside their models."""

from rayrec.recipes.recipe import Recipe, RecipeContent, dump_recipe, load_recipe, read_recipe, shipped_recipes

__all__ = ["Recipe", "RecipeContent", "dump_recipe", "load_recipe", "read_recipe", "shipped_recipes"]
