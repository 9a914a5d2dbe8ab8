"""The stages of `rayrec run`."""
