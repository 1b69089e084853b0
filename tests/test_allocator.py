"""The allocator's setting is ours alone: a user's own stands, and other programs do not inherit it."""

import gc
import os

import pytest

from roll.allocator import foreign_environment, freeze_startup_objects, keep_freed_memory


def test_freed_memory_is_kept_unless_the_user_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIMALLOC_PURGE_DELAY", "7")
    keep_freed_memory()
    assert os.environ["MIMALLOC_PURGE_DELAY"] == "7"
    assert foreign_environment()["MIMALLOC_PURGE_DELAY"] == "7"


def test_other_programs_run_without_our_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIMALLOC_PURGE_DELAY", "")
    monkeypatch.delenv("MIMALLOC_PURGE_DELAY")
    keep_freed_memory()
    assert "MIMALLOC_PURGE_DELAY" in os.environ
    assert "MIMALLOC_PURGE_DELAY" not in foreign_environment()
    assert foreign_environment()["PATH"] == os.environ["PATH"]


def test_the_collector_is_as_it_was_once_the_run_is_over() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), freeze_startup_objects():
        assert gc.get_freeze_count() > 0 and gc.get_threshold()[0] > before[0]
        raise KeyError
    assert gc.get_freeze_count() == 0 and gc.get_threshold() == before
