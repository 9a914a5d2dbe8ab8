"""Optimizers of our own: FTRL against TensorFlow, its rule and its objective; RMSprop of tables against torch's."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn

from rayrec.config.optimizers import EmbeddingOptimizerConfig
from rayrec.training.optimizers import FTRL, build_optimizer, table_moments

TENSORFLOW = json.loads((Path(__file__).parents[1] / "assets" / "ftrl_of_tensorflow.json").read_text())
SETTINGS = [case["settings"] for case in TENSORFLOW["cases"]]


def run(settings: dict[str, Any], gradients: np.ndarray, dtype: torch.dtype = torch.float64) -> np.ndarray:
    """(steps, coordinates) weights after each step; the coordinates are shared out to three parameters."""
    parameters = [nn.Parameter(torch.zeros(n, dtype=dtype)) for n in (1, gradients.shape[1] - 2, 1)]
    optimizer = FTRL(parameters, **settings)
    weights = []
    for row in torch.tensor(gradients, dtype=dtype):
        for parameter, gradient in zip(parameters, row.split([len(p) for p in parameters]), strict=True):
            parameter.grad = gradient
        optimizer.step()
        weights.append(torch.cat([p.detach() for p in parameters]).numpy())
    return np.array(weights)


def gradients(steps: int = 40, coordinates: int = 6) -> np.ndarray:
    """A coordinate that occurs never, others now and then, one of tiny gradients."""
    rng = np.random.default_rng(3)
    drawn = rng.normal(0.1, 1.0, (steps, coordinates)) * (rng.random((steps, coordinates)) < 0.6)
    drawn[:, 0] = 0.0
    drawn[:, 1] *= 1e-4
    return drawn


@pytest.mark.parametrize("case", TENSORFLOW["cases"])
def test_equals_tensorflow(case: dict[str, Any]) -> None:
    """In float32, as TensorFlow computed them."""
    found = run(case["settings"], np.array(TENSORFLOW["gradients"]), torch.float32)
    np.testing.assert_allclose(found, case["weights"], rtol=2e-5, atol=2e-7)
    assert np.abs(found[-1]).max() > 0.01


@pytest.mark.parametrize("settings", SETTINGS)
def test_equals_the_published_rule(settings: dict[str, Any]) -> None:
    """Algorithm 1 of the paper, coordinate by coordinate; lambda_2 = 2 l2, and n may start above 0."""
    alpha, power = settings["lr"], -settings["lr_power"]
    expected = []
    z, n, w = np.zeros(6), np.full(6, settings["initial_accumulator"]), np.zeros(6)
    for gradient in gradients():
        for i in np.flatnonzero(gradient):
            sigma = ((n[i] + gradient[i] ** 2) ** power - n[i] ** power) / alpha
            z[i] += gradient[i] - sigma * w[i]
            n[i] += gradient[i] ** 2
            if abs(z[i]) <= settings["l1"]:
                w[i] = 0.0
            else:
                rate = (settings["beta"] + n[i] ** power) / alpha + 2 * settings["l2"]
                w[i] = -(z[i] - np.sign(z[i]) * settings["l1"]) / rate
        expected.append(w.copy())
    np.testing.assert_allclose(run(settings, gradients()), expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("settings", SETTINGS)
def test_minimises_its_objective(settings: dict[str, Any]) -> None:
    """The paper's definition, solved numerically: w_t+1 is the argmin of the sum over s <= t of
    g_s w + sigma_s/2 (w - w_s)^2, plus l1 |w| + l2 w^2; the sigmas add up to the inverse of the learning rate."""
    power, lr = -settings["lr_power"], settings["lr"]
    history = gradients(steps=12)
    found = run(settings, history)
    played = np.vstack([np.zeros(6), found])[:-1]
    squares = np.vstack([np.zeros(6), history**2]).cumsum(axis=0) + settings["initial_accumulator"]
    sigma = np.diff(squares**power, axis=0) / lr
    # What n begins with, and beta, hold w at 0, where it starts.
    start = (settings["initial_accumulator"] ** power + settings["beta"]) / lr
    for coordinate in range(1, 6):

        def objective(w: float, i: int = coordinate) -> float:
            past = history[:, i] @ np.full(12, w) + (sigma[:, i] * (w - played[:, i]) ** 2).sum() / 2
            return past + start * w**2 / 2 + settings["l1"] * abs(w) + settings["l2"] * w**2

        best = minimize_scalar(objective, bracket=(-1.0, 1.0), options={"xtol": 1e-12}).x
        assert found[-1, coordinate] == pytest.approx(best, abs=2e-7)


@pytest.mark.parametrize("initial_accumulator", [0.0, 0.1])
def test_without_a_gradient_nothing_changes(initial_accumulator: float) -> None:
    parameter = nn.Parameter(torch.zeros(4))
    optimizer = FTRL([parameter], lr=0.2, l1=0.01, initial_accumulator=initial_accumulator)
    parameter.grad = torch.tensor([0.5, -1.0, 0.0, 3.0])
    optimizer.step()
    before = [parameter.detach().clone(), *(moment.clone() for moment in optimizer.state[parameter].values())]
    assert before[0][2] == 0 and torch.isfinite(before[0]).all()
    parameter.grad = torch.zeros(4)
    optimizer.step()
    after = [parameter.detach(), *optimizer.state[parameter].values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_parameters_without_a_gradient_and_a_rate_of_0_are_left_out() -> None:
    used, unused = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2))
    optimizer = FTRL([used, unused], lr=0.2)
    used.grad = torch.ones(3)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    assert not used.any()
    optimizer.param_groups[0]["lr"] = 0.2
    assert optimizer.step(lambda: 7.0) == 7.0
    assert used.all() and not unused.any()


# --- RMSprop


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("rows", [1, 1000, 70_001])
def test_equals_torchs_optimizer(rows: int, weight_decay: float) -> None:
    expected, table = (torch.nn.Parameter(torch.linspace(-1, 1, 4 * rows).view(rows, 4)) for _ in range(2))
    config = EmbeddingOptimizerConfig(kind="rmsprop", lr=0.01, rho=0.9, eps=1e-7, weight_decay=weight_decay)
    found = build_optimizer(config, [table])
    reference = torch.optim.RMSprop([expected], lr=0.01, alpha=0.9, eps=1e-7, weight_decay=weight_decay)
    for step in range(1, 4):
        grad = torch.randn(rows, 4)
        grad[::3] = 0.0  # rows of which no id occurs
        before = grad.clone()
        table.grad = expected.grad = grad
        for optimizer in (found, reference):
            optimizer.param_groups[0]["lr"] = 0.01 / step
            optimizer.step()
        assert grad.equal(before)
    assert table.equal(expected)
    assert table_moments(found, table)["square_avg"].equal(reference.state[expected]["square_avg"])
