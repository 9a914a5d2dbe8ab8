"""Positive interactions kept on the device, and training samples with negatives drawn there."""
