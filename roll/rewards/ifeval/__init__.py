"""The reward `ifeval`: verifiable instructions, and the language detection they need."""
