"""Checks that action masks fit the actions and allow at least one."""

import numpy as np
import numpy.typing as npt

from rl_core.env import EnvStep
from rl_core.errors import DataError
from rl_core.spaces import ACTION_MASK_KEY, Space, mask_sizes
from rl_core.types import ArrayObservation, to_flags


class ActionMaskCheck:
    """Raises an error for masks that forbid every action, which sampling could not satisfy.

    Args:
        observation_space: space of one environment; nothing is checked without an entry
            ``action_mask``.
        action_space: action space of one environment.
        rows: name of a row of observations, for messages.

    Attributes:
        has_masks: whether there is anything to check.

    Raises:
        SpaceError: when the mask does not fit the actions.
    """

    def __init__(
        self, observation_space: Space, action_space: Space, rows: str = "environment"
    ) -> None:
        self._rows = rows
        sizes = mask_sizes(observation_space, action_space)
        self.has_masks = sizes is not None
        self._starts = None if sizes is None else np.cumsum((0, *sizes[:-1]))

    def __call__(
        self, observation: ArrayObservation, matters: npt.NDArray[np.bool_] | None = None
    ) -> None:
        """Check the masks of all environments.

        Args:
            observation: shape `(B, ...)`.
            matters: shape `(B,)`, which rows to check; None checks all. A mask at the end of an
                episode may forbid everything.

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
                "end the episode where no action is possible"
            )

    def check_step(self, outcome: EnvStep) -> None:
        """Check the masks that the next actions will use.

        Rows whose episode ended are left out, unless they show the first observation of the next.

        Raises:
            DataError: naming the environments.
        """
        if self._starts is None:
            return
        if outcome.final_observation is None:  # ended rows, if any, show their last observation
            over = to_flags(outcome.terminated) | to_flags(outcome.truncated)
            self(outcome.observation, ~over)
        else:
            self(outcome.observation)
