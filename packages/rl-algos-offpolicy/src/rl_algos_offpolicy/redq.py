"""REDQ and DroQ: soft actor-critic for few samples, as other defaults of `SAC`'s options.

Sources: Chen et al. 2021, https://arxiv.org/abs/2101.05982, Algorithm 1, and Hiraoka et al. 2022,
https://arxiv.org/abs/2110.02034, Algorithm 2. The equations are in `rl_algos_offpolicy.sac`.
"""

from collections.abc import Mapping

from rl_algos_offpolicy.config import off_policy_recipe
from rl_algos_offpolicy.sac import SAC
from rl_core.algorithm import DefaultRecipe, EnvSpec
from rl_core.types import Json

_MANY_STEPS: Mapping[str, Json] = {
    "policy_value": "mean",
    "num_minibatches": 20,
    "policy_delay": 20,
}
"""Twenty gradient steps after each environment step, the last of which moves the policy."""


class REDQ(SAC):
    """`SAC` with ten critics, two of which make each target, and 20 gradient steps per step.

    Source: Chen et al. 2021, https://arxiv.org/abs/2101.05982, Algorithm 1; Eq. (6) and (7) of
    `rl_algos_offpolicy.sac`. All of it are defaults of options of `SAC` and of the actor.

    Args:
        actor: an `OffPolicyActor` with a stochastic policy.
        config: options.
    """

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Learn from one environment, with ten critics."""
        return off_policy_recipe(
            {"policy": "stochastic", "num_critics": 10},
            algorithm={**_MANY_STEPS, "num_target_critics": 2},
        )


class DroQ(SAC):
    """`SAC` with dropout and layer normalization in the critics, and 20 gradient steps per step.

    Source: Hiraoka et al. 2022, https://arxiv.org/abs/2110.02034, Algorithm 2. All of it are
    defaults of options of `SAC` and of the actor. Two critics do for it what ten do for `REDQ`.

    Args:
        actor: an `OffPolicyActor` with a stochastic policy.
        config: options.
    """

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Learn from one environment, with two critics with dropout and layer normalization."""
        return off_policy_recipe(
            {"policy": "stochastic", "critic_dropout": 0.01, "critic_layer_norm": True},
            algorithm=_MANY_STEPS,
        )
