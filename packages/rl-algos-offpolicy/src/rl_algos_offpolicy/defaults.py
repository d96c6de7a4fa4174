"""The parts that off-policy algorithms ask for when the user names none."""

from collections.abc import Mapping

from rl_core.algorithm import DefaultRecipe
from rl_core.config import ComponentSpec
from rl_core.types import Json


def off_policy_recipe(
    actor: Mapping[str, Json],
    *,
    algorithm: Mapping[str, Json] | None = None,
    storage: Mapping[str, Json] | None = None,
) -> DefaultRecipe:
    """Compose an `OffPolicyActor` with a `ReplayBuffer` and one environment.

    An actor with memory gets sequences, and larger minibatches, since a sequence's transitions are
    much alike: 640 are 32 of the usual sequences, which learn from 20 each.

    Args:
        actor: options of the actor.
        algorithm: options that differ from the config's defaults.
        storage: options of the storage.
    """
    return DefaultRecipe(
        actor=ComponentSpec("actor", "off-policy", actor),
        storage=ComponentSpec("storage", "replay", storage or {}),
        env={"num_envs": 1},
        algorithm=algorithm or {},
        trainer={},
        recurrent={"storage": {"sequences": {}}, "algorithm": {"mini_batch_size": 640}},
    )
