"""Statistics of scored rows, with their errors: what reports and comparisons show."""
