"""What recurrent networks know at each row of a batch of sequences.

A recurrent network is run once over a sequence to find its state before each row. From there every
row is a sample like any other: the network is evaluated there as while acting, for whichever
action, so that losses read the same with and without memory. The states come from the actions that
were taken, also where another action is evaluated.

Source: stored states and burn-in: Kapturowski et al. 2019,
https://openreview.net/forum?id=r1lyTjAqYX, section 3.
"""

from dataclasses import dataclass
from typing import Protocol, TypeAlias, cast

import torch
from torch import Tensor

from rl_core.batch import ReplayBatch, SequenceStart
from rl_core.errors import ConfigError
from rl_core.types import Observation


@dataclass(frozen=True, slots=True)
class Remembered:
    """Observations as a recurrent network sees them, and its states before them.

    Attributes:
        features: shape `(*batch, F)`, what the network makes of each observation by itself.
        state: shape `(*batch, S)`.
    """

    features: Tensor
    state: Tensor

    def detach(self) -> "Remembered":
        """Return the same as constants."""
        return Remembered(self.features.detach(), self.state.detach())


Seen: TypeAlias = Observation | Remembered
"""What a network is given of a row: an observation, or what a recurrent one made of it."""


class Network(Protocol):
    """A policy, or critics."""

    @property
    def is_recurrent(self) -> bool:
        """Whether it is a `RecurrentNetwork` with a memory."""
        ...


class RecurrentNetwork(Protocol):
    """A policy, or critics, that may have a memory; it is only asked for what follows if it has."""

    @property
    def memory_name(self) -> str:
        """Under which its state is stored."""
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
            action: shape `(T, N, ...)`, what was done there.
            state: shape `(N, S)`, before the first row.
            episode_start: shape `(T, N)`, bool: zero the state before these rows; None zeroes
                none.
        """
        ...


def current(network: Network, batch: ReplayBatch) -> Seen:
    """Return what a network is given of the rows that are learned from.

    Args:
        network: whose memory it is; a target network has its own.
        batch: transitions `(N, ...)`, or sequences `(T, N, ...)` for a recurrent network.

    Raises:
        ConfigError: when the batch is of the other kind.
    """
    start = _start(network, batch)
    return batch.observation if start is None else _remembered(network, start, batch.observation)


def following(network: Network, batch: ReplayBatch) -> Seen:
    """Return what a network is given of what follows the batch's transitions; see `current`."""
    start = _start(network, batch)
    if start is None:
        return batch.next_observation
    return _after(_all_rows(network, start, batch), batch)


def current_and_following(network: Network, batch: ReplayBatch) -> tuple[Seen, Seen]:
    """Return both for a network that looks at both, running it over the sequence once.

    What follows is a constant: no gradient goes through it.
    """
    start = _start(network, batch)
    if start is None:
        return batch.observation, batch.next_observation
    rows = _all_rows(network, start, batch)
    num_rows = len(batch.num_steps)
    now = Remembered(rows.features[:num_rows], rows.state[:num_rows])
    return now, _after(rows.detach(), batch)


def constant(seen: Seen) -> Seen:
    """Return what a network is given without the gradient that made it."""
    return seen.detach() if isinstance(seen, Remembered) else seen


def _start(network: Network, batch: ReplayBatch) -> SequenceStart | None:
    if network.is_recurrent and batch.start is None:
        raise ConfigError(
            "an actor with memory learns from sequences, but the storage gives single "
            "transitions; set storage.sequences, or actor.recurrent_net to 'none'"
        )
    if not network.is_recurrent and batch.start is not None:
        raise ConfigError(
            "the storage gives sequences, but the actor has no memory; set actor.recurrent_net to "
            "'gru' or 'lstm', or leave storage.sequences out"
        )
    return batch.start


def _all_rows(network: object, start: SequenceStart, batch: ReplayBatch) -> Remembered:
    """Look at the rows of a sequence and at those after it, `(T + n, N, ...)`."""
    return _remembered(network, start, _joined(batch.observation, batch.next_observation))


def _after(rows: Remembered, batch: ReplayBatch) -> Remembered:
    """Pick the row that follows each of the batch's transitions."""
    num_rows, num_sequences = batch.num_steps.shape
    device = batch.num_steps.device
    row = torch.arange(num_rows, device=device).unsqueeze(-1) + batch.num_steps
    sequence = torch.arange(num_sequences, device=device)
    return Remembered(rows.features[row, sequence], rows.state[row, sequence])


def _remembered(network: object, start: SequenceStart, observation: Observation) -> Remembered:
    """Find the state before each row of a sequence.

    Args:
        network: whose state.
        start: how it gets into the first row.
        observation: shape `(R, N, ...)`, of the rows from the first one on.
    """
    network = cast("RecurrentNetwork", network)
    num_warming = len(start.episode_start) - 1
    state = _warmed_up(network, start)
    features = network.encode(observation)
    passed = features[:-1]
    if len(passed) == 0:
        return Remembered(features, state.unsqueeze(0))
    action = start.action[num_warming : num_warming + len(passed)]
    after = network.advance(passed, action, state, None)
    return Remembered(features, torch.cat([state.unsqueeze(0), after]))


@torch.no_grad()
def _warmed_up(network: RecurrentNetwork, start: SequenceStart) -> Tensor:
    """Return the state before the first row of each sequence, shape `(N, S)`."""
    state = start.state[network.memory_name]
    num_warming = len(start.episode_start) - 1
    if num_warming == 0:
        return state
    # Rows that pad come first; moved behind the others they change no state that is picked.
    padding = start.episode_start.to(torch.int64).argmax(0)
    row = torch.arange(num_warming, device=padding.device).unsqueeze(-1) + padding
    row = row.clamp(max=num_warming - 1)
    sequence = torch.arange(len(padding), device=padding.device)
    features = network.encode(start.burn_in)[row, sequence]
    after = network.advance(features, start.action[row, sequence], state, None)
    return torch.cat([state.unsqueeze(0), after])[num_warming - padding, sequence]


def _joined(rows: Observation, more: Observation) -> Observation:
    if isinstance(rows, Tensor):
        assert isinstance(more, Tensor)
        return torch.cat([rows, more])
    assert not isinstance(more, Tensor)
    return {key: torch.cat([part, more[key]]) for key, part in rows.items()}
