"""How many threads PyTorch uses, chosen instead of inherited."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

_SMALL_NETWORK = 30_000
"""Parameters below which a second thread costs more in handing over than it saves."""


def num_threads_for(network: nn.Module) -> int:
    """Choose a thread count by the size of the networks.

    Args:
        network: what is trained.
    """
    size = sum(parameter.numel() for parameter in network.parameters())
    return 1 if size < _SMALL_NETWORK else torch.get_num_threads()


@contextmanager
def thread_count(count: int) -> Iterator[None]:
    """Use so many threads within a block, and as many as before after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
