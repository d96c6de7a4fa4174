"""What policy and value function share, and whether an algorithm can learn it."""

from collections.abc import Container

from rl_algos_onpolicy.actor import OnPolicyActor
from rl_core.actor import Actor
from rl_core.algorithm import Scheduled
from rl_core.errors import ConfigError
from rl_core.gradients import ParameterGroup
from rl_core.optimizers import OptimizerConfig


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


_RATES = ("policy_learning_rate", "value_learning_rate")


def moved_together(
    actor: Actor, parameter_name: str, parameters: Container[str]
) -> tuple[str, ...]:
    """Name what changes with a hyper-parameter: both learning rates where something is shared.

    Args:
        actor: what is learned.
        parameter_name: what is to change.
        parameters: all that may change.
    """
    if parameter_name not in _RATES or not all(rate in parameters for rate in _RATES):
        return (parameter_name,)
    return _RATES if shared_modules(actor) else (parameter_name,)


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


def policy_and_value_groups(
    actor: Actor,
    policy_rate: Scheduled,
    value_rate: Scheduled | None,
    *,
    max_grad_norm: str | None,
    optimizer: OptimizerConfig,
) -> tuple[ParameterGroup, ...]:
    """Give policy and value function an optimiser each; the policy's moves what they share.

    Args:
        actor: what is learned, beside what add-ons learn.
        policy_rate: learning rate of the policy.
        value_rate: learning rate of the value function; None learns none.
        max_grad_norm: name of the bound of the joint gradient's norm, or None.
        optimizer: the update rule of both.

    Raises:
        ConfigError: when what is shared is to be moved at two learning rates, or the actor has a
            second value function.
    """
    check_no_intrinsic_value(actor)
    policy = ParameterGroup(
        name="policy",
        modules=("actor", "add_ons"),
        learning_rate="policy_learning_rate",
        max_grad_norm=max_grad_norm,
        optimizer=optimizer,
    )
    if value_rate is None:
        return (policy,)
    _check_one_rate(actor, policy_rate, value_rate)
    value = ParameterGroup(
        name="value",
        modules=tuple(f"actor.{name}" for name in actor.value_modules),
        learning_rate="value_learning_rate",
        max_grad_norm=max_grad_norm,
        optimizer=optimizer,
    )
    return (value, policy)


def _check_one_rate(actor: Actor, policy_rate: Scheduled, value_rate: Scheduled) -> None:
    shared = shared_modules(actor)
    if shared and policy_rate != value_rate:
        raise ConfigError(
            f"policy and value function share {', '.join(shared)}, so policy_learning_rate and "
            f"value_learning_rate must be equal, got {policy_rate} and {value_rate}"
        )
