"""Memory of GPUs in the metrics of a run."""

import os

import pytest
import torch

from roll.monitoring.memory import add_memory
from roll.monitoring.samples import Scrape

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_memory_on_a_gpu_is_that_of_all_processes_and_of_this_one() -> None:
    pytest.importorskip("pynvml", reason="needs the package nvidia-ml-py")
    held = torch.zeros(2**28, dtype=torch.uint8, device="cuda")
    scrape = Scrape()
    add_memory(scrape, os.getpid())
    values = {family.name: family.samples[0].value for family in scrape.families()}
    own, used, total = (values[f"roll_device_memory_{name}_bytes"] for name in ("allocated", "used", "total"))
    assert held.numel() <= own <= used <= total
