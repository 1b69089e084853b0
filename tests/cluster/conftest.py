"""One Ray cluster for all tests that need one."""

import os
from collections.abc import Iterator

import pytest

from roll.cluster.ray.environment import set_ray_environment, start_repeatedly

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_worker_niceness", "0")  # else whatever else runs here comes first
set_ray_environment()
os.environ.setdefault("RAY_worker_register_timeout_seconds", "300")  # a new process takes long on a busy machine


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """Where a small Ray cluster is, to which this process is connected."""
    import ray

    addresses: list[str] = []

    def start() -> None:
        context = ray.init(
            address="local",
            num_cpus=16,
            include_dashboard=False,
            object_store_memory=200 * 2**20,
            log_to_driver=False,
            logging_level="error",
        )
        addresses.append(context.address_info["gcs_address"])

    start_repeatedly(start, ray.shutdown, timeout_s=300)  # Ray gives up after 30 s, which a busy machine may exceed
    yield addresses[0]
    ray.shutdown()
