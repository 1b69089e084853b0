"""Runs the tests that failed in the last run once more, one after another: `python tests/run_again.py CACHE_FOLDER`.

A test that passes now depends on how busy the machine is. It is named, so that it can be repaired.
"""

import json
import re
import subprocess
import sys
from pathlib import Path


def main() -> int:
    """The exit code of pytest, which stops at the first test that fails again."""
    file = Path(sys.argv[1]) / "v/cache/lastfailed"
    failed = [re.sub(r"@[^@\]]*$", "", name) for name in json.loads(file.read_text(encoding="utf-8"))]
    if not failed:
        return 5  # as pytest itself without tests
    # In a process whose first folder of imports is the current one, as in the run before, and not that of this file.
    return subprocess.run([sys.executable, "-m", "pytest", *failed, "--maxfail=1", "-rA"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
