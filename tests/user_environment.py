"""What the shell of a user has in its environment, for commands that start a Ray of their own or belong to another
checkout."""

import os


def environment_of_a_user() -> dict[str, str]:
    """The environment of a shell that knows neither the Ray session of the tests nor their checkout.

    Ray leaves variables in the process that started it. A server that took them over would want the same ports.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PYTHON"))}
