import pytest
import torch
from torch import nn

from rl_train.trainer.setup import num_threads_for, thread_count


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
