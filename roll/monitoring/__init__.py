"""What operators of a run read over HTTP: metrics for Prometheus, and probes. It reads what the run records anyway."""
