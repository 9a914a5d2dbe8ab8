"""rayrec: from raw click logs to a served ranking model, on one machine or a cluster.

The functions of `rayrec.api` are attributes of this package: `rayrec.preprocess`, `rayrec.train`, `rayrec.evaluate`,
`rayrec.run` (all of these), `rayrec.tune`, `rayrec.predict`, `rayrec.export`, `rayrec.plan`, `rayrec.report`,
`rayrec.compare`, `rayrec.explain`, `rayrec.inspect`, `rayrec.generate`, `rayrec.load_model`,
`rayrec.load_recommender`, `rayrec.load_ranker`, `rayrec.load_explainer`, `rayrec.load_recipe`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayrec.api import *  # noqa: F403

__all__ = [  # noqa: F405
    "compare", "evaluate", "explain", "export", "generate", "inspect", "load_explainer", "load_model", "load_ranker",
    "load_recipe", "load_recommender", "plan", "predict", "preprocess", "report", "run", "train", "tune",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # Looked up on first use, so that importing a part of rayrec does not import all of it. `rayrec.api` itself must not
    # be found here: importing it would come back to this function.
    if name in __all__:
        import rayrec.api

        return getattr(rayrec.api, name)
    raise AttributeError(f"module 'rayrec' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
