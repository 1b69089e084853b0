"""Lets torchvision be imported with a torch for which it was not built; SGLang imports it and needs no operator of it.

Python imports this module at its start if this folder is in PYTHONPATH.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType


class Operators(MetaPathFinder):
    """Declares, before torchvision is imported, the two operators for which it registers functions."""

    library: object = None

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        if fullname == "torchvision" and Operators.library is None:
            import torch

            library = torch.library.Library("torchvision", "DEF")
            for name in ("nms", "qnms"):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            Operators.library = library


sys.meta_path.insert(0, Operators())
