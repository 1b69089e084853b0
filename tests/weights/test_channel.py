import pytest
import torch

from roll.weights.channel import Mailbox, Shared

TENSORS = [("embed", torch.ones(2)), ("norm", torch.zeros(3))]


def test_a_mailbox_delivers_the_requested_version() -> None:
    mailbox = Mailbox()
    mailbox.send(iter(TENSORS), version=4)
    assert [name for name, _ in mailbox.receive(version=4)] == ["embed", "norm"]


def test_a_mailbox_never_delivers_another_version() -> None:
    mailbox = Mailbox()
    with pytest.raises(AssertionError, match="version 3 was not sent"):
        mailbox.receive(version=3)
    mailbox.send(TENSORS, version=4)
    with pytest.raises(AssertionError, match="version 3 was not sent"):
        mailbox.receive(version=3)


def test_a_version_is_delivered_once() -> None:
    mailbox = Mailbox()
    mailbox.send(TENSORS, version=4)
    mailbox.receive(version=4)
    with pytest.raises(AssertionError, match="version 4 was not sent"):
        mailbox.receive(version=4)


def test_a_shared_module_sends_nothing() -> None:
    shared = Shared()
    shared.send(TENSORS, version=1)
    assert list(shared.receive(version=1)) == []
