"""What `rayrec benchmark` measures, a module each: a function that returns rows of a table."""
