"""Training: sharding plan, optimizers, precision, the step, the loop, checkpoints, the Ray Train driver."""
