"""Household tasks in text, over games given as data: the records of a game, its world, its words, the environment."""
