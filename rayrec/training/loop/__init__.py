"""Work of every worker: epochs, one step, evaluation, number formats."""
