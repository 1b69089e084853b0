"""Stand-in for SGLang's compiled kernels, of which there are none for CPUs without AMX.

SGLang imports names of kernels that it never calls with PyTorch's attention. One that is called says so.
"""

from collections.abc import Callable
from typing import NoReturn

__version__ = "0.0.0"


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} is a stand-in; it was called")

    return missing
