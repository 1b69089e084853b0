"""Benchmarks in one form: progress, then one JSON object as the last line. They may use every room below them."""
