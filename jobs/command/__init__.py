"""What all commands share: requests, results, the runner, and the command line made from a request."""
