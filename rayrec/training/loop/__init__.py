"""What every worker runs: epochs, one step, evaluation, number formats."""
