"""A local web server that shows runs while they go on and after their end; it only reads the runs' directories."""
