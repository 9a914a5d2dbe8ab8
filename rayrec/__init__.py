"""rayrec: from raw click logs to a served ranking model, on one machine or a cluster.

The functions of `rayrec.api` are attributes of this package: those of commands, such as `rayrec.train`, and those that
load what commands have written, such as `rayrec.load_model`.
"""

from typing import TYPE_CHECKING, Any

from rayrec import api

if TYPE_CHECKING:
    from rayrec.api import *  # noqa: F403

__all__ = [*api.__all__]  # noqa: PLE0604 -- of strings alone


def __getattr__(name: str) -> Any:
    # Looked up on first use: a command's function imports its job.
    if name in __all__:
        return getattr(api, name)
    raise AttributeError(f"module 'rayrec' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
