"""The append-only record of what happened to every sample and every version of the weights."""
