"""How a checkpoint becomes a model folder, and what that folder has that was made with the model itself."""
