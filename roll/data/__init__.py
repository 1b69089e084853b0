"""From files and generators to tasks, from text to token ids, from trajectories to batches."""
