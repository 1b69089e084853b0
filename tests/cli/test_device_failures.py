"""A GPU that fails or has too little memory ends a run with one line, and the run can be resumed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from roll.errors import RunStopped

FAILING = """
import torch
from pathlib import Path
from roll.registry import LOSSES

def loss(tokens):
    if len(list(Path("runs/tiny/checkpoints").glob("step-2"))) and not Path("repaired").exists():
        raise torch.{error}({message!r})
    return LOSSES["clipped"](tokens)
"""
MEMORY = ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")
FAILED = ("AcceleratorError", "CUDA error: uncorrectable ECC error encountered\nmore")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            MEMORY,
            "the device has too little memory (CUDA out of memory. Tried to allocate 2.00 GiB.); lower "
            "actor_train.tokens_per_microbatch, actor_infer.max_num_seqs or actor_infer.kv_cache_gib, then "
            "`roll resume runs/tiny`",
        ),
        (
            FAILED,
            "the device has failed (CUDA error: uncorrectable ECC error encountered); see whether nvidia-smi still "
            "shows it, then `roll resume runs/tiny`",
        ),
    ],
    ids=["memory", "failure"],
)
def test_a_failed_device_is_one_line_and_the_run_resumes(
    error: tuple[str, str], said: str, roll: Callable, folder: Path
) -> None:
    name, message = error
    module = f"failing_{name.lower()}"
    (folder / f"{module}.py").write_text(FAILING.format(error=name, message=message))
    outcome = roll("train", "run.yaml", f"algorithm.loss='{module}:loss'", "steps=6")
    assert (outcome.code, outcome.err.splitlines()[-1]) == (3, said)
    assert "Traceback" not in outcome.err
    assert message.partition("\n")[0] in (folder / "runs/tiny/controller.log").read_text()
    (folder / "repaired").touch()
    assert roll("resume", "runs/tiny").code == 0


def test_a_failed_check_in_a_kernel_is_a_bug() -> None:
    import torch

    from roll.device_failure import device_failure

    assert device_failure(torch.AcceleratorError("CUDA error: device-side assert triggered"), Path()) is None
    assert isinstance(device_failure(torch.AcceleratorError("CUDA error: lost"), Path()), RunStopped)
