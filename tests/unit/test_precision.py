"""Precision picks what the hardware does well, and refuses what it cannot do."""

import numpy as np
import pytest
import torch

from rayrec.common.errors import ConfigError
from rayrec.models.common import precision
from rayrec.models.common.precision import AmpError, resolve_precision
from rayrec.training.loop.step import LossScale
from rayrec.training.run.preflight import resolve_device


@pytest.mark.parametrize(
    ("flags", "name"), [({"avx2"}, "fp32"), ({"avx512f", "avx512_bf16"}, "bf16"), ({"amx_bf16"}, "bf16")]
)
def test_auto_on_a_cpu(monkeypatch: pytest.MonkeyPatch, flags: set[str], name: str) -> None:
    monkeypatch.setattr(precision, "cpu_flags", lambda: flags)
    chosen = resolve_precision("auto", "cpu")
    assert chosen.name == name
    assert "bf16" in chosen.reason or "no bfloat16" in chosen.reason


@pytest.mark.parametrize(
    ("capability", "name"), [((9, 0), "bf16"), ((8, 0), "bf16"), ((7, 0), "fp16"), ((6, 1), "fp32")]
)
def test_auto_on_a_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], name: str) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "GPU")
    assert resolve_precision("auto", "cuda").name == name
    if capability < (8, 0):
        with pytest.raises(ConfigError, match="has no tf32"):
            resolve_precision("tf32", "cuda")


def test_what_a_cpu_cannot_do() -> None:
    with pytest.raises(ConfigError, match="tf32 is a mode of NVIDIA GPUs"):
        resolve_precision("tf32", "cpu")
    with pytest.raises(ConfigError, match="needs a GPU"):
        resolve_device("cuda", gpus=0)
    assert resolve_device("auto", gpus=0) == "cpu"
    assert resolve_device("auto", gpus=2) == "cuda"


def test_errors_of_batches_are_joined() -> None:
    one, other = AmpError(), AmpError()
    one.add(np.float32([0.25, 0.5]), np.float32([0.375, 0.5]))
    other.add(np.float32([0.75]), np.float32([0.5]))
    joined = AmpError.of_all([one, AmpError(), other])
    assert joined.metrics() == {"amp_error_max": 0.25, "amp_error_mean": 0.125}
    assert AmpError().metrics() == {"amp_error_max": None, "amp_error_mean": None}


def test_loss_scale_unscales_halves_and_doubles() -> None:
    scale = LossScale(torch.device("cpu"), initial=8.0, growth_interval=2)
    gradient = torch.full((3,), 16.0)
    assert scale.unscale_([gradient]) == 0
    assert gradient.tolist() == [2.0, 2.0, 2.0]
    assert scale.unscale_([torch.tensor([1.0, float("inf")])]) == 1
    assert scale.state_dict() == {"scale": 4.0, "clean_steps": 0}
    assert [scale.unscale_([torch.ones(1)]) for _ in range(2)] == [0, 0]
    assert scale.state_dict() == {"scale": 8.0, "clean_steps": 0}
    other = LossScale.of("dynamic", torch.device("cpu"))
    other.load_state_dict(scale.state_dict())
    assert other.state_dict() == scale.state_dict()


def test_a_static_loss_scale_stays() -> None:
    scale = LossScale.of(48.0, torch.device("cpu"))
    gradient = torch.full((2,), 96.0)
    assert scale.unscale_([gradient]) == 0
    assert gradient.tolist() == [2.0, 2.0]
    assert scale.unscale_([torch.tensor([float("nan")])]) == 1
    assert scale.state_dict()["scale"] == 48.0
    scale.load_state_dict({"scale": 2.0, "clean_steps": 5})  # of a run that was resumed with a number
    assert scale.state_dict()["scale"] == 48.0
