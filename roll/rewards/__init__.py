"""Verifiers: a task and a response in, a score out; none of them imports an engine."""
