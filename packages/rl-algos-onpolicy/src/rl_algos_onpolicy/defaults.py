"""The parts that on-policy algorithms ask for when the user names none."""

from gymnasium import spaces

from rl_core.algorithm import DefaultRecipe, EnvSpec
from rl_core.config import ComponentSpec
from rl_core.nn.torso import has_vectors
from rl_core.spaces import HybridSpace


def on_policy_recipe(
    env: EnvSpec, *, num_envs: int, num_steps: int, entropy_coef: float = 0.0
) -> DefaultRecipe:
    """Compose an `OnPolicyActor` with a `RolloutStorage`.

    Continuous control gets normalized observations, where they are vectors at least in part, and
    scaled rewards; without them the sizes of observations and rewards decide whether anything is
    learned.

    Args:
        env: the environment.
        num_envs: how many to step together.
        num_steps: rows per rollout.
        entropy_coef: weight of the entropy of discrete actions.
    """
    continuous = isinstance(env.action_space, spaces.Box | HybridSpace)
    normalize = continuous and has_vectors(env.observation_space)
    return DefaultRecipe(
        actor=ComponentSpec("actor", "on-policy", {"normalize_observations": normalize}),
        storage=ComponentSpec("storage", "rollout", {"num_steps": num_steps}),
        env={"num_envs": num_envs},
        algorithm={} if continuous or not entropy_coef else {"entropy_coef": entropy_coef},
        trainer={"scale_rewards": continuous},
    )
