"""What an algorithm wants for an environment when the user names nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import gymnasium

from rl_core.config import ComponentSpec
from rl_core.types import Json


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """What a recipe's defaults may depend on.

    Attributes:
        name: registered name or Gymnasium id.
        observation_space: of one environment.
        action_space: of one environment.
        max_episode_steps: after which an episode is cut; None where there is no limit, or it is
            not known.
    """

    name: str
    observation_space: gymnasium.Space[object]
    action_space: gymnasium.Space[object]
    max_episode_steps: int | None = None


@dataclass(frozen=True, slots=True)
class DefaultRecipe:
    """The parts an algorithm wants when the user names none.

    Attributes:
        actor: by registered name.
        storage: by registered name.
        env: options such as ``num_envs``.
        algorithm: options that differ from the config's defaults for this environment.
        trainer: options of the trainer.
        recurrent: more options by section (``storage``, ``algorithm``) for recurrent actors, which
            are those whose options have a true ``is_recurrent``.
    """

    actor: ComponentSpec
    storage: ComponentSpec
    env: Mapping[str, Json] = field(default_factory=dict)
    algorithm: Mapping[str, Json] = field(default_factory=dict)
    trainer: Mapping[str, Json] = field(default_factory=dict)
    recurrent: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
