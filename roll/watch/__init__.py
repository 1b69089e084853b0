"""A local web server that shows runs, live and after their end; it only reads the runs' directories."""
