"""Environments: what answers the policy between its replies. One file each, single-use objects."""
