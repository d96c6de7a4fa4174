"""Action masks: whether they fit the actions, and leave something to do."""

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rl_core.env import EnvStep
from rl_core.episodes import to_flags
from rl_core.errors import DataError, SpaceError
from rl_core.nn.encoder import ACTION_MASK_KEY
from rl_core.spaces import Space
from rl_core.types import ArrayObservation


def mask_sizes(observation_space: Space, action_space: Space) -> tuple[int, ...] | None:
    """Return how many actions each choice has, one after the other in a mask; None without one.

    Args:
        observation_space: of one environment; a dict's entry ``action_mask`` is the mask.
        action_space: of one environment.

    Raises:
        SpaceError: when the actions cannot be masked, or the mask is not as long as they are many.
    """
    if not (
        isinstance(observation_space, spaces.Dict) and ACTION_MASK_KEY in observation_space.spaces
    ):
        return None
    if isinstance(action_space, spaces.Discrete):
        sizes = [int(action_space.n)]
    elif isinstance(action_space, spaces.MultiDiscrete):
        sizes = [int(size) for size in action_space.nvec.reshape(-1)]
    else:
        raise SpaceError(
            f"the observation has an '{ACTION_MASK_KEY}', but {action_space} cannot be masked; "
            "expected Discrete or MultiDiscrete actions: leave the mask out, or rename it"
        )
    shape = observation_space[ACTION_MASK_KEY].shape
    if shape != (sum(sizes),):
        raise SpaceError(
            f"the observation's '{ACTION_MASK_KEY}' has shape {shape}, but {action_space} takes "
            f"one of shape ({sum(sizes)},), a flag for each action of each choice"
        )
    return tuple(sizes)


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
