"""Metrics of a run: collected, explained, drawn and reported. Independent of training."""
