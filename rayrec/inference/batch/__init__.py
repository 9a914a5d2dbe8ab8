"""Jobs that score whole files or all users, with actors of Ray Data or threads of one process."""
