"""The section `interrupt`: how a run ends on SIGINT or SIGTERM."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from roll.config.section import Section


class InterruptConfig(Section):
    """Reaction to SIGINT and SIGTERM. A second signal always abandons the step and exits within seconds."""

    mode: Literal["step", "now"] = "step"
    """On the first signal, finish the step and write a checkpoint (`step`), or abandon the step (`now`)."""
    grace_s: float | None = Field(default=None, gt=0)
    """Seconds between the signal and the kill by the cluster, such as Kubernetes' terminationGracePeriodSeconds.
    A step that is not finished after 80 % of it is abandoned. None: no limit."""
