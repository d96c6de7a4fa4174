"""Stacks of frames, of which only the newest is stored."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_core.batch import Transition
from rl_core.errors import ConfigError, DataError
from rl_core.storage import StorageSpec, TensorSpec
from rl_core.types import Array
from rl_storages import HindsightConfig, PrioritizedConfig, ReplayBuffer, SequenceConfig
from rl_storages.replay import columns as columns_module
from rl_testing.replay import (
    ReferenceReplayStorage,
    ReplayStorageSuite,
    check_transitions,
)
from rl_testing.stateful import check_same_state
from rl_testing.storages import SCRIPTS, columns_of, seeded, stored
from rl_testing.transitions import TransitionScript
from support.stacks import STACKED_LIVES, StackedScript

CPU = torch.device("cpu")


ATARI = StorageSpec(
    TensorSpec((4, 84, 84), torch.uint8), TensorSpec((), torch.int64), 1, {}, {}, CPU
)


SMALL = StorageSpec(TensorSpec((3, 1), torch.float32), TensorSpec((), torch.int64), 1, {}, {}, CPU)


class TestFrameStacks(ReplayStorageSuite):
    """The oracle stores every stack whole."""

    lives: ClassVar[Mapping[str, TransitionScript]] = {
        name: STACKED_LIVES[name]
        for name in ("same_step_dict_box", "same_step_interrupted", "next_step_recurrent")
    }
    scripts: ClassVar[Mapping[str, TransitionScript]] = {
        name: StackedScript.of(script)
        for name, script in SCRIPTS.items()
        if name in ("same_step", "next_step_dict_torch")
    }
    per_episode: ClassVar[int] = 3

    def make_storage(self, *, size: int, n_step: int) -> ReplayBuffer:
        return ReplayBuffer(size, n_step=n_step, frame_stack=3)


@pytest.mark.parametrize("life", STACKED_LIVES.values(), ids=STACKED_LIVES)
@pytest.mark.parametrize("prioritized", [None, PrioritizedConfig()])
def test_every_stack_is_what_was_given(
    life: TransitionScript, prioritized: PrioritizedConfig | None
) -> None:
    """In all lives, also after wrapping around several times, and with priorities."""
    storage = ReplayBuffer(25 * life.num_envs, n_step=2, prioritized=prioritized, frame_stack=3)
    oracle = ReferenceReplayStorage(30 * life.num_envs, n_step=2)
    for each in (storage, oracle):
        each.allocate(life.spec(), seeded())
    for count, transition in enumerate(life.transitions(150)):
        storage.insert_transition(transition)
        oracle.insert_transition(transition)
        if count % 10 == 0:
            (batch,) = storage.generate_batches(1, 80)
            check_transitions(batch, oracle)
            storage.after_gradients(batch, {"td_error": batch.reward.sum(1)})


def _stack(*frames: float) -> Array:
    return np.array(frames, np.float32)[None, :, None]


def _step(
    now: Array,
    after: Array,
    *,
    action: int,
    start: bool = False,
    terminated: bool = False,
    final: Array | None = None,
) -> Transition:
    return Transition(
        observation=now,
        action=torch.tensor([action]),
        reward=np.zeros(1, np.float32),
        terminated=np.array([terminated]),
        truncated=np.array([False]),
        valid=np.array([True]),
        episode_start=np.array([start]),
        next_observation=after,
        final_observation=final,
        state={},
        extras={},
    )


def _small(size: int = 20, prioritized: PrioritizedConfig | None = None) -> ReplayBuffer:
    storage = ReplayBuffer(size, frame_stack=3, prioritized=prioritized)
    storage.allocate(SMALL, seeded())
    return storage


def _drawn(storage: ReplayBuffer) -> dict[int, tuple[list[float], list[float]]]:
    """Return the stacks before and after each action."""
    (batch,) = storage.generate_batches(1, 300)
    assert isinstance(batch.observation, Tensor)
    assert isinstance(batch.next_observation, Tensor)
    now, after = batch.observation.flatten(1).tolist(), batch.next_observation.flatten(1).tolist()
    return dict(zip(batch.action.tolist(), zip(now, after, strict=True), strict=True))


def test_stacks_do_not_cross_an_episodes_start() -> None:
    storage = _small()
    for transition in (
        _step(_stack(1, 1, 1), _stack(1, 1, 2), action=0, start=True),
        _step(_stack(1, 1, 2), _stack(7, 7, 7), action=1, terminated=True, final=_stack(1, 2, 3)),
        _step(_stack(7, 7, 7), _stack(7, 7, 8), action=2, start=True),
    ):
        storage.insert_transition(transition)
    assert _drawn(storage) == {
        0: ([1, 1, 1], [1, 1, 2]),
        1: ([1, 1, 2], [1, 2, 3]),
        2: ([7, 7, 7], [7, 7, 8]),
    }
    frames = storage.state_dict()["ring"]["columns"]["observation"]  # type: ignore[index, call-overload]
    assert frames.flatten().tolist() == [1, 2, 3, 7, 8]  # type: ignore[union-attr]


def test_a_stack_that_begins_with_two_equal_frames_keeps_the_older_one() -> None:
    storage = _small()
    storage.insert_transition(_step(_stack(1, 2, 2), _stack(2, 2, 3), action=0, start=True))
    storage.insert_transition(_step(_stack(2, 2, 3), _stack(2, 3, 4), action=1))
    assert _drawn(storage) == {0: ([1, 2, 2], [2, 2, 3]), 1: ([2, 2, 3], [2, 3, 4])}


def test_zeros_before_an_episodes_start_take_one_row() -> None:
    storage = _small()
    storage.insert_transition(_step(_stack(0, 0, 1), _stack(0, 1, 2), action=0, start=True))
    storage.insert_transition(_step(_stack(0, 1, 2), _stack(1, 2, 3), action=1))
    assert _drawn(storage) == {0: ([0, 0, 1], [0, 1, 2]), 1: ([0, 1, 2], [1, 2, 3])}
    frames = storage.state_dict()["ring"]["columns"]["observation"]  # type: ignore[index, call-overload]
    assert frames.flatten().tolist() == [0, 1, 2, 3]  # type: ignore[union-attr]


def test_errors_that_come_late_do_not_bring_back_rows_without_their_older_frames() -> None:
    storage = _small(5, PrioritizedConfig())
    for frame in range(6):
        if frame == 5:
            (batch,) = storage.generate_batches(1, 300)
            assert set(batch.action.tolist()) == {0, 1, 2, 3, 4}
        now = _stack(max(frame - 2, 0), max(frame - 1, 0), frame)
        after = _stack(max(frame - 1, 0), frame, frame + 1)
        storage.insert_transition(_step(now, after, action=frame, start=frame == 0))
    storage.after_gradients(batch, {"td_error": torch.full((300,), 9.0)})
    assert sorted(_drawn(storage)) == [1, 2, 3, 4, 5]


def test_rows_without_their_older_frames_are_not_drawn() -> None:
    """Five transitions fit, and each of them has its whole stack; others are gone."""
    storage = _small(size=5)
    storage.insert_transition(_step(_stack(0, 0, 0), _stack(0, 0, 1), action=0, start=True))
    for frame in range(1, 40):
        now = _stack(max(frame - 2, 0), frame - 1, frame)
        storage.insert_transition(_step(now, _stack(frame - 1, frame, frame + 1), action=frame))
        drawn = _drawn(storage)
        assert sorted(drawn) == list(range(max(frame - 4, 0), frame + 1))
        for action, (before, after) in drawn.items():
            assert before == [max(action - 2, 0), max(action - 1, 0), action]
            assert after == [max(action - 1, 0), action, action + 1]


@pytest.mark.parametrize("size", range(10, 20))
@pytest.mark.parametrize("burn_in", [0, 2])
def test_what_leaves_a_storage_has_whole_stacks(size: int, burn_in: int) -> None:
    """Pieces of episodes, and slices for others, where sequences may lead through old rows."""
    sequences = SequenceConfig(length=4, overlap=burn_in / 4)
    storage = ReplayBuffer(size, frame_stack=3, sequences=sequences)
    storage.allocate(SMALL, seeded())
    for frame in range(40):
        now, after = (_stack(*(max(t - back, 0) for back in (2, 1, 0))) for t in (frame, frame + 1))
        storage.insert_transition(_step(now, after, action=frame, start=frame == 0))
    (piece,) = storage.trajectories()
    other = ReplayBuffer(40, frame_stack=3)
    other.allocate(SMALL, seeded())
    other.insert_data_slice(storage.get_all_buffer_data())
    observation = piece.observation
    assert isinstance(observation, Tensor)
    actions = piece.action.tolist()
    assert actions == list(range(40 - len(actions), 40))
    assert size <= len(actions) == len(storage) == len(other)
    expected = [[action - 2, action - 1, action] for action in [*actions, 40]]
    assert observation.flatten(1).tolist() == expected
    assert {action: now for action, (now, _) in _drawn(other).items()} == dict(
        zip(actions, expected[:-1], strict=True)
    )


def test_goals_of_rows_without_their_older_frames_are_not_taken() -> None:
    """Of 40 steps the newest 12 are drawn, 28 to 39, after which goals 29 to 40 were achieved."""
    storages = _with_goals(), _with_goals()
    for step in range(40):
        storages[0].insert_transition(_with_goal(step))
        if step % 5 == 0:
            list(storages[0].generate_batches(1, 4))  # where episodes begin is found out by and by
    storages[1].load_state_dict(storages[0].state_dict())
    for storage in storages:
        (batch,) = storage.generate_batches(1, 2000)
        assert isinstance(batch.observation, Mapping)
        assert set(batch.action.tolist()) == set(range(28, 40))
        assert set(batch.observation["desired_goal"].flatten().tolist()) == set(range(29, 41))


def test_goals_are_no_stacks_of_frames() -> None:
    """Images that are goals are stored whole, even where they look like stacks."""
    image = TensorSpec((3, 2, 2, 1), torch.uint8)
    goals = {"achieved_goal": image, "desired_goal": image}

    def allocated(observation: Mapping[str, TensorSpec], frame_stack: int | None) -> ReplayBuffer:
        storage = ReplayBuffer(
            60,
            frame_stack=frame_stack,
            hindsight=HindsightConfig(),
            her_function=lambda achieved, desired, info: achieved[..., 0, 0, 0],
        )
        storage.allocate(replace(SMALL, observation=observation), seeded())
        return storage

    with pytest.raises(ConfigError, match="frame_stack=3 needs an image"):
        allocated(goals, 3)
    frames, whole = (allocated({"camera": image, **goals}, size) for size in (3, None))
    rows = 60 + 1
    per_row = 1 - 2 * 4  # a depth, and of three frames one
    assert frames.nbytes == (rows + 2) * (whole.nbytes // rows + per_row)


def test_entries_that_are_no_stacks_are_stored_whole() -> None:
    image = TensorSpec((4, 5, 5), torch.uint8)
    spec = StorageSpec(
        {"camera": image, "mask": image}, TensorSpec((), torch.int64), 1, {}, {}, CPU
    )
    frames, one_whole = (
        ReplayBuffer(40, frame_stack=4, unstacked=names) for names in ((), ("mask",))
    )
    for storage in (frames, one_whole):
        storage.allocate(spec, seeded())
    assert one_whole.nbytes - frames.nbytes == (40 + 1 + 3) * 3 * 25  # three more frames per row
    with pytest.raises(ConfigError, match=r"no \['observation/masks'\]; it has .*camera"):
        ReplayBuffer(40, frame_stack=4, unstacked=("masks",)).allocate(spec, seeded())
    with pytest.raises(ConfigError, match=r"storage\.unstacked must be a list"):
        ReplayBuffer(40, frame_stack=4, unstacked="mask")
    with pytest.raises(ConfigError, match=r"without storage\.frame_stack; set that too"):
        ReplayBuffer(40, unstacked=("mask",))


def _with_goals() -> ReplayBuffer:
    """Return a buffer of stacks of four frames, and of goals that are all achieved ones."""
    goal = TensorSpec((1,), torch.float32)
    camera = TensorSpec((4, 2, 2), torch.uint8)
    leaves = {"camera": camera, "achieved_goal": goal, "desired_goal": goal}
    storage = ReplayBuffer(
        12,
        frame_stack=4,
        hindsight=HindsightConfig(strategy="episode", k=1e9),
        her_function=lambda achieved, desired, info: achieved[..., 0],
    )
    storage.allocate(StorageSpec(leaves, SMALL.action, 1, {}, {}, CPU), seeded())
    return storage


def _with_goal(step: int) -> Transition:
    """Return a step of one long episode, by which its own number plus one is achieved."""

    def shown(number: int) -> Mapping[str, Array]:
        frames = np.arange(number - 3, number + 1).clip(0).astype(np.uint8)
        return {
            "camera": np.tile(frames[None, :, None, None], (1, 1, 2, 2)),
            "achieved_goal": np.full((1, 1), number, np.float32),
            "desired_goal": np.full((1, 1), -1.0, np.float32),
        }

    still = _step(_stack(0), _stack(0), action=step, start=step == 0)
    return replace(still, observation=shown(step), next_observation=shown(step + 1))


@pytest.mark.parametrize(
    ("after", "final", "field"),
    [
        (_stack(2, 1, 3), None, "next_observation"),
        (_stack(5, 5, 5), _stack(1, 1, 3), "final_observation"),
    ],
)
def test_what_is_no_stack_is_refused(after: Array, final: Array | None, field: str) -> None:
    storage = _small()
    storage.insert_transition(_step(_stack(1, 1, 1), _stack(1, 1, 2), action=0, start=True))
    with pytest.raises(DataError, match=rf"transition\.{field}: in environments \[0\].*frame_sta"):
        storage.insert_transition(
            _step(_stack(1, 1, 2), after, action=1, terminated=final is not None, final=final)
        )
    assert len(storage) == 1


def test_a_failed_environment_may_end_where_it_stood() -> None:
    storage = _small()
    storage.insert_transition(_step(_stack(1, 1, 1), _stack(1, 1, 2), action=0, start=True))
    ended = _step(_stack(1, 1, 2), _stack(7, 7, 7), action=1, final=_stack(1, 1, 2))
    storage.insert_transition(replace(ended, truncated=np.array([True])))
    assert len(storage) == 2


@pytest.mark.parametrize(
    ("shape", "frame_stack"), [((84, 84, 4), 4), ((4,), 4), ((4, 84, 84), 3), ((), 2)]
)
def test_observations_without_stacks_are_refused(shape: tuple[int, ...], frame_stack: int) -> None:
    spec = StorageSpec(TensorSpec(shape, torch.uint8), ATARI.action, 1, {}, {}, CPU)
    with pytest.raises(ConfigError, match=rf"frame_stack={frame_stack} needs an observation whose"):
        ReplayBuffer(20, frame_stack=frame_stack).allocate(spec, seeded())
    leaves = {"a": TensorSpec((frame_stack, 2), torch.uint8), "b": TensorSpec(shape, torch.uint8)}
    spec = StorageSpec(leaves, ATARI.action, 1, {}, {}, CPU)
    with pytest.raises(ConfigError, match=r"needs an image \(rank 3 or 4\) of the dict"):
        ReplayBuffer(20, frame_stack=frame_stack).allocate(spec, seeded())


@pytest.mark.parametrize("frame_stack", [0, 1, True, 256, 2.0])
def test_numbers_of_frames_out_of_range_are_refused(frame_stack: object) -> None:
    with pytest.raises(ConfigError, match=r"frame_stack must be a whole number in \[2, 255\]"):
        ReplayBuffer(20, frame_stack=frame_stack)  # type: ignore[arg-type]


def test_a_million_stacks_take_one_frame_each() -> None:
    storage = ReplayBuffer(1000, frame_stack=4)
    storage.allocate(ATARI, seeded())
    row = 84 * 84 + 8 + 4 + 1 + 1  # frame, action, reward, flags, depth
    assert storage.nbytes == (1000 + 1 + 3) * row
    assert storage.nbytes / 1004 * 1_000_004 <= 7.2e9


def test_files_hold_what_memory_does(tmp_path: Path) -> None:
    life = STACKED_LIVES["same_step_dict_box"]
    in_memory = ReplayBuffer(150, n_step=3, frame_stack=3)
    in_files = ReplayBuffer(150, n_step=3, frame_stack=3, mmap_dir=str(tmp_path))
    for storage in (in_memory, in_files):
        storage.allocate(life.spec(), seeded())
        for transition in life.transitions(100):
            storage.insert_transition(transition)
    for theirs, ours in zip(
        in_files.generate_batches(2, 32), in_memory.generate_batches(2, 32), strict=True
    ):
        check_same_state(columns_of(theirs), columns_of(ours))


@pytest.mark.parametrize("name", ["same_step_interrupted", "next_step_recurrent"])
def test_tensors_take_what_arrays_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere than on the CPU there are tensors only; here they are on the CPU all the same."""
    life = STACKED_LIVES[name]
    usual = columns_module._fast
    storages = []
    for host in (None, columns_module.HOST_COLUMNS):
        if host:
            monkeypatch.setattr(
                columns_module,
                "_fast",
                lambda n, part, host=host: usual(n, part) if n in host else part,
            )
        storage = ReplayBuffer(60, n_step=2, frame_stack=3, sequences=SequenceConfig(length=6))
        storage.allocate(life.spec(), seeded())
        storages.append(storage)
    for number, transition in enumerate(life.transitions(90)):
        for storage in storages:
            storage.insert_transition(transition)
            if number == 40:
                storage.insert_data_slice(storage.get_data_slice(3, 9))
        check_same_state(stored(storages[1]), stored(storages[0]))
    batches = [columns_of(next(storage.generate_batches(1, 32))) for storage in storages]
    check_same_state(batches[1], batches[0])
