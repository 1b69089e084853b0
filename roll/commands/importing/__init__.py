"""`roll import`: run files from the configurations of other projects."""
