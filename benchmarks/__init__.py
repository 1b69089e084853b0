"""Benchmarks of `roll bench`. Each prints progress, then one JSON object as its last line. May import all of roll."""
