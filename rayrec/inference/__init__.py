"""The model folder, how a run becomes one, and the predictor: raw rows in, probabilities out."""
