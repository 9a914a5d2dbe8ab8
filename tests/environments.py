"""Environments of the commands that tests and benchmarks run."""

import os


def environment_of_a_user() -> dict[str, str]:
    """Return the environment of a shell that knows neither the Ray session of the tests nor their checkout.

    Ray leaves variables in the process that started it. A server that took them over would want the same ports.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PYTHON"))}


def environment_without_cluster() -> dict[str, str]:
    """Return the environment of this process for a command that starts a Ray of its own where it needs one.

    A server that took over the variables of another one's HAProxy would want the same ports.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith(("RAY_ADDRESS", "RAY_SERVE_"))}


def environment_of_open_cluster() -> dict[str, str]:
    """The environment of this process for a cluster that asks for no token, and for the commands that attach to it."""
    # Such variables are the address and the token of another cluster.
    others = {name: value for name, value in os.environ.items() if not name.startswith("RAY_A")}
    return {**others, "RAY_AUTH_MODE": "disabled"}
