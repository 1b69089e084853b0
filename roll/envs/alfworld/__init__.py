"""ALFWorld: household tasks in text, over games given as data."""
