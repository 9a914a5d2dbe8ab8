"""Writes ftrl_of_tensorflow.json, which test_optimizers.py compares with: TensorFlow's FTRL with given gradients.

In an environment of its own: pip install tensorflow-cpu==2.21.0; python tests/assets/ftrl_of_tensorflow.py
"""

import json
from pathlib import Path

import numpy as np
import tensorflow as tf

STEPS, SIZE = 12, 5
CASES = [
    {"lr": 0.2, "lr_power": -0.5, "initial_accumulator": 0.1, "l1": 0.0, "l2": 0.0, "beta": 0.0},
    {"lr": 0.02, "lr_power": -0.5, "initial_accumulator": 0.1, "l1": 0.7, "l2": 0.0, "beta": 0.0},
    {"lr": 0.3, "lr_power": -0.5, "initial_accumulator": 0.5, "l1": 0.2, "l2": 0.4, "beta": 0.0},
    {"lr": 0.3, "lr_power": -0.5, "initial_accumulator": 0.1, "l1": 0.2, "l2": 0.4, "beta": 1.5},
    {"lr": 0.1, "lr_power": -0.3, "initial_accumulator": 0.1, "l1": 0.1, "l2": 0.2, "beta": 0.0},
    {"lr": 0.1, "lr_power": 0.0, "initial_accumulator": 0.1, "l1": 0.0, "l2": 0.2, "beta": 0.0},
]

rng = np.random.default_rng(7)
gradients = rng.normal(size=(STEPS, SIZE)).astype(np.float32)
gradients[:, 0] = 0.0  # never in a batch
gradients[rng.random((STEPS, SIZE)) < 0.3] = 0.0

content = []
for case in CASES:
    weight = tf.Variable(tf.zeros(SIZE))
    accumulator = tf.Variable(tf.fill([SIZE], case["initial_accumulator"]))
    linear = tf.Variable(tf.zeros(SIZE))
    weights = []
    for gradient in gradients:
        tf.raw_ops.ResourceApplyFtrlV2(
            var=weight.handle,
            accum=accumulator.handle,
            linear=linear.handle,
            grad=gradient,
            lr=case["lr"],
            l1=case["l1"],
            l2=case["l2"] + case["beta"] / (2 * case["lr"]),  # as tf.keras.optimizers.Ftrl hands beta on
            l2_shrinkage=0.0,
            lr_power=case["lr_power"],
            multiply_linear_by_lr=False,
        )
        weights.append(weight.numpy().tolist())
    content.append({"settings": case, "weights": weights})
document = {"tensorflow": tf.__version__, "gradients": gradients.tolist(), "cases": content}
Path(__file__).with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
