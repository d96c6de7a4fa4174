"""What every on-policy algorithm computes from a fresh rollout before it estimates advantages."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rl_core.actor import Actor
from rl_core.batch import Rollout
from rl_core.errors import ConfigError
from rl_core.nn.distributions import Distribution


@dataclass(frozen=True, slots=True)
class RolloutValues:
    """The behavior's view of a rollout.

    Attributes:
        log_prob: shape `(T, B)`, of the actions taken.
        value: shape `(T, B)`, of each row's observation.
        next_value: shape `(T, B)`, of each row's true successor: where an episode was cut inside
            a step, of its final observation. Where it was terminated the entry means nothing.
        distribution: the policy at each row's observation, batch axes `(T, B)`.
    """

    log_prob: Tensor
    value: Tensor
    next_value: Tensor
    distribution: Distribution


@torch.no_grad()
def evaluate_rollout(actor: Actor, rollout: Rollout) -> RolloutValues:
    """Evaluate a whole rollout in one pass.

    Args:
        actor: with the weights that collected the rollout, and a state-value function.
        rollout: `(T, B, ...)`.

    Raises:
        ConfigError: when the actor's `evaluate_actions` returns no value.
    """
    evaluation = actor.evaluate_actions(
        rollout.observation, rollout.action, rollout.state, rollout.episode_start
    )
    value = evaluation.value
    if value is None:
        raise ConfigError(
            f"{type(actor).__name__}.evaluate_actions returns no value; learning from rollouts "
            "needs an actor with a state-value function"
        )
    never = torch.zeros_like(rollout.episode_start[0])
    last_state = {name: states[-1] for name, states in evaluation.state.items()}
    last_value, _ = actor.value(rollout.next_observation, last_state, never)
    next_value = torch.cat([value[1:], last_value.unsqueeze(0)])
    if len(rollout.final_index):
        row, env = rollout.final_index.unbind(1)
        final_state = {name: states[row, env] for name, states in evaluation.state.items()}
        unstarted = torch.zeros(len(row), dtype=torch.bool, device=row.device)
        final_value, _ = actor.value(rollout.final_observation, final_state, unstarted)
        next_value[row, env] = final_value
    return RolloutValues(evaluation.log_prob, value, next_value, evaluation.distribution)
