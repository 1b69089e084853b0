"""Invariants of losses, advantages, aggregations and trainers, as checks that users can run on their own functions.

A check returns a list of faults, empty if there are none: `check_loss("my_lab.losses:mine")`. The built-in formulas are
implemented a second time in float64 NumPy, independently of the tensor code. No training loop imports this room.
"""
