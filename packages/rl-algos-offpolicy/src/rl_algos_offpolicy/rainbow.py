"""Rainbow: deep Q-learning with all of its improvements at once.

Source: Hessel et al. 2018, https://arxiv.org/abs/1710.02298, Table 1.

Deviations from the paper: it is measured for a run of 50 million steps on Atari. Learning rate,
minibatch, cadence, target period, memory and the start of learning are `DQN`'s, for environments
that are learned in some 10,000 steps; rewards are not clipped.
"""

from rl_algos_offpolicy.defaults import off_policy_recipe
from rl_algos_offpolicy.dqn import DQN
from rl_core.algorithm import DefaultRecipe, EnvSpec


class Rainbow(DQN):
    """`DQN` with other defaults: what it is depends on the actor and the storage it is given.

    Args:
        actor: an `OffPolicyActor` with a greedy policy.
        config: options.
    """

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Learn by double, dueling, noisy and categorical critics from prioritised windows."""
        return off_policy_recipe(
            {
                "policy": "greedy",
                "num_critics": 1,
                "hidden_sizes": [120, 84],
                "dueling": True,
                "noisy": True,
                "distribution": "categorical",
            },
            algorithm={"double": True, "optimizer": {"eps": 1.5e-4}},
            storage={
                "size": 100_000,
                "n_step": 3,
                "prioritized": {"alpha": 0.5, "beta": "linear(0.4, 1.0)"},
            },
        )
