"""Updates of parameters: optimizers of tables and of the dense network, learning rates by step."""
