"""Numbers about a run: measured, explained, drawn, and sent to where people look. Knows nothing of training."""
