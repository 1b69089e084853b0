"""Replies made by rules, with the score each must get: the corpus of `roll bench verifiers` and of the reward tests."""
