"""What `rayrec inspect` does with raw files: `inspected_table` is the flow, from a sample of the rows to a recipe."""
