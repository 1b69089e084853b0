"""Environments that respond to the policy. One file per environment; each object serves one attempt."""
