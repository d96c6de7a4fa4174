"""What recurrent networks are given of the rows of a batch of sequences.

A recurrent network runs over a sequence once, which finds its recurrent state before each row. From
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
from rl_core.errors import ConfigError
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


def obs_inputs(network: RecurrentNetwork, batch: ReplayBatch) -> NetworkInputs:
    """Return a network's inputs at the batch's observations.

    Args:
        network: whose recurrent state is found; a target network has its own.
        batch: transitions `(N, ...)`, or sequences `(T, N, ...)` for a recurrent network.

    Raises:
        ConfigError: when the batch is of the other kind.
    """
    start = _sequence_start(network, batch)
    return batch.observation if start is None else _unrolled(network, start, batch.observation)


def next_obs_inputs(network: RecurrentNetwork, batch: ReplayBatch) -> NetworkInputs:
    """Return a network's inputs at the batch's next observations; see `obs_inputs`."""
    start = _sequence_start(network, batch)
    if start is None:
        return batch.next_observation
    return _successors(_unrolled(network, start, _all_rows(batch)), batch)


def obs_and_next_obs_inputs(
    network: RecurrentNetwork, batch: ReplayBatch
) -> tuple[NetworkInputs, NetworkInputs]:
    """Return both for a network that is evaluated at both, unrolling it once.

    Those at the next observations are constants: no gradient goes through them.
    """
    start = _sequence_start(network, batch)
    if start is None:
        return batch.observation, batch.next_observation
    rows = _unrolled(network, start, _all_rows(batch))
    num_rows = len(batch.num_steps)
    obs = RecurrentInputs(rows.features[:num_rows], rows.state[:num_rows])
    return obs, _successors(rows.detach(), batch)


def detached(inputs: NetworkInputs) -> NetworkInputs:
    """Return inputs without the gradient that reaches a recurrent network through them."""
    return inputs.detach() if isinstance(inputs, RecurrentInputs) else inputs


def _sequence_start(network: RecurrentNetwork, batch: ReplayBatch) -> SequenceStart | None:
    if network.is_recurrent and batch.start is None:
        raise ConfigError(
            "recurrent actors learn from sequences, but the storage gives single transitions; set "
            "storage.sequences, or actor.recurrent_net to 'none'"
        )
    if not network.is_recurrent and batch.start is not None:
        raise ConfigError(
            "the storage gives sequences, but the actor is not recurrent; set actor.recurrent_net "
            "to 'gru' or 'lstm', or leave storage.sequences out"
        )
    return batch.start


def _all_rows(batch: ReplayBatch) -> Observation:
    """Join a sequence's rows and the n rows after it, `(T + n, N, ...)`."""
    rows, more = batch.observation, batch.next_observation
    if isinstance(rows, Tensor):
        assert isinstance(more, Tensor)
        return torch.cat([rows, more])
    assert not isinstance(more, Tensor)
    return {key: torch.cat([part, more[key]]) for key, part in rows.items()}


def _successors(rows: RecurrentInputs, batch: ReplayBatch) -> RecurrentInputs:
    """Pick the row that follows each transition: row t is followed by row t + num_steps."""
    num_rows, num_sequences = batch.num_steps.shape
    device = batch.num_steps.device
    row = torch.arange(num_rows, device=device).unsqueeze(-1) + batch.num_steps
    sequence = torch.arange(num_sequences, device=device)
    return RecurrentInputs(rows.features[row, sequence], rows.state[row, sequence])


def _unrolled(
    network: RecurrentNetwork, start: SequenceStart, observation: Observation
) -> RecurrentInputs:
    """Run over a sequence, and return the state before each of its rows.

    Args:
        network: whose state.
        start: how it gets into the first row.
        observation: shape `(R, N, ...)`, of the rows from the first one on.
    """
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
