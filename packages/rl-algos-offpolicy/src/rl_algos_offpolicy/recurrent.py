"""What recurrent networks are given of the rows of a batch of sequences.

A recurrent network runs over a sequence, which finds its recurrent state before each row. From
there every row is a sample like any other: the network is evaluated there as while acting, for
whichever action, so that losses read the same with and without a recurrent core. The states come
from the actions that were taken, also where another action is evaluated.

Source: stored states and burn-in: Kapturowski et al. 2019,
https://openreview.net/forum?id=r1lyTjAqYX, section 3.
"""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from rl_core.batch import ReplayBatch, SequenceStart
from rl_core.types import Observation


@dataclass(frozen=True, slots=True)
class RecurrentInputs:
    """Features of observations, and the recurrent state before each of them.

    Attributes:
        features: shape `(*batch, F)`, what the network makes of each observation by itself.
        state: shape `(*batch, S)`.
    """

    features: Tensor
    state: Tensor

    def first(self, num_rows: int) -> "RecurrentInputs":
        """Return those of the first rows."""
        return RecurrentInputs(self.features[:num_rows], self.state[:num_rows])

    def detach(self) -> "RecurrentInputs":
        """Return the same as constants."""
        return RecurrentInputs(self.features.detach(), self.state.detach())


NetworkInputs: TypeAlias = Observation | RecurrentInputs
"""What a network is evaluated at: observations, or the features and states of a recurrent one."""


class RecurrentNetwork(Protocol):
    """A policy, or critics; whatever follows `is_recurrent` is used only where that is True."""

    @property
    def is_recurrent(self) -> bool:
        """Whether there is a recurrent core."""
        ...

    @property
    def state_name(self) -> str:
        """Name of its recurrent state in storages."""
        ...

    def encode(self, observation: Observation) -> Tensor:
        """Compute features `(*batch, F)` of observations, each by itself."""
        ...

    def advance(
        self, features: Tensor, action: Tensor, state: Tensor, episode_start: Tensor | None
    ) -> Tensor:
        """Return the states after each row, `(T, N, S)`.

        Args:
            features: shape `(T, N, F)`.
            action: shape `(T, N, ...)`, the actions taken there.
            state: shape `(N, S)`, before the first row.
            episode_start: shape `(T, N)`, bool: zero the state before these rows; None zeroes
                none.
        """
        ...


def all_rows(batch: ReplayBatch) -> Observation:
    """Join a sequence's rows and the n rows after it, `(T + n, N, ...)`."""
    rows, more = batch.observation, batch.next_observation
    if isinstance(rows, Tensor):
        assert isinstance(more, Tensor)
        return torch.cat([rows, more])
    assert not isinstance(more, Tensor)
    return {key: torch.cat([part, more[key]]) for key, part in rows.items()}


def successors(rows: RecurrentInputs, batch: ReplayBatch) -> RecurrentInputs:
    """Pick the row that follows each transition: row t is followed by row t + num_steps."""
    num_rows, num_sequences = batch.num_steps.shape
    device = batch.num_steps.device
    row = torch.arange(num_rows, device=device).unsqueeze(-1) + batch.num_steps
    sequence = torch.arange(num_sequences, device=device)
    return RecurrentInputs(rows.features[row, sequence], rows.state[row, sequence])


def unroll(
    network: RecurrentNetwork, batch: ReplayBatch, observation: Observation
) -> RecurrentInputs:
    """Run over a sequence, and return the state before each of its rows.

    Args:
        network: whose state.
        batch: with the sequences' start.
        observation: shape `(R, N, ...)`, of the rows from the first one on.
    """
    start = batch.start
    assert start is not None
    state = _burned_in(network, start)
    features = network.encode(observation)
    passed = features[:-1]  # the last row's state is not advanced from
    if len(passed) == 0:
        return RecurrentInputs(features, state.unsqueeze(0))
    num_burn_in = len(start.episode_start) - 1
    action = start.action[num_burn_in : num_burn_in + len(passed)]
    after = network.advance(passed, action, state, None)
    return RecurrentInputs(features, torch.cat([state.unsqueeze(0), after]))


@torch.no_grad()
def _burned_in(network: RecurrentNetwork, start: SequenceStart) -> Tensor:
    """Return the state before the first row of each sequence, shape `(N, S)`."""
    state = start.state[network.state_name]
    num_burn_in = len(start.episode_start) - 1
    if num_burn_in == 0:
        return state
    # Rows that pad come first; moved behind the others they change no state that is picked.
    padding = start.episode_start.to(torch.int64).argmax(0)
    row = torch.arange(num_burn_in, device=padding.device).unsqueeze(-1) + padding
    row = row.clamp(max=num_burn_in - 1)
    sequence = torch.arange(len(padding), device=padding.device)
    features = network.encode(start.burn_in)[row, sequence]
    after = network.advance(features, start.action[row, sequence], state, None)
    return torch.cat([state.unsqueeze(0), after])[num_burn_in - padding, sequence]
