"""Action masks: whether they fit the actions, and leave something to do."""

import numpy as np
import numpy.typing as npt

from rl_core.arrays import to_flags
from rl_core.env import EnvStep
from rl_core.errors import DataError
from rl_core.spaces import ACTION_MASK_KEY, Space, mask_sizes
from rl_core.types import ArrayObservation


class ActionMaskCheck:
    """Refuses masks that forbid every action, which would be acted on as if they forbade none.

    Args:
        observation_space: of one environment; without an entry ``action_mask`` nothing is checked.
        action_space: of one environment.
        rows: what the rows of observations are called in messages.

    Raises:
        SpaceError: when the mask does not fit the actions.
    """

    def __init__(
        self, observation_space: Space, action_space: Space, rows: str = "environment"
    ) -> None:
        self._rows = rows
        sizes = mask_sizes(observation_space, action_space)
        self._starts = None if sizes is None else np.cumsum((0, *sizes[:-1]))

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
        """Look at the masks that are acted on after a step.

        Those of environments whose episodes go on, and where episodes begin in the step in which
        others ended, those of all.

        Raises:
            DataError: naming the environments.
        """
        if self._starts is None:
            return
        if outcome.final_observation is None:  # an ended row shows its last observation, if any
            over = to_flags(outcome.terminated) | to_flags(outcome.truncated)
            self(outcome.observation, ~over)
        else:
            self(outcome.observation)
