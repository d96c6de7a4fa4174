"""What policy and value function share, and whether an algorithm can learn it."""

from rl_algos_onpolicy.actor import OnPolicyActor
from rl_core.actor import Actor
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


def check_no_intrinsic_value(actor: Actor) -> None:
    """Make sure that an actor has no second value function, which its algorithm would not learn.

    Raises:
        ConfigError: when it has one.
    """
    if isinstance(actor, OnPolicyActor) and actor.intrinsic_value_head is not None:
        raise ConfigError(
            "actor.intrinsic_value adds a second value function, which only RNDPPO learns; leave "
            "it out"
        )
