"""Weights between two processes on one GPU."""

import asyncio
import uuid

import pytest
import torch

from roll.cluster.process import ProcessCluster
from roll.engines.native.decoder import Decoder
from roll.types import Spec
from roll.weights.digest import Digest, digest
from roll.weights.ipc import IpcAddress, IpcReceiver, IpcSender
from tests.engines.models import config

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
BUCKET = 16 * 1024
"""Small, so that there are many buckets and the embedding fits into none."""


class Member:
    """Rank 0 sends, all others receive; each has a different model."""

    def __init__(self, rank: int, *, name: str) -> None:
        self.rank = rank
        self.address = IpcAddress(name=name, num_receivers=2, timeout_s=60)
        self.channel = self.new_channel()
        self.decoder = Decoder(config(vocab_size=400))
        self.decoder.initialise(rank)
        self.decoder.cuda().requires_grad_(False)

    def new_channel(self) -> IpcReceiver | IpcSender:
        return IpcReceiver(self.address) if self.rank else IpcSender(self.address, bucket_bytes=BUCKET)

    async def renew(self) -> None:
        self.channel = self.new_channel()

    async def publish(self, version: int) -> Digest:
        if self.rank:
            self.decoder.load(self.channel.receive(version=version), where="the sender")
        else:
            self.decoder.norm += version
            self.channel.send(self.decoder.named_tensors(), version=version)
        return digest(self.decoder.parameters())


def test_every_receiver_gets_the_sent_tensors() -> None:
    async def published() -> list[list[Digest]]:
        call = Spec(f"{__name__}:Member", {"name": f"roll-{uuid.uuid4().hex}"})
        members = ProcessCluster[Member](call, 3, name="ipc")
        try:
            found = [await members.each(Member.publish, version) for version in range(4)]
            for renewed, version in ((2, 5), (0, 8)):  # a receiver, then the sender; each time a version is left out
                await members.at(renewed, Member.renew)
                found += [await members.each(Member.publish, each) for each in (version, version + 1)]
            return found
        finally:
            await members.stop()

    result = asyncio.run(published())
    assert all(each[0] == each[1] == each[2] for each in result)
    assert len({str(each[0]) for each in result}) == 8
