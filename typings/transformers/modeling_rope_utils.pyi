from collections.abc import Callable
from typing import Any

ROPE_INIT_FUNCTIONS: dict[str, Callable[..., Any]]
