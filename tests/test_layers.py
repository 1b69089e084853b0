import subprocess
import sys
from pathlib import Path


def test_imports_go_down_only() -> None:
    root = Path(__file__).parents[1]
    program = Path(sys.executable).parent / "lint-imports"
    result = subprocess.run([str(program), "--no-cache"], cwd=root, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
