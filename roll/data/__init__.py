"""Tasks from files and generators, token ids from text, batches from trajectories."""
