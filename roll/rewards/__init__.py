"""Verifiers: a task and a reply in, a score out. One file each; none of them imports an engine."""
