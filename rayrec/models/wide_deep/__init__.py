"""Wide & Deep."""
