"""One measurement of the replay benchmark, in a process of its own."""

import itertools
from typing import Protocol

from bench.products import calls_per_second
from bench.replay_data import Step, make_episode
from bench.replay_operations import BATCH_SIZE, DATA, OPERATIONS, Operation

_WARM_UP = 100


class Buffer(Protocol):
    """A system's replay buffer."""

    @property
    def num_transitions(self) -> int:
        """How many transitions can be drawn."""

    def insert(self, step: Step) -> None:
        """Insert a transition."""

    def draw(self) -> None:
        """Draw a batch, and learn its priorities where it has any."""


def measure(name: str, system: str, size: int, seconds: float) -> dict[str, float]:
    """Measure how fast a full buffer does something.

    Args:
        name: of the operation.
        system: whose buffer.
        size: transitions.
        seconds: shortest length of the measured span.

    Returns:
        ``rate`` per second, and ``transitions`` in the buffer.
    """
    operation = OPERATIONS[name]
    episode = make_episode(DATA[operation.data])
    buffer = _make(operation, system, size)
    steps = itertools.cycle(episode)
    for step in itertools.islice(steps, size + len(episode)):  # so that the oldest are overwritten
        buffer.insert(step)

    def call() -> None:
        if operation.inserts:
            buffer.insert(next(steps))
        if operation.draws:
            buffer.draw()

    # In the end about as many priorities were learned as there are transitions.
    warm_up = size // BATCH_SIZE if operation.is_prioritized else 0
    rate = calls_per_second(call, seconds, max(warm_up, _WARM_UP))
    return {"rate": rate, "transitions": float(buffer.num_transitions)}


def count_bytes(data: str, system: str, size: int) -> dict[str, int]:
    """Count what transitions take, on the straight line through two small buffers.

    So it needs no more memory than there is.

    Args:
        data: name of the transitions.
        system: whose buffer.
        size: transitions.

    Returns:
        ``bytes``.
    """
    if system == "ours":
        from bench import replay_ours

        count = replay_ours.count_bytes
    else:
        from bench import replay_peers

        count = replay_peers.count_sb3_bytes
    small, large = (count(DATA[data], size) for size in (1000, 2000))
    return {"bytes": small + (large - small) * (size - 1000) // 1000}


def _make(operation: Operation, system: str, size: int) -> Buffer:
    if system == "ours":
        from bench import replay_ours

        return replay_ours.Buffer(operation, size)
    from bench import replay_peers

    if system == "sb3":
        return replay_peers.SB3Buffer(operation, size)
    return replay_peers.CpprbBuffer(operation, size)
