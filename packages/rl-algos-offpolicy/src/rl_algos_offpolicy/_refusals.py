"""Why an environment or a storage does not go with an algorithm, and what does."""

from collections.abc import Mapping

import gymnasium
from gymnasium import spaces

from rl_core.errors import ConfigError

LEARNERS: Mapping[str, tuple[str, ...]] = {
    "greedy": ("dqn", "rainbow"),
    "deterministic": ("td3", "ddpg"),
    "stochastic": ("sac", "bc"),
}
"""Which algorithms of this package learn each kind of policy, by their registered names."""


def misfit(policy: str, action_space: gymnasium.Space[object]) -> str | None:
    """Say why a kind of policy cannot choose such actions, and which algorithms can.

    Returns:
        None where it can.
    """
    is_discrete = isinstance(action_space, spaces.Discrete)
    unfit = "deterministic" if is_discrete else "greedy"
    if policy != unfit:
        return None
    needed = "real actions (Box)" if is_discrete else "Discrete actions"
    fitting = ", or ".join(
        f"{' or '.join(learners)} (actor.policy '{kind}')"
        for kind, learners in LEARNERS.items()
        if kind != unfit
    )
    return (
        f"actor.policy '{policy}' needs {needed}, but the environment has {action_space}; choose "
        f"{fitting}"
    )


def check_single_steps(num_steps: int, *, why: str, remedy: str) -> None:
    """Make sure that what follows each transition is the next step.

    Args:
        num_steps: that a transition may go over.
        why: who needs that.
        remedy: what to do about it.

    Raises:
        ConfigError: when transitions may go over several steps.
    """
    if num_steps > 1:
        raise ConfigError(
            f"{why}, but the storage gives transitions of up to {num_steps} steps; {remedy}"
        )
