"""The data that moves between collector, storage and algorithm.

Rollouts and batches are frozen dataclasses of tensors, registered with `torch.export` so that they
pass through ``torch.compile`` and ``vmap`` like any other tree of tensors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rl_core.types import Array, ArrayObservation, Observation, State, map_observation

Extras = Mapping[str, Tensor]
"""What an algorithm's acting step returns beyond the action, by name."""


@dataclass(slots=True)
class Transition:
    """One step of all environments, as the collector hands it to a storage.

    Attributes:
        observation: shape `(B, ...)`, what the policy acted on.
        action: shape `(B, ...)`, the actor-space action.
        reward: shape `(B,)`, as learned from (after reward scaling).
        terminated: shape `(B,)`, bool: the episode ended, nothing follows.
        truncated: shape `(B,)`, bool: the episode was cut, its value goes on.
        valid: shape `(B,)`, bool: False where the row only reset its environment.
        episode_start: shape `(B,)`, bool: ``observation`` is the first of its episode.
        next_observation: shape `(B, ...)`, what the next step acts on.
        final_observation: shape `(B, ...)` or None; where an episode ended in this step and
            ``next_observation`` already belongs to the next one, the row holds its true last
            observation.
        state: recurrent state before this step, each `(B, S)`.
        extras: what else the acting step returned, each `(B, ...)`.
    """

    observation: ArrayObservation
    action: Array | Tensor
    reward: Array | Tensor
    terminated: Array | Tensor
    truncated: Array | Tensor
    valid: Array | Tensor
    episode_start: Array | Tensor
    next_observation: ArrayObservation
    final_observation: ArrayObservation | None
    state: State
    extras: Extras


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Consecutive steps of one environment, on the CPU: an episode, or a piece of one.

    Attributes:
        observation: shape `(L + 1, ...)`: what each step acted on, and what followed the last.
        action: shape `(L, ...)`, actor-space.
        reward: shape `(L,)`.
        terminated: the last step ended the episode, and nothing follows.
    """

    observation: Observation
    action: Tensor
    reward: Tensor
    terminated: bool

    def __len__(self) -> int:
        """Return how many steps there are."""
        return len(self.reward)


@dataclass(frozen=True, slots=True)
class Rollout:
    """A whole on-policy rollout, from which an algorithm prepares advantages and targets.

    Attributes:
        observation: shape `(T, B, ...)`.
        next_observation: shape `(B, ...)`, what follows the last row.
        action: shape `(T, B, ...)`.
        reward: shape `(T, B)`.
        terminated: shape `(T, B)`, bool.
        truncated: shape `(T, B)`, bool.
        valid: shape `(T, B)`, bool.
        episode_start: shape `(T, B)`, bool.
        state: recurrent state before row 0, each `(B, S)`.
        final_index: shape `(K, 2)`, int64: row and environment of the steps whose successor is
            not the next row.
        final_observation: shape `(K, ...)`: the true successors of those steps.
        extras: each `(T, B, ...)`.
    """

    observation: Observation
    next_observation: Observation
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    episode_start: Tensor
    state: State
    final_index: Tensor
    final_observation: Observation
    extras: Extras = field(default_factory=dict)

    def select(self, envs: Sequence[int]) -> "Rollout":
        """Return the rollout of some of the environments, in the order given.

        Args:
            envs: their numbers, from 0.
        """
        index = torch.tensor(envs, dtype=torch.int64, device=self.reward.device)
        row, env = self.final_index.unbind(1)
        chosen, place = (env.unsqueeze(1) == index).nonzero(as_tuple=True)

        def columns(tensor: Tensor) -> Tensor:
            return tensor[:, index]

        return Rollout(
            observation=map_observation(columns, self.observation),
            next_observation=map_observation(lambda part: part[index], self.next_observation),
            action=columns(self.action),
            reward=columns(self.reward),
            terminated=columns(self.terminated),
            truncated=columns(self.truncated),
            valid=columns(self.valid),
            episode_start=columns(self.episode_start),
            state={name: part[index] for name, part in self.state.items()},
            final_index=torch.stack([row[chosen], place], 1),
            final_observation=map_observation(lambda part: part[chosen], self.final_observation),
            extras={name: columns(part) for name, part in self.extras.items()},
        )


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """A minibatch of a prepared rollout: `(N, ...)`, or `(T, N, ...)` for recurrent actors.

    Attributes:
        observation: shape `(N, ...)`.
        action: shape `(N, ...)`, actor-space.
        log_prob: shape `(N,)`, of the behavior policy.
        value: shape `(N,)`, of the behavior's value network.
        advantage: shape `(N,)`.
        value_target: shape `(N,)`.
        mask: shape `(N,)`, float: 1 for a transition, 0 for a row that only reset or pads.
        episode_start: shape `(N,)`, bool.
        state: recurrent state before the first row, each `(N, S)`; empty when feed-forward.
        extras: what else was stored or prepared, each `(N, ...)`.
    """

    observation: Observation
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    value_target: Tensor
    mask: Tensor
    episode_start: Tensor
    state: State
    extras: Extras = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SequenceStart:
    """How recurrent networks get into the state in which a replayed sequence begins.

    Networks start from ``state`` and run without a gradient over the rows of ``burn_in`` that do
    not pad.

    Attributes:
        state: as it was stored while acting, before the first of these rows, or of the sequence
            where there is none, each `(N, S)`; zeros where the episode begins there.
        burn_in: shape `(W, N, ...)`, the observations before the sequence; W may be 0.
        action: shape `(W + T + n - 1, N, ...)`, what was done in the rows of ``burn_in``, in those
            of the sequence, and in all but the last of the n rows after it, for networks whose
            core sees actions.
        episode_start: shape `(W + 1, N)`, bool, where the last row is the sequence's first: what
            is stored of the episode begins in this row, and rows before it pad. At most one row of
            a sequence is marked; none is where the burn-in is whole and the episode began earlier.
    """

    state: State
    burn_in: Observation
    action: Tensor
    episode_start: Tensor


@dataclass(frozen=True, slots=True)
class ReplayBatch:
    """Replayed transitions of up to n steps: `(N, ...)`, or sequences of them `(T, N, ...)`.

    A transition goes from ``observation`` over ``num_steps`` rewards to what follows them. It is
    shorter than n where the episode ended, or where the stored data breaks off; it never leaves
    its episode.

    Attributes:
        observation: shape `(N, ...)`.
        action: shape `(N, ...)`, actor-space.
        reward: shape `(N, n)`: the rewards on the way, zeros beyond ``num_steps``.
        num_steps: shape `(N,)`, int64, from 1 to n.
        terminated: shape `(N,)`, bool: the episode ended there, nothing follows.
        next_observation: shape `(N, ...)`: what follows the last of ``num_steps``; in a batch of
            sequences, the n rows `(n, N, ...)` after its last row, so that row t is followed by
            row t + ``num_steps`` of both together.
        weight: shape `(N,)`, float: importance weights, 1 where all are drawn alike.
        mask: shape `(N,)`, float: 1 for a transition, 0 for a row that pads.
        index: shape `(N, 2)`, int64: slot and generation, by which a storage finds the row again;
            `(N, 2)` for sequences too.
        start: how recurrent networks get into the first row; None in batches of transitions.
        extras: what else was stored, each `(N, ...)`.
    """

    observation: Observation
    action: Tensor
    reward: Tensor
    num_steps: Tensor
    terminated: Tensor
    next_observation: Observation
    weight: Tensor
    mask: Tensor
    index: Tensor
    start: SequenceStart | None = None
    extras: Extras = field(default_factory=dict)


PREPARED_COLUMNS = ("log_prob", "value", "advantage", "value_target")
"""The columns of a `RolloutBatch` that an algorithm's ``prepare`` must return."""


for _batch_type in (Rollout, RolloutBatch, SequenceStart, ReplayBatch):
    torch.export.register_dataclass(_batch_type)
