"""What policy and value function share, and whether an algorithm can learn it."""

from rl_core.actor import Actor
from rl_core.algorithm import Scheduled
from rl_core.errors import ConfigError


def shared_modules(actor: Actor) -> list[str]:
    """Name the modules whose parameters are neither the policy's nor the value function's alone."""
    policy, value = (
        {parameter for name in names for parameter in actor.get_submodule(name).parameters()}
        for names in (actor.policy_modules, actor.value_modules)
    )
    shared = {
        name.rpartition(".")[0]
        for name, parameter in actor.named_parameters()
        if parameter.requires_grad and parameter not in policy ^ value
    }
    return sorted(shared)


def check_one_rate(actor: Actor, policy_rate: Scheduled, value_rate: Scheduled) -> None:
    """Make sure that what is shared is not to be moved at two learning rates.

    Raises:
        ConfigError: when it is.
    """
    shared = shared_modules(actor)
    if shared and policy_rate != value_rate:
        raise ConfigError(
            f"policy and value function share {', '.join(shared)}, so policy_learning_rate and "
            f"value_learning_rate must be equal, got {policy_rate} and {value_rate}"
        )
