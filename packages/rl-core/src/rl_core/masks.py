"""Whether action masks leave something to do."""

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rl_core.env import EnvStep
from rl_core.episodes import to_flags
from rl_core.errors import DataError
from rl_core.nn.encoder import ACTION_MASK_KEY
from rl_core.spaces import Space
from rl_core.types import ArrayObservation


class ActionMaskCheck:
    """Refuses masks that forbid every action, which would be acted on as if they forbade none.

    Args:
        observation_space: of one environment; without an entry ``action_mask`` nothing is checked.
        action_space: of one environment.
        rows: what the rows of observations are called in messages.
    """

    def __init__(
        self, observation_space: Space, action_space: Space, rows: str = "environment"
    ) -> None:
        self._rows = rows
        self._starts: npt.NDArray[np.int64] | None = None
        is_masked = (
            isinstance(observation_space, spaces.Dict)
            and ACTION_MASK_KEY in observation_space.spaces
        )
        if is_masked and isinstance(action_space, spaces.MultiDiscrete):
            sizes = action_space.nvec.reshape(-1)
            self._starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        elif is_masked:
            self._starts = np.zeros(1, dtype=np.int64)

    def __call__(
        self, observation: ArrayObservation, matters: npt.NDArray[np.bool_] | None = None
    ) -> None:
        """Look at the masks of all environments.

        Args:
            observation: shape `(B, ...)`.
            matters: shape `(B,)`, which environments go on; None means all. A mask at the end of
                an episode may forbid everything.

        Raises:
            DataError: naming the environments.
        """
        if self._starts is None:
            return
        mask = to_flags(observation[ACTION_MASK_KEY])  # type: ignore[index,call-overload]  # a dict
        allowed = np.logical_or.reduceat(mask.reshape(len(mask), -1), self._starts, axis=1)
        forbidden = ~allowed.all(axis=1)
        if matters is not None:
            forbidden &= matters
        if forbidden.any():
            raise DataError(
                f"the action mask of {self._rows} {np.flatnonzero(forbidden).tolist()} forbids "
                "every action; expected at least one allowed, for each choice of a MultiDiscrete: "
                "end the episode where nothing can be done"
            )

    def look_at(self, outcome: EnvStep) -> None:
        """Look at the masks after a step, of environments whose episodes go on.

        Raises:
            DataError: naming the environments.
        """
        if self._starts is not None:
            over = to_flags(outcome.terminated) | to_flags(outcome.truncated)
            self(outcome.observation, ~over)
