"""Jobs that score whole files or all users, with Ray Data."""
