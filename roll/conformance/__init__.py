"""What every loss, advantage, aggregation and trainer has to keep, as checks that anyone can run on their own.

Checks return a list of faults, empty when all is well: `check_loss("my_lab.losses:mine")` is all it takes. What ours
should compute is said once more in float64 NumPy, without a look at the tensor code. No loop imports this room.
"""
