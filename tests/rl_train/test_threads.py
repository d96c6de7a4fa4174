import resource
import sys

import pytest
import torch
from torch import nn

from rl_train.trainer.setup import num_threads_for, reuse_freed_memory, thread_count


def test_small_networks_get_one_thread_and_large_ones_all() -> None:
    with thread_count(2):
        assert num_threads_for(nn.Linear(100, 100)) == 1
        assert num_threads_for(nn.Linear(300, 300)) == 2


def test_the_thread_count_holds_within_the_block_only() -> None:
    before = torch.get_num_threads()
    with thread_count(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_the_thread_count_is_put_back_after_an_error() -> None:
    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="inside"), thread_count(before + 1):
        raise ValueError("inside")
    assert torch.get_num_threads() == before


def _page_faults() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(2_500_000)  # 10 MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux's C library can be told so")
def test_freed_memory_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    reuse_freed_memory()
    _page_faults()
    assert _page_faults() < 2_000  # 24,000 where each block is new


def test_the_users_own_settings_of_memory_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: object) -> object:
        raise AssertionError("the settings must not be touched")

    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    monkeypatch.setattr("ctypes.CDLL", refuse)
    reuse_freed_memory()
