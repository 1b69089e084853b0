"""Errors for a missing or unsupported SGLang. Tests with SGLang are in `tests/engines_optional`."""

import pytest

from roll.engines.sglang.generator import check_kernels, check_release
from roll.errors import ConfigError


@pytest.mark.parametrize("release", ["0.5.20", "0.5.20+cpu"])
def test_the_supported_release_is_accepted(release: str) -> None:
    check_release(release)


@pytest.mark.parametrize(
    ("release", "fault"),
    [
        (None, "needs a package that is not installed"),
        ("0.5.2", r"does not support this release of SGLang \(got 0\.5\.2\)"),
        ("0.6.0", r"got 0\.6\.0"),
    ],
)
def test_the_error_for_other_releases_names_what_to_install(release: str | None, fault: str) -> None:
    with pytest.raises(ConfigError, match=rf"^actor_infer: backend sglang .*{fault}.*; install sglang 0\.5\.20$"):
        check_release(release)


def test_missing_kernels_are_an_error_and_on_arm_there_are_none_to_install() -> None:
    check_kernels("aarch64", has_kernels=True)
    with pytest.raises(ConfigError, match=r"has no kernels for this machine \(aarch64\); set backend to vllm$"):
        check_kernels("aarch64", has_kernels=False)
    with pytest.raises(ConfigError, match=r"needs the package sgl_kernel; install it, or set backend to vllm$"):
        check_kernels("x86_64", has_kernels=False)
