"""`roll chaos`: faults in a run at random times."""
