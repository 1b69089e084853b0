"""The distribution `roll-rl`: its name wherever it is offered, and a wheel that runs without a clone."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SMALL = ["threads=1", "validation.tasks.0.limit=8"]


def environment() -> dict[str, str]:
    """The variables of this process, without those that would make the clone importable."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], cwd=folder, env=environment(), capture_output=True, text=True, timeout=600
    )


def test_every_extra_that_is_offered_exists_under_the_name_of_the_distribution() -> None:
    files = [*(ROOT / "roll").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    offers = re.findall(r"[`'](roll[\w-]*)\[(\w+)\]", text)
    assert {name for name, _ in offers} == {PROJECT["name"]}
    assert {extra for _, extra in offers} <= set(PROJECT["optional-dependencies"])
    assert not re.findall(r"pip install '?roll\b(?!-rl)", text)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from a copy: files of earlier builds in the clone would get into it."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "roll", source / "roll", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    built = run(source, *pip, "--wheel-dir", "dist", ".")
    assert built.returncode == 0, built.stderr
    (path,) = (source / "dist").glob("roll_rl-*.whl")
    return path


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs in an environment with the wheel, and its dependencies from the present one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    install = ("install", "--quiet", "--no-index", "--no-deps", wheel)
    installed = run(folder, sys.executable, "-m", "pip", "--python", python, *install)
    assert installed.returncode == 0, installed.stderr
    # Only the folders themselves: their .pth files, with the editable install of the clone, have no effect there.
    packages = [path for path in sys.path if path.endswith("-packages")]
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in packages))
    return python.parent


@pytest.mark.slow
@pytest.mark.sweep
def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    files = {path for path in (ROOT / "roll").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert sorted(names) == sorted(str(path.relative_to(ROOT)) for path in files)


@pytest.mark.slow
@pytest.mark.sweep
def test_the_demo_runs_from_the_wheel_outside_the_clone(programs: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "arithmetic.yaml", tmp_path)
    origin = run(tmp_path, programs / "python", "-c", "import roll; print(roll.__file__)")
    assert Path(origin.stdout.strip()).is_relative_to(programs.parent), origin
    sft = run(tmp_path, programs / "roll", "sft", "arithmetic.yaml", "sft.steps=2", "model.shape.hidden=32", *SMALL)
    assert sft.returncode == 0, sft.stderr
    few = ("steps=1", "rollout.groups_per_step=4", "rollout.group_size=2")
    start = ("train", "arithmetic.yaml", "model={path: runs/arithmetic-sft/model}")
    trained = run(tmp_path, programs / "python", "-m", "roll", *start, *few, *SMALL)
    assert trained.returncode == 0, trained.stderr
    assert (tmp_path / "runs" / "arithmetic" / "model" / "model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.sweep
def test_doctor_reads_the_requirements_of_the_wheel_and_bench_refers_to_a_clone(programs: Path, tmp_path: Path) -> None:
    doctor = run(tmp_path, programs / "roll", "doctor")
    assert doctor.returncode == 0 and " transformers " in doctor.stdout, doctor.stderr
    bench = run(tmp_path, programs / "roll", "bench")
    assert (bench.returncode, bench.stderr) == (
        2,
        "roll bench: benchmarks are not part of the installed package; run it in a clone of roll\n",
    )
