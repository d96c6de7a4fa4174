"""The contract of a vector environment, and of what one step of it returns."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self, cast

import numpy as np
from torch import Tensor

from rl_core.config import ComponentSpec
from rl_core.env.goals import GoalFunctions
from rl_core.errors import CheckpointError, ConfigError
from rl_core.spaces import Space
from rl_core.types import ArrayLike, ArrayObservation, StateDict


@dataclass(slots=True)
class EnvStep:
    """One step of all environments. Its arrays belong to the caller: nobody writes to them again.

    A row ends its episode where ``terminated | truncated``. What follows depends on when the
    vector environment resets such a row:

    - *in the same step*: ``observation`` already begins the next episode, and the last
      observation of the ended one is in ``final_observation``;
    - *in the next step*: ``observation`` is the last one of the ended episode,
      ``final_observation`` is None, and the row's next step only resets: it ignores its action,
      has ``valid=False``, zero reward and no end, and its ``observation`` begins the next episode.

    Attributes:
        observation: shape `(B, ...)`, or a dict of such arrays: what the policy acts on next.
        reward: shape `(B,)`, float32, environment units.
        terminated: shape `(B,)`, bool: the episode ended, nothing follows.
        truncated: shape `(B,)`, bool: the episode was cut, so its last state still has a value.
        final_observation: shape `(B, ...)`, or a dict of such arrays: the true last observation of
            the rows that ended in this step, and ``observation`` in the other rows. None if no row
            ended, and always None if rows reset in their next step. An environment on an
            accelerator may return it in every step.
        valid: shape `(B,)`, bool: False where the row did nothing but reset. Such a row is not a
            transition: it is never stored as one, trained on or counted.
        info: the environment's info as it is; for Gymnasium's environments, arrays by key, with
            masks under ``_key``. It may be joined only when it is read, so read it before the next
            step if an environment reuses its arrays.
    """

    observation: ArrayObservation
    reward: ArrayLike
    terminated: ArrayLike
    truncated: ArrayLike
    final_observation: ArrayObservation | None
    valid: ArrayLike
    info: Mapping[str, object]

    @property
    def successor(self) -> ArrayObservation:
        """The observation that each valid row's action led to, however rows are reset."""
        return self.observation if self.final_observation is None else self.final_observation

    @property
    def final_info(self) -> Mapping[str, object]:
        """The info of the ended rows' last step; only those rows are meaningful."""
        return cast("Mapping[str, object]", self.info.get("final_info", self.info))

    def success(self, env: int) -> bool | None:
        """Return what an ended row's ``is_success`` says; None where it is not reported.

        Gymnasium's entry ``_is_success`` says which rows report it.
        """
        values, given = self.final_info.get("is_success"), self.final_info.get("_is_success")
        if not isinstance(values, np.ndarray | Tensor):
            return None
        if isinstance(given, np.ndarray | Tensor) and not given[env]:
            return None
        return bool(values[env])


class VecEnv(ABC):
    """``B`` environments that step together.

    Only `reset` and `step` advance it; one collector calls both, from one thread. Whoever made it
    closes it.
    """

    @property
    @abstractmethod
    def num_envs(self) -> int:
        """The number of environments that step together, ``B``."""

    @property
    @abstractmethod
    def single_observation_space(self) -> Space:
        """The observation space of one environment, as it declares it."""

    @property
    @abstractmethod
    def single_action_space(self) -> Space:
        """The action space of one environment."""

    @property
    @abstractmethod
    def array_type(self) -> Literal["numpy", "torch"]:
        """The kind of arrays that `reset` and `step` return."""

    @abstractmethod
    def reset(self, seed: int | None = None) -> ArrayObservation:
        """Begin a new episode in every environment.

        Args:
            seed: seeds all environments, each differently. None continues with their generators,
                or, the first time, uses the seed given when the environments were made.

        Returns:
            The first observations, shape `(B, ...)`; for Dict and Tuple spaces a dict from path
            to array (see `leaf_spaces`). Floating-point observations are float32.

        Raises:
            EnvironmentFaultError: if an environment raises or violates its declared spaces.
            ConfigError: if the seed is negative.
        """

    @abstractmethod
    def step(self, action: ArrayLike) -> EnvStep:
        """Step every environment once.

        Args:
            action: shape `(B, ...)`, array or tensor, in the environment's own action space; rows
                that are due to reset ignore theirs.

        Raises:
            EnvironmentFaultError: if an environment raises, hangs, dies, was never reset, or
                returns something that is not finite or violates its declared spaces.
            DataError: if the action has the wrong shape.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything; calling it again does nothing."""

    @property
    def spec_id(self) -> str:
        """The registered id, or a name to call it by."""
        return type(self).__name__

    @property
    def component(self) -> ComponentSpec | None:
        """How a recipe names these environments; None if they were built from objects."""
        return None

    @property
    def max_episode_steps(self) -> int | None:
        """The number of steps after which an episode is truncated, if known."""
        return None

    @property
    def resets_in_steps(self) -> bool:
        """Whether a step that only resets follows an episode's last one; its row is not valid."""
        return False

    @property
    def resume_grade(self) -> Literal["exact", "episode"]:
        """How much of it a checkpoint restores.

        ``"exact"``: `load_state_dict` puts every environment back into the middle of its episode.
        ``"episode"``: running episodes are lost, and the next call must be `reset`.
        """
        return "episode"

    def goal_functions(self) -> GoalFunctions | None:
        """Return how goals are rewarded; None if there are none, or if that is unknown."""
        return None

    def call(self, name: str, *arguments: object) -> tuple[object, ...]:
        """Call a method of each environment, such as one that makes its next episodes harder.

        Args:
            name: of the method, or of an attribute to read, of the environment or a wrapper.
            *arguments: of the method.

        Returns:
            What each environment returned.

        Raises:
            ConfigError: if there are no environments that can be called.
            EnvironmentFaultError: if an environment has no such method, or it raises.
        """
        raise ConfigError(
            f"{self.spec_id}: {type(self).__name__} steps all environments as one, so that "
            f"{name!r} cannot be called in each; call it on the object that steps them, or "
            "choose vectorization='sync' where the environments can be stepped one by one"
        )

    def state_dict(self) -> StateDict:
        """Return what a checkpoint should hold; nothing, unless a subclass overrides it."""
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore a state returned by `state_dict`.

        Raises:
            CheckpointError: if the state does not fit this kind of environment.
        """
        if state:
            raise CheckpointError(
                f"{type(self).__name__} restores no state, got {sorted(state)}; the checkpoint "
                "was written with another kind of environment"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
