"""Search over the keys of a recipe on Ray Tune: spaces, trials, the sweep and what it reports."""
