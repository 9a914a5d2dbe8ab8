"""What `rayrec inspect` finds out about raw files: the kinds of their columns, a recipe for them, and drift."""
