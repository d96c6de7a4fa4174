"""Reward scaling in the collector; reported returns are never scaled."""

import numpy as np
import numpy.typing as npt

from rl_core.stateful import StateFields

FloatArray = npt.NDArray[np.float64]


class RewardScaler(StateFields):
    """Divide rewards by the running standard deviation of their discounted sum.

    The discounted sum runs forward in time and is reset when an episode ends. Rewards are not
    centered, because shifting rewards changes tasks whose episodes have no fixed length.

    Args:
        num_envs: number of environments that step together.
        gamma: discount of the sum.
        clip: scaled rewards are clipped to ``[-clip, clip]``.
        epsilon: added to the variance for numerical stability.

    Source:
        Engstrom et al. 2020, https://arxiv.org/abs/2005.12729, "Reward scaling".
    """

    state_fields = ("_sum", "_mean", "_var", "_count")

    def __init__(
        self, num_envs: int, gamma: float = 0.99, clip: float = 10.0, epsilon: float = 1e-8
    ) -> None:
        self.gamma = gamma
        self.clip = clip
        self.epsilon = epsilon
        self._sum: FloatArray = np.zeros(num_envs)
        self._mean = 0.0
        self._var = 1.0
        self._count = 0.0

    def __call__(
        self,
        reward: npt.NDArray[np.float32],
        ended: npt.NDArray[np.bool_],
        valid: npt.NDArray[np.bool_],
    ) -> npt.NDArray[np.float32]:
        """Add one step's rewards to the statistics and return them scaled.

        Args:
            reward: shape `(B,)`.
            ended: shape `(B,)`: the episode ended in this step.
            valid: shape `(B,)`: the row is a transition.
        """
        self._sum = self._sum * self.gamma + reward
        sums = self._sum if valid.all() else self._sum[valid]
        if len(sums):
            self._include(sums)
        self._sum[ended] = 0.0
        scaled = np.clip(reward / np.sqrt(self._var + self.epsilon), -self.clip, self.clip)
        return np.asarray(scaled, dtype=np.float32)

    def _include(self, sums: FloatArray) -> None:
        count = float(len(sums))
        mean, var = float(sums.mean()), float(sums.var())
        total = self._count + count
        weight = count / total
        delta = mean - self._mean
        self._mean += delta * weight
        self._var = self._var * (1 - weight) + var * weight + delta**2 * weight * (1 - weight)
        self._count = total

    def forget_running_sums(self) -> None:
        """Reset the discounted sums, because the environments were reset."""
        self._sum[:] = 0.0
