"""Tests of backend megatron, which are skipped where megatron-core is not installed."""

import importlib.util

if importlib.util.find_spec("megatron") is None:
    collect_ignore_glob = ["test_*.py"]
