"""The random generators that everything in a process shares, and no checkpoint holds."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch


@contextmanager
def global_generators_untouched(what: str, instead: str) -> Iterator[None]:
    """Fail if what runs inside draws from torch's, NumPy's or Python's generator, or seeds it.

    Args:
        what: whose call it is, for the message: `update()`.
        instead: which generator it should draw from.
    """
    before = _states()
    yield
    changed = [name for name, state in _states().items() if state != before[name]]
    assert not changed, (
        f"{what} draws from the global generator of {' and '.join(changed)}, or seeds it; "
        f"no checkpoint holds that one, so draw from {instead}"
    )


def _states() -> dict[str, object]:
    kind, keys, *rest = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": (kind, cast("Any", keys).tolist(), *rest),
        "random": random.getstate(),
    }
