"""Which parameters of the dense network a recipe keeps at their initial values."""

from collections.abc import Iterable

from torch import nn

from rayrec.common.errors import ConfigError


def frozen_parameters(dense_network: nn.Module, parts: Iterable[str]) -> list[nn.Parameter]:
    """Parameters that `train.freeze` names: `dense_network`, a part of it, or a parameter; `embeddings` has none here.

    Raises ConfigError where a part names no parameter.
    """
    parameters = {f"dense_network.{name}": parameter for name, parameter in dense_network.named_parameters()}
    frozen: dict[str, nn.Parameter] = {}
    for part in parts:
        if part == "embeddings":
            continue
        chosen = {name: p for name, p in parameters.items() if name == part or name.startswith(f"{part}.")}
        if not chosen:
            children = ", ".join(f"dense_network.{name}" for name, _ in dense_network.named_children())
            raise ConfigError(f"train.freeze: no part '{part}'; use embeddings, dense_network, or one of {children}")
        frozen |= chosen
    return list(frozen.values())
