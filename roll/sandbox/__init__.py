"""Runs untrusted programs: a program and resource limits in, a result out."""
