"""The sections `metrics` and `logging`: what operators of a run scrape, probe and collect."""

from __future__ import annotations

import ipaddress
from typing import Literal

from pydantic import Field, model_validator

from roll.config.section import Section


class MetricsConfig(Section):
    """A small HTTP server of a run with `/metrics` for Prometheus, `/healthz` and `/readyz`."""

    port: int | None = Field(default=None, ge=0, le=65535)
    """Serve on this port; 0: any free port, which the run prints. None: no server."""
    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to serve on. Any other than this machine's own needs `expose`."""
    expose: bool = False
    """Allow a host that other machines reach. They read the run's name, model, domains, rewards and memory without a
    password."""
    stalled_after_s: float = Field(default=900.0, gt=0)
    """Seconds without an event, a sampled token or a new phase after which `/healthz` is 503. Set it above the longest
    phase, such as the start or one update."""

    @model_validator(mode="after")
    def _expose_is_explicit(self) -> MetricsConfig:
        if not self.expose and not is_loopback(self.host):
            raise ValueError(
                f"host: {self.host!r} lets other machines read the run's name, model, domains, rewards and memory "
                "without a password; add `expose: true`, or take 127.0.0.1"
            )
        return self


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may resolve to anything
        return False


class LoggingConfig(Section):
    """Form of the terminal's lines, `controller.log` and the logs of workers."""

    format: Literal["text", "json"] = "text"
    """`json`: one object per line with time, level, run, role, rank, step and message."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level of lines that are written. The line of an error that ends the run is always written."""
