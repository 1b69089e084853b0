"""The best use of a cluster for a run, from a calibrated simulation of its schedule."""
