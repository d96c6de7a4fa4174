"""Transitions of one or more steps, with numbers worked out by hand.

Observation and action of a step are the same number, so ``10 -> 11`` was acted on with action 10.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_core.batch import ReplayBatch, Transition
from rl_core.errors import CheckpointError, ConfigError, DataError, DeviceError
from rl_core.storage import StorageSpec, TensorSpec
from rl_core.types import Array
from rl_storages import PrioritizedConfig, ReplayBuffer
from rl_storages.sampling.uniform import UniformSampler
from rl_testing.stateful import copy_state

CPU = torch.device("cpu")


def _spec(num_envs: int = 1) -> StorageSpec:
    number = TensorSpec((1,), torch.float32)
    return StorageSpec(number, number, num_envs, {}, {}, CPU)


def _buffer(size: int, num_envs: int = 1, n_step: int = 1, seed: int = 0) -> ReplayBuffer:
    storage = ReplayBuffer(size, n_step=n_step)
    storage.allocate(_spec(num_envs), torch.Generator().manual_seed(seed))
    return storage


def _column(numbers: Sequence[float]) -> Array:
    return np.array(numbers, np.float32)[:, None]


def _flags(envs: Sequence[int], num_envs: int) -> Array:
    return np.isin(np.arange(num_envs), envs)


def step(
    now: Sequence[float],
    after: Sequence[float],
    *,
    terminated: Sequence[int] = (),
    truncated: Sequence[int] = (),
    only_reset: Sequence[int] = (),
    start: Sequence[int] = (),
    final: Sequence[float] | None = None,
) -> Transition:
    """One step; flags are given by the environments they are set for. The reward is a tenth."""
    count = len(now)
    return Transition(
        observation=_column(now),
        action=torch.from_numpy(_column(now)),
        reward=np.array(now, np.float32) / 10,
        terminated=_flags(terminated, count),
        truncated=_flags(truncated, count),
        valid=np.logical_not(_flags(only_reset, count)),
        episode_start=_flags(start, count),
        next_observation=_column(after),
        final_observation=None if final is None else _column(final),
        state={},
        extras={},
    )


Window = tuple[float, list[float], float, bool]
"""First observation, rewards times ten, what follows, and whether it terminated."""


def windows(storage: ReplayBuffer) -> list[Window]:
    """Return every transition that can be drawn, in the order of first observations."""
    (batch,) = storage.generate_batches(1, 40 * max(storage.num_transitions, 1))
    found = {
        row[0]: row for row in map(_window, range(len(batch.index)), [batch] * len(batch.index))
    }
    assert len(found) == storage.num_transitions
    return [found[key] for key in sorted(found)]


def _window(row: int, batch: ReplayBatch) -> Window:
    assert isinstance(batch.observation, Tensor)
    assert isinstance(batch.next_observation, Tensor)
    assert torch.equal(batch.action[row], batch.observation[row])
    steps = int(batch.num_steps[row])
    rewards = [round(10 * reward) for reward in batch.reward[row].tolist()]
    assert not any(rewards[steps:])
    return (
        float(batch.observation[row]),
        [float(reward) for reward in rewards[:steps]],
        float(batch.next_observation[row]),
        bool(batch.terminated[row]),
    )


def test_an_episode_that_is_reset_in_the_same_step() -> None:
    """Its last observation, 13, takes a row that is never drawn; 20 begins the next episode."""
    storage = _buffer(20, n_step=3)
    for transition in (
        step([10], [11], start=[0]),
        step([11], [12]),
        step([12], [20], truncated=[0], final=[13]),
        step([20], [21], start=[0]),
    ):
        storage.insert_transition(transition)
    assert windows(storage) == [
        (10.0, [10.0, 11.0, 12.0], 13.0, False),
        (11.0, [11.0, 12.0], 13.0, False),
        (12.0, [12.0], 13.0, False),
        (20.0, [20.0], 21.0, False),
    ]
    assert len(storage) == storage.num_transitions == 4


def test_an_episode_that_is_reset_in_the_next_step() -> None:
    storage = _buffer(20, n_step=3)
    for transition in (
        step([10], [11], start=[0]),
        step([11], [12], terminated=[0]),
        step([12], [20], only_reset=[0]),
        step([20], [21], start=[0]),
    ):
        storage.insert_transition(transition)
    assert windows(storage) == [
        (10.0, [10.0, 11.0], 12.0, True),
        (11.0, [11.0], 12.0, True),
        (20.0, [20.0], 21.0, False),
    ]
    assert len(storage) == 4
    assert storage.num_transitions == 3


def test_a_step_that_terminates_and_is_truncated_counts_as_terminated() -> None:
    storage = _buffer(20, n_step=2)
    storage.insert_transition(step([10], [11], start=[0]))
    storage.insert_transition(step([11], [20], terminated=[0], truncated=[0], final=[12]))
    assert windows(storage) == [(10.0, [10.0, 11.0], 12.0, True), (11.0, [11.0], 12.0, True)]


def test_no_window_passes_an_end_even_where_no_start_is_told() -> None:
    """As of a collector of one's own that forgets ``episode_start``."""
    storage = _buffer(20, n_step=3)
    storage.insert_transition(step([10], [11], terminated=[0]))
    storage.insert_transition(step([11], [12]))
    assert windows(storage) == [(10.0, [10.0], 11.0, True), (11.0, [11.0], 12.0, False)]


def test_final_observations_may_come_with_every_step() -> None:
    """As accelerators give them: only those of ended rows mean anything."""
    storage = _buffer(20, num_envs=2)
    storage.insert_transition(step([10, 50], [11, 51], start=[0, 1], final=[11, 51]))
    storage.insert_transition(step([11, 51], [20, 52], terminated=[0], final=[12, 52]))
    assert windows(storage) == [
        (10.0, [10.0], 11.0, False),
        (11.0, [11.0], 12.0, True),
        (50.0, [50.0], 51.0, False),
        (51.0, [51.0], 52.0, False),
    ]


def test_a_reset_from_outside_cuts_the_episode() -> None:
    """The window ends there, with its true next observation, and bootstraps from it."""
    storage = _buffer(20, n_step=3)
    for transition in (
        step([10], [11], start=[0]),
        step([11], [12]),
        step([30], [31], start=[0]),
        step([31], [32]),
    ):
        storage.insert_transition(transition)
    assert windows(storage) == [
        (10.0, [10.0, 11.0], 12.0, False),
        (11.0, [11.0], 12.0, False),
        (30.0, [30.0, 31.0], 32.0, False),
        (31.0, [31.0], 32.0, False),
    ]


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_a_reset_from_outside_right_after_an_end(autoreset: str) -> None:
    """What the environment would have begun was never acted on; what it began is."""
    storage = _buffer(20, n_step=2)
    storage.insert_transition(step([10], [11], start=[0]))
    if autoreset == "same_step":
        storage.insert_transition(step([11], [20], truncated=[0], final=[12]))
    else:
        storage.insert_transition(step([11], [12], truncated=[0]))
    storage.insert_transition(step([30], [31], start=[0]))
    assert windows(storage) == [
        (10.0, [10.0, 11.0], 12.0, False),
        (11.0, [11.0], 12.0, False),
        (30.0, [30.0], 31.0, False),
    ]


def test_a_reset_from_outside_right_after_a_step_that_only_reset() -> None:
    storage = _buffer(20)
    storage.insert_transition(step([10], [11], start=[0], terminated=[0]))
    storage.insert_transition(step([11], [20], only_reset=[0]))
    storage.insert_transition(step([30], [31], start=[0]))
    assert windows(storage) == [(10.0, [10.0], 11.0, True), (30.0, [30.0], 31.0, False)]


def test_environments_advance_at_their_own_pace() -> None:
    """The first ends in every step, so it takes two rows where the second takes one."""
    storage = _buffer(20, num_envs=2, n_step=2)
    for t in range(3):
        storage.insert_transition(
            step(
                [10 * t, 100 + t],
                [10 * (t + 1), 101 + t],
                start=[0, 1] if t == 0 else [0],
                terminated=[0],
                final=[10 * t + 1, 101 + t],
            )
        )
    assert windows(storage) == [
        (0.0, [0.0], 1.0, True),
        (10.0, [10.0], 11.0, True),
        (20.0, [20.0], 21.0, True),
        (100.0, [100.0, 101.0], 102.0, False),
        (101.0, [101.0, 102.0], 103.0, False),
        (102.0, [102.0], 103.0, False),
    ]
    assert len(storage) == 3
    assert storage.num_transitions == 6


@pytest.mark.parametrize("extra", range(12))
def test_the_oldest_make_room_at_every_offset(extra: int) -> None:
    """Five rows hold the newest four transitions; none looks past the newest."""
    storage = _buffer(4, n_step=2)
    count = 4 + extra
    for t in range(count):
        storage.insert_transition(step([t], [t + 1], start=[0] if t == 0 else []))
    first = count - 4
    assert windows(storage) == [
        (float(t), [float(u) for u in range(t, min(t + 2, count))], float(min(t + 2, count)), False)
        for t in range(first, count)
    ]
    assert len(storage) == 4


@pytest.mark.parametrize("extra", range(12))
def test_last_observations_take_room_at_every_offset(extra: int) -> None:
    """Episodes of two steps take three rows. Of 7 rows one is for what is acted on next."""
    storage = _buffer(6)
    for t in range(6 + extra):
        episode, second = divmod(t, 2)
        now = 10.0 * episode + second
        storage.insert_transition(
            step([now], [10 * (episode + 1)], terminated=[0], final=[now + 1])
            if second
            else step([now], [now + 1], start=[0])
        )
    expected: list[Window] = []
    rows = 6  # beside the head
    for t in reversed(range(6 + extra)):
        episode, second = divmod(t, 2)
        rows -= 2 if second else 1
        if rows < 0:
            break
        now = 10.0 * episode + second
        expected.append((now, [now], now + 1, bool(second)))
    assert windows(storage) == expected[::-1]


def test_a_terminated_window_is_not_a_truncated_one() -> None:
    storage = _buffer(20, num_envs=2, n_step=5)
    storage.insert_transition(step([10, 50], [11, 51], start=[0, 1]))
    storage.insert_transition(
        step([11, 51], [20, 60], terminated=[0], truncated=[1], final=[12, 52])
    )
    assert windows(storage) == [
        (10.0, [10.0, 11.0], 12.0, True),
        (11.0, [11.0], 12.0, True),
        (50.0, [50.0, 51.0], 52.0, False),
        (51.0, [51.0], 52.0, False),
    ]


def test_keys_tell_slot_and_generation() -> None:
    storage = _buffer(4, num_envs=2)  # two rows of each environment beside the head
    for t in range(5):
        storage.insert_transition(
            step([t, 50 + t], [t + 1, 51 + t], start=[0, 1] if t == 0 else [])
        )
    (batch,) = storage.generate_batches(1, 100)
    assert isinstance(batch.observation, Tensor)
    keys = {
        float(now): tuple(key)
        for now, key in zip(batch.observation[:, 0], batch.index.tolist(), strict=True)
    }
    # Positions 3 and 4 of three rows: the second time that rows 0 and 1 are used.
    assert keys == {4.0: (2, 1), 54.0: (3, 1)} | {3.0: (0, 1), 53.0: (1, 1)}
    # What is inserted after a reset has keys that nothing had before: those of the third lap.
    storage.reset()
    storage.insert_transition(step([0, 50], [1, 51], start=[0, 1]))
    (batch,) = storage.generate_batches(1, 100)
    assert {tuple(key) for key in batch.index.tolist()} == {(0, 2), (1, 2)}


def test_a_restored_storage_tells_only_what_is_new() -> None:
    saved, restored = _buffer(20), _buffer(20)
    for t in range(5):
        if t == 3:
            assert saved.new_observations()[0].flatten().tolist() == [0.0, 1.0, 2.0]  # type: ignore[union-attr]
        saved.insert_transition(step([t], [t + 1], start=[0] if t == 0 else []))
    restored.load_state_dict(saved.state_dict())
    for storage in (saved, restored):
        assert storage.new_observations()[0].flatten().tolist() == [3.0, 4.0]  # type: ignore[union-attr]


@pytest.mark.parametrize(("name", "wrong"), [("told", 9), ("told", -1), ("origin", 1)])
def test_positions_that_cannot_be_are_refused(name: str, wrong: int) -> None:
    storage = _buffer(20)
    storage.insert_transition(step([10], [11], start=[0]))
    storage.new_observations()
    state: Any = copy_state(storage.state_dict())
    state["ring"][name] = wrong if name == "origin" else torch.tensor([wrong])
    with pytest.raises(CheckpointError, match="positions contradict each other"):
        storage.load_state_dict(state)


def test_draws_are_uniform_over_what_can_be_drawn() -> None:
    """Pearson's statistic over 40 transitions of two environments, one with many short episodes."""
    storage = _buffer(80, num_envs=2, seed=1)
    for t in range(20):
        storage.insert_transition(
            step(
                [10 * t, 1000 + t],
                [10 * (t + 1), 1001 + t],
                start=[0, 1] if t == 0 else [0],
                truncated=[0],
                final=[10 * t + 1, 1001 + t],
            )
        )
    draws = 20_000
    (batch,) = storage.generate_batches(1, draws)
    counts = np.unique(batch.action.numpy(), return_counts=True)[1]
    assert len(counts) == 40
    statistic = float(((counts - draws / 40) ** 2 / (draws / 40)).sum())
    assert statistic < 72.1  # exceeded by chance once in a thousand seeds, at 39 degrees


def test_rejection_gives_way_to_a_search_where_transitions_are_rare() -> None:
    storage = _buffer(5000)
    storage.insert_transition(step([7], [8], start=[0], terminated=[0]))
    for _ in range(4000):
        storage.insert_transition(step([8], [9], only_reset=[0]))
    (batch,) = storage.generate_batches(1, 32)
    assert set(batch.action[:, 0].tolist()) == {7.0}


def test_batches_of_a_block_are_like_single_ones() -> None:
    """Gathering several at once saves calls and changes nothing."""
    storage = _buffer(50, n_step=3, seed=5)
    for t in range(40):
        storage.insert_transition(step([t], [t + 1], start=[0] if t == 0 else []))
    (block,) = storage.sample_indices(6, 8)
    together = list(storage.gather(block))
    assert len(together) == 6
    for row, batch in zip(block, together, strict=True):
        (alone,) = storage.gather(row.unsqueeze(0))
        for name in ("observation", "action", "reward", "num_steps", "next_observation", "index"):
            assert torch.equal(getattr(batch, name), getattr(alone, name)), name


def test_a_large_block_is_gathered_in_parts() -> None:
    image = TensorSpec((84, 84, 4), torch.uint8)
    spec = StorageSpec(image, TensorSpec((), torch.int64), 1, {}, {}, CPU)
    storage = ReplayBuffer(8)
    storage.allocate(spec, torch.Generator())
    picture = np.full((1, 84, 84, 4), 200, np.uint8)
    storage.insert_transition(
        replace(
            step([1], [2], start=[0]),
            observation=picture,
            action=torch.tensor([3]),
            next_observation=picture + 1,
        )
    )
    batches = list(storage.generate_batches(5, 16))
    assert len(batches) == 5
    for batch in batches:
        assert isinstance(batch.observation, Tensor)
        assert isinstance(batch.next_observation, Tensor)
        assert batch.observation.dtype == torch.uint8
        assert bool((batch.observation == 200).all() and (batch.next_observation == 201).all())


# Slices and states


def _refilled(storage: ReplayBuffer, size: int, num_envs: int, n_step: int) -> ReplayBuffer:
    other = _buffer(size, num_envs, n_step, seed=8)
    other.insert_data_slice(storage.get_all_buffer_data())
    return other


@pytest.mark.parametrize("steps", range(1, 30))
def test_a_slice_of_all_brings_exactly_what_there_is(steps: int) -> None:
    """Wrapped around or not, with environments at different rows."""
    storage = _buffer(18, num_envs=3, n_step=3)
    now, counts = [0.0, 1000.0, 2000.0], [0, 0, 0]
    starts = [0, 1, 2]
    lengths = (2, 3, 50)
    for _ in range(steps):
        counts = [count + 1 for count in counts]
        ended = [env for env in range(3) if counts[env] == lengths[env]]
        final = [number + 1 for number in now]
        after = [number + (10 if env in ended else 1) for env, number in enumerate(now)]
        storage.insert_transition(
            step(
                now,
                after,
                start=starts,
                terminated=[env for env in ended if env == 0],
                truncated=[env for env in ended if env == 1],
                final=final if ended else None,
            )
        )
        counts = [0 if env in ended else count for env, count in enumerate(counts)]
        now, starts = after, ended
    expected = windows(storage)
    received = _refilled(storage, 18, 3, 3)
    assert windows(received) == expected
    assert len(received) == len(storage)
    again = _buffer(18, 3, 3)
    middle = len(storage) // 2
    again.insert_data_slice(storage.get_data_slice(0, middle))
    again.insert_data_slice(storage.get_data_slice(middle, len(storage)))
    assert windows(again) == expected


def test_a_slice_by_hand() -> None:
    storage = _buffer(20, num_envs=2)
    storage.insert_transition(step([10, 50], [20, 51], start=[0, 1], truncated=[0], final=[11, 51]))
    storage.insert_transition(step([20, 51], [21, 52], start=[0]))
    data = storage.get_data_slice(0, 2)
    assert data["num_rows"].tolist() == [4, 3]
    assert data["observation"][..., 0].tolist() == [[10, 50], [11, 51], [20, 52], [21, 0]]
    assert data["action"][..., 0].tolist() == [[10, 50], [0, 51], [20, 0], [0, 0]]
    assert data["flags"].tolist() == [[2 + 4 + 8 + 16, 26], [0, 18], [26, 0], [0, 0]]
    later = storage.get_data_slice(1, 2)
    assert later["num_rows"].tolist() == [2, 2]
    assert later["observation"][..., 0].tolist() == [[20, 51], [21, 52]]


def test_slices_are_aligned_at_the_newest_step() -> None:
    """The first environment takes two rows for each step, so it has only half as many left."""
    storage = _buffer(16, num_envs=2)
    for t in range(12):
        storage.insert_transition(
            step(
                [10 * t, 500 + t],
                [10 * (t + 1), 501 + t],
                start=[0, 1] if t == 0 else [0],
                terminated=[0],
                final=[10 * t + 1, 501 + t],
            )
        )
    assert len(storage) == 8
    newest = storage.get_data_slice(7, 8)
    assert newest["observation"][..., 0].tolist() == [[110, 511], [111, 512]]
    fourth = storage.get_data_slice(3, 5)
    assert fourth["num_rows"].tolist() == [2, 3]
    assert fourth["observation"][..., 0].tolist() == [[80, 507], [81, 508], [0, 509]]


def test_a_slice_longer_than_the_memory_leaves_its_newest_steps() -> None:
    storage = _buffer(20)
    for t in range(12):
        storage.insert_transition(step([t], [t + 1], start=[0] if t == 0 else []))
    received = _refilled(storage, 4, 1, 1)
    assert windows(received) == [(float(t), [float(t)], float(t + 1), False) for t in range(8, 12)]
    storage.insert_transition(step([12], [13]))
    received.insert_data_slice(storage.get_data_slice(12, 13))
    assert [window[0] for window in windows(received)] == [9.0, 10.0, 11.0, 12.0]


@pytest.mark.parametrize("way", ["slice", "transition"])
def test_where_a_slice_does_not_go_on_there_is_a_cut(way: str) -> None:
    worker = _buffer(20, n_step=3)
    for t in (10, 11):
        worker.insert_transition(step([t], [t + 1]))
    other = _buffer(20, n_step=3)
    other.insert_transition(step([30], [31]))
    storage = _buffer(20, n_step=3)
    storage.insert_data_slice(worker.get_all_buffer_data())
    if way == "slice":
        storage.insert_data_slice(other.get_all_buffer_data())
    else:
        storage.insert_transition(step([30], [31]))
    assert windows(storage) == [
        (10.0, [10.0, 11.0], 12.0, False),
        (11.0, [11.0], 12.0, False),
        (30.0, [30.0], 31.0, False),
    ]


def test_where_a_slice_goes_on_there_is_none() -> None:
    storage, received = _buffer(20, n_step=3), _buffer(20, n_step=3)
    for t in range(2):
        storage.insert_transition(step([10 + t], [11 + t], start=[] if t else [0]))
        received.insert_data_slice(storage.get_data_slice(t, t + 1))
    assert windows(received)[0] == (10.0, [10.0, 11.0], 12.0, False)


@pytest.mark.parametrize("worker", ["the same", "another"])
def test_a_state_that_recurs_does_not_join_slices(worker: str) -> None:
    """The second one begins where the first one ended, but not when."""
    first, other = _buffer(20, n_step=3), _buffer(20, n_step=3)
    for t in range(6):
        first.insert_transition(step([t % 2], [(t + 1) % 2], start=[] if t else [0]))
    for t in range(2):
        other.insert_transition(step([t], [t + 1], start=[] if t else [0]))
    storage = _buffer(20, n_step=3)
    storage.insert_data_slice(first.get_data_slice(0, 1))
    later = first.get_data_slice(3, 4) if worker == "the same" else other.get_data_slice(1, 2)
    assert later["observation"][0].item() == 1.0
    storage.insert_data_slice(later)
    assert [window[1] for window in windows(storage)] == [[0.0], [1.0]]
    assert [len(trajectory) for trajectory in storage.trajectories()] == [1, 1]


def test_an_environment_may_be_missing_from_a_slice() -> None:
    """Its newest transition goes on with what is inserted later."""
    storage, worker = _buffer(20, 2, 2), _buffer(20, 2, 2)
    storage.insert_transition(step([10, 50], [11, 51], start=[0, 1]))
    worker.insert_transition(step([0, 60], [0, 61]))
    data = dict(worker.get_data_slice(0, 1))
    data["num_rows"] = torch.tensor([0, 2])
    for name in ("observation", "action", "reward", "flags"):
        data[name][:, 0] = 0
    storage.insert_data_slice(data)
    assert len(storage) == 2
    storage.insert_transition(step([11, 61], [12, 62]))
    assert windows(storage) == [
        (10.0, [10.0, 11.0], 12.0, False),
        (11.0, [11.0], 12.0, False),
        (50.0, [50.0], 51.0, False),
        (60.0, [60.0], 61.0, False),
        (61.0, [61.0], 62.0, False),
    ]


@pytest.mark.parametrize(
    ("name", "row", "value", "message"),
    [
        ("num_rows", 0, 1, "'num_rows': expected 0, or from 2 to 3"),
        ("num_rows", 0, 4, "'num_rows': expected 0, or from 2 to 3"),
        ("num_rows", 0, -1, "'num_rows': expected 0, or from 2 to 3"),
        ("flags", 0, 0, "first row to be a step"),
        ("flags", 2, 18, "marked as one"),
        ("flags", 1, 2, "marked as one"),
    ],
)
def test_a_slice_that_contradicts_itself_is_refused(
    name: str, row: int, value: int, message: str
) -> None:
    storage = _buffer(20)
    for t in (10, 11):
        storage.insert_transition(step([t], [t + 1], start=[0] if t == 10 else []))
    data = dict(storage.get_data_slice(0, 2))
    data[name][row] = value
    with pytest.raises(DataError, match=message):
        storage.insert_data_slice(data)


def test_columns_that_are_not_stored_are_refused() -> None:
    storage = _buffer(20)
    storage.insert_transition(step([10], [11], start=[0]))
    data = {**storage.get_data_slice(0, 1), "extras/surprise": torch.zeros(2, 1)}
    with pytest.raises(DataError, match=r"not stored here: \['extras/surprise'\]"):
        storage.insert_data_slice(data)


def test_an_episode_that_was_lost_with_its_process_is_cut() -> None:
    """After a checkpoint, environments that cannot be restored begin a new episode."""
    storage = _buffer(20, n_step=3)
    for t in (10, 11):
        storage.insert_transition(step([t], [t + 1], start=[0] if t == 10 else []))
    resumed = _buffer(20, n_step=3)
    resumed.load_state_dict(storage.state_dict())
    resumed.insert_transition(step([30], [31], start=[0]))
    assert windows(resumed) == [
        (10.0, [10.0, 11.0], 12.0, False),
        (11.0, [11.0], 12.0, False),
        (30.0, [30.0], 31.0, False),
    ]


def test_what_is_loaded_in_the_middle_of_an_episode_is_not_joined_with_it() -> None:
    """Not even where it ended in the state that was come to."""
    storage = _buffer(20, n_step=3)
    storage.insert_transition(step([10], [11], start=[0]))
    other = _buffer(20, n_step=3)
    other.load_state_dict(storage.state_dict())
    other.mark_boundary()
    other.insert_transition(step([11], [31]))
    assert windows(other) == [(10.0, [10.0], 11.0, False), (11.0, [11.0], 31.0, False)]


def test_what_is_resumed_goes_on_whatever_is_observed() -> None:
    storage, resumed = _buffer(20, n_step=3), _buffer(20, n_step=3)
    first, second = step([10], [11], start=[0]), step([11], [12])
    unseen = np.full((1, 1), np.nan, np.float32)
    storage.insert_transition(replace(first, next_observation=unseen))
    resumed.load_state_dict(storage.state_dict())
    resumed.insert_transition(replace(second, observation=unseen))
    (batch,) = resumed.generate_batches(1, 20)
    assert batch.num_steps[batch.action[:, 0] == 10.0].tolist()[:1] == [2]


@pytest.mark.parametrize(("size", "num_envs"), [(21, 1), (20, 2)])
def test_a_state_of_another_size_is_refused(size: int, num_envs: int) -> None:
    storage = _buffer(20)
    storage.insert_transition(step([10], [11], start=[0]))
    with pytest.raises(CheckpointError, match="same size and number of environments"):
        _buffer(size, num_envs).load_state_dict(storage.state_dict())


def test_a_checkpoint_holds_no_more_than_was_used() -> None:
    storage = _buffer(1_000_000)
    storage.insert_transition(step([10], [11], start=[0]))
    ring = storage.state_dict()["ring"]
    assert isinstance(ring, dict)
    assert {name: len(column) for name, column in ring["columns"].items()} == {
        "observation": 2,
        "action": 2,
        "reward": 2,
        "flags": 2,
    }


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, r"storage\.size must be a whole number of at least 1, got 0"),
        ({"size": 2.5}, r"storage\.size must be a whole number of at least 1, got 2\.5"),
        ({"n_step": 0}, r"storage\.n_step must be a whole number of at least 1, got 0"),
        ({"n_step": True}, r"storage\.n_step must be a whole number of at least 1, got True"),
    ],
)
def test_numbers_out_of_range_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ReplayBuffer(**options)  # type: ignore[arg-type]


def test_batches_have_whole_sizes() -> None:
    storage = _buffer(50)
    storage.insert_transition(step([0], [1], start=[0]))
    with pytest.raises(ConfigError, match=r"minibatch_size must be a whole number .* got 2\.5"):
        next(storage.sample_indices(1, 2.5))  # type: ignore[arg-type]


def test_a_sampler_is_asked_after_it_has_something_to_draw_from() -> None:
    storage = ReplayBuffer(size=10)
    for call in (storage.metrics, lambda: storage.set_progress(0.5), storage.live_parameters):
        with pytest.raises(ConfigError, match="allocate"):
            call()
    with pytest.raises(ConfigError, match="allocate"):
        storage.note_returns([1.0])


def test_windows_must_fit_the_memory_of_an_environment() -> None:
    with pytest.raises(ConfigError, match=r"size=24 is too small for 8 .* at least 25"):
        ReplayBuffer(24, n_step=3).allocate(_spec(8), torch.Generator())
    ReplayBuffer(25, n_step=3).allocate(_spec(8), torch.Generator())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"observation": np.zeros((1, 2), np.float32)}, r"observation: got float32 .*\(1, 2\)"),
        (
            {"observation": np.zeros((1, 1))},
            r"observation: got float64.*expected float32.*make a new storage",
        ),
        ({"next_observation": {"a": np.zeros((1, 1))}}, r"next_observation: got the keys \['a'\]"),
        ({"action": torch.zeros(2, 1)}, r"action: got float32 of shape \(2, 1\)"),
        ({"reward": np.zeros(1)}, "reward: got float64"),
        ({"valid": np.ones(2, np.bool_)}, r"valid: got bool of shape \(2,\)"),
        ({"terminated": np.zeros(1)}, "terminated: got float64"),
    ],
)
def test_a_changed_transition_is_named(wrong: dict[str, object], message: str) -> None:
    storage = _buffer(20)
    with pytest.raises(DataError, match=rf"transition\.{message}"):
        storage.insert_transition(replace(step([10], [11]), **wrong))  # type: ignore[arg-type]
    assert len(storage) == 0


def test_a_missing_extra_is_named() -> None:
    number = TensorSpec((1,), torch.float32)
    spec = StorageSpec(number, number, 1, {}, {"surprise": TensorSpec((), torch.float32)}, CPU)
    storage = ReplayBuffer(20)
    storage.allocate(spec, torch.Generator())
    with pytest.raises(DataError, match=r"transition\.extras lacks \['surprise'\]"):
        storage.insert_transition(step([10], [11]))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("prioritized", True, "a PrioritizedConfig, or None, got True"),
        ("recent", {"cmin": 9}, "a RecentConfig, or None, got {'cmin': 9}"),
        ("hindsight", "future", "a HindsightConfig, or None, got 'future'"),
        ("sequences", 40, "a SequenceConfig, or None, got 40"),
    ],
)
def test_an_option_that_is_no_config_is_refused(option: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ReplayBuffer(20, **{option: value})  # type: ignore[arg-type]  # wrong on purpose
    assert str(caught.value) == f"storage.{option} must be {message}"


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"data_device='cuda:99' is not there"):
        ReplayBuffer(20, data_device="cuda:99").allocate(_spec(), torch.Generator())


def test_nothing_to_draw_says_what_to_do() -> None:
    for prioritized in (None, PrioritizedConfig()):
        storage = ReplayBuffer(20, prioritized=prioritized)
        storage.allocate(_spec(), torch.Generator())
        storage.insert_transition(step([10], [11], only_reset=[0]))
        with pytest.raises(ConfigError, match=r"holds no transition yet.*update_after"):
            list(storage.generate_batches(1, 4))


def test_a_sampler_that_is_empty_at_first_is_used() -> None:
    class Sized(UniformSampler):
        def __len__(self) -> int:
            return 0

    sampler = Sized()
    assert ReplayBuffer(10, sampler=sampler)._sampler is sampler
