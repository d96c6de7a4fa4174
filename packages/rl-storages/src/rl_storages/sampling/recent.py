r"""Sampling that emphasizes recent experience.

Source: Wang & Ross 2019, https://arxiv.org/abs/1906.04009, section 4.

(1) $c_k = \max(N \eta^{1000 k / K},\; c_{\min})$: batch k of K is drawn from the newest
$c_k$ of N transitions, k from 1 to K. Of sequences, N and $c_k$ count these, and $c_{\min}$ is
divided by the transitions that each is learned from.

(2) $\eta = 1 + (\eta_0 - 1) (g + 1) / 2$, where g in [-1, 1] says how the returns of the last 20
episodes rise or fall: their mean gradient, divided by the largest so far where it rises, by the
size of the lowest so far where it falls; both decay by 0.9999 with every episode. This is how
PyTorchRL adapts η.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from rl_core.errors import CheckpointError, ConfigError
from rl_core.stateful import StateFields
from rl_core.storage import IndexSampler, ReplayRows, empty_storage_error
from rl_core.types import StateDict
from rl_storages.config import RecentConfig
from rl_storages.replay.ring import ReplayRing
from rl_storages.sampling.index_layout import LayoutByTime

_RETURNS = 20
_DECAY = 0.9999


def check_period(config: RecentConfig, num_batches: int) -> None:
    """Refuse windows that shrink over the batches of an update if it has a single one.

    Raises:
        ConfigError: when it has.
    """
    if config.period is None and num_batches == 1:
        raise ConfigError(
            "storage.recent.period is None, so windows shrink over the batches of an update, but "
            "updates have a single one; give a period, such as 1000"
        )


class RecentWindows(StateFields):
    """How many of the newest transitions or sequences each batch is drawn from, Eq. (1).

    Args:
        config: options.
        learned: transitions that are learned from in each of these, at most.
    """

    state_fields = ("_count", "_eta")

    def __init__(self, config: RecentConfig, learned: int = 1) -> None:
        self._config = config
        self._cmin = -(-config.cmin // learned)
        self._count = 0
        self._eta = _Eta(float(config.eta))

    def width(self, stored: int, batch: int, num_batches: int) -> int:
        """Return how many the next batch is drawn from.

        Args:
            stored: N.
            batch: which of an update's batches it is, from 0.
            num_batches: of the update.
        """
        period = self._config.period
        if period is None:
            check_period(self._config, num_batches)
            part = (batch + 1) / num_batches
        else:
            part = (self._count + 1) / period
            self._count = (self._count + 1) % period
        width = int(stored * self._eta.value ** (1000.0 * part))
        return min(max(width, self._cmin), stored)

    def note_returns(self, returns: Sequence[float]) -> None:
        """Adapt eta to the returns of finished episodes, if `update_eta` is set."""
        if self._config.update_eta:
            for number in returns:
                self._eta.note(number)

    def live_parameters(self) -> Mapping[str, float]:
        """Return eta."""
        return {"eta": self._eta.value}

    def set_eta(self, value: float) -> None:
        """Set eta, and the eta that it adapts from."""
        replace(self._config, eta=value, update_eta=False)  # checks the range
        self._eta.initial = self._eta.value = float(value)

    def metrics(self) -> Mapping[str, float]:
        """Return eta, and the gradient of the returns if eta adapts to it."""
        gradient = {"return_gradient": self._eta.gradient} if self._config.update_eta else {}
        return {"eta": self._eta.value, **gradient}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore a state returned by `state_dict`, maybe of another period.

        Raises:
            CheckpointError: when it is damaged.
        """
        super().load_state_dict(state)
        self._count %= self._config.period or 1


class _Eta(StateFields):
    """Eq. (2).

    Args:
        initial: eta at first, and whenever returns rise as fast as never before.
    """

    state_fields = ("initial", "value", "gradient", "_highest", "_lowest", "_returns")

    def __init__(self, initial: float) -> None:
        self.initial = self.value = initial
        self.gradient = 0.0
        self._highest = 0.0
        self._lowest = 0.0
        self._returns: deque[float] = deque(maxlen=_RETURNS)

    def note(self, episode_return: float) -> None:
        self._returns.append(episode_return)
        if len(self._returns) < _RETURNS:
            return
        self.gradient = float(np.gradient(self._returns).mean())
        self._highest = max(_DECAY * self._highest, self.gradient)
        self._lowest = min(_DECAY * self._lowest, self.gradient)
        extreme = self._highest if self.gradient > 0.0 else -self._lowest
        scaled = self.gradient / extreme if extreme > 0.0 else 0.0
        self.value = 1.0 + (self.initial - 1.0) * (scaled + 1.0) / 2.0

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        if not (
            0 < self.initial <= 1 and 0 < self.value <= 1 and self._highest >= 0 >= self._lowest
        ):
            raise CheckpointError("storage/sampler/windows/eta: the saved numbers cannot be")


class RecentSampler(StateFields, IndexSampler):
    """Samples uniformly from the newest of all environments, with replacement, Eq. (1).

    Args:
        config: options.
    """

    state_fields = ("_order", "_windows")
    rows: ReplayRing

    def __init__(self, config: RecentConfig) -> None:
        self._config = config

    def attach(self, rows: ReplayRows, generator: torch.Generator) -> None:
        """Begin to draw from rows, which are empty."""
        super().attach(rows, generator)
        self._order = LayoutByTime(self.rows)
        self._windows = RecentWindows(self._config, rows.learned)

    def draw(self, num_batches: int, size: int) -> Iterator[Tensor]:
        """Yield one block, each batch from a window of its own."""
        self._order.catch_up()
        stored = len(self._order)
        if stored == 0:
            raise empty_storage_error()
        slots = np.empty((num_batches, size), dtype=np.int64)
        for batch in range(num_batches):
            width = self._windows.width(stored, batch, num_batches)
            ranks = torch.randint(width, (size,), generator=self.generator).numpy()
            slots[batch] = self._order.newest(ranks, width)
        yield torch.from_numpy(slots)

    def note_returns(self, returns: Sequence[float]) -> None:
        """Adapt eta to the returns of finished episodes."""
        self._windows.note_returns(returns)

    def reset(self) -> None:
        """Forget all rows."""
        super().reset()
        self._order.reset()

    def live_parameters(self) -> Mapping[str, float]:
        """Return eta."""
        return self._windows.live_parameters()

    def set_live_parameter(self, name: str, value: float) -> None:
        """Set eta."""
        self._windows.set_eta(value)

    def metrics(self) -> Mapping[str, float]:
        """Return eta, and the gradient of the returns if eta adapts to it."""
        return self._windows.metrics()
