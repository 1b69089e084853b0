"""Verifiers: a task and a response in, a score out. One file each; none of them imports an engine."""
