"""In the place of a router: the test says what is sampled."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from roll.engines.base import Request
from roll.serving.counts import IdleReasons
from roll.serving.dispatch import Sampled
from roll.serving.router import GenerationCounts
from roll.types import Finish


class Sampler:
    """The part of a `Router` that an episode needs: prepared responses in order, regardless of the request."""

    def __init__(self, replies: Sequence[Sequence[int]]) -> None:
        self.replies, self.asked = replies, list[Request]()
        self.idle_reasons, self.counts = IdleReasons(), GenerationCounts()

    async def sample(self, request: Request, **_: Any) -> Sampled:
        ids = np.array(self.replies[len(self.asked)], np.int32)
        self.asked.append(request)
        return Sampled(
            ids=ids,
            logprobs=np.full(len(ids), -0.5, np.float32),
            versions=np.zeros(len(ids), np.int32),
            finish=Finish.STOP if int(ids[-1]) in request.stop else Finish.LENGTH,
        )
