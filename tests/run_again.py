"""Runs the tests that failed in the last run once more, one after another: `python tests/run_again.py CACHE_FOLDER`.

A test that passes now depends on how busy the machine is. It is named, so that it can be repaired.
"""

import json
import re
import sys
from pathlib import Path

import pytest


def main() -> int:
    """The exit code of pytest, which stops at the first test that fails again."""
    file = Path(sys.argv[1]) / "v/cache/lastfailed"
    failed = [re.sub(r"@[^@\]]*$", "", name) for name in json.loads(file.read_text(encoding="utf-8"))]
    return pytest.main([*failed, "--maxfail=1", "-rA"]) if failed else pytest.ExitCode.NO_TESTS_COLLECTED


if __name__ == "__main__":
    sys.exit(main())
