"""The reward `judge`: a language model grades responses."""
