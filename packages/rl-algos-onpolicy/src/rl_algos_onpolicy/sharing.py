"""What policy and value function share, and whether an algorithm can learn it."""

from typing import Literal

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


def check_names_modules(
    actor: Actor, names: Literal["policy_modules", "value_modules"], need: str
) -> None:
    """Make sure that an actor names the modules of its policy or of its value function.

    Args:
        actor: maybe one of the user's own.
        names: the attribute.
        need: says why the algorithm must know them.

    Raises:
        ConfigError: when it names none.
    """
    if not getattr(actor, names):
        raise ConfigError(
            f"{need}, but {type(actor).__name__} does not say which of its modules that is; name "
            f"them in {names}"
        )


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
