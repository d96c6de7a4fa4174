"""A replay buffer alone in files: saved, loaded, opened, and taken over by another one."""

import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from rl_core.batch import Trajectory, Transition
from rl_core.errors import CheckpointError, ConfigError
from rl_core.storage import HasTrajectories, StorageSpec, TensorSpec
from rl_core.types import Array, ArrayObservation, StateDict
from rl_storages import HindsightConfig, PrioritizedConfig, ReplayBuffer, SequenceConfig
from rl_testing.stateful import check_same_state
from rl_testing.storages import seeded, stored
from rl_testing.transitions import TransitionScript
from rl_train.checkpoint import save_checkpoint
from rl_train.demonstrations import insert_trajectories
from rl_train.storage_files import load_storage, open_storage, save_storage, state_of
from support.goals import WITHOUT_ENDS, ReferenceGoals

SCRIPT = TransitionScript(seed=3, num_envs=2, observation="dict", action="box")


def _buffer(size: int = 40, num_envs: int = 2, steps: int = 0) -> ReplayBuffer:
    buffer = ReplayBuffer(size, n_step=3, prioritized=PrioritizedConfig(alpha=0.7))
    buffer.allocate(replace(SCRIPT.spec(), num_envs=num_envs), seeded())
    for transition in SCRIPT.transitions(steps):
        buffer.insert_transition(transition)
    return buffer


def test_what_is_saved_is_loaded_bit_for_bit(tmp_path: Path) -> None:
    buffer, other = _buffer(steps=55), _buffer()
    directory = tmp_path / "below" / "demos"
    assert save_storage(buffer, str(directory)) == directory
    load_storage(other, str(directory))
    buffer.mark_boundary()  # as nothing goes on from what was loaded
    check_same_state(other.state_dict(), buffer.state_dict())
    (batch,), (again,) = (list(each.generate_batches(1, 20)) for each in (buffer, other))
    assert torch.equal(batch.action, again.action)


def test_it_is_opened_without_anything_else(tmp_path: Path) -> None:
    buffer = _buffer(steps=55)
    opened = open_storage(save_storage(buffer, tmp_path / "demos"))
    assert isinstance(opened, ReplayBuffer)
    assert (opened.size, opened.n_step) == (40, 3)
    assert opened.prioritized == PrioritizedConfig(alpha=0.7)
    assert opened.spec == buffer.spec
    check_same_state(stored(opened), stored(buffer))


def test_what_is_not_there_any_more_is_not_needed_to_open_it(tmp_path: Path) -> None:
    """Neither the files that it lay in, nor an environment that rewards other goals."""
    script = TransitionScript(seed=3, num_envs=2, observation="goals")
    goals = ReferenceGoals("future", WITHOUT_ENDS)
    rows = tmp_path / "rows"
    rows.mkdir()
    buffer = ReplayBuffer(
        40, hindsight=HindsightConfig(), mmap_dir=str(rows), her_function=goals.functions
    )
    buffer.allocate(script.spec(), seeded())
    for transition in script.transitions(55):
        buffer.insert_transition(transition)
    assert buffer.uses_objects
    saved = save_storage(buffer, tmp_path / "demos")
    shutil.rmtree(rows)
    opened = open_storage(saved)
    assert isinstance(opened, ReplayBuffer)
    assert (opened.size, opened.hindsight, opened.mmap_dir) == (40, None, None)
    check_same_state(stored(opened), stored(buffer))


def test_another_size_takes_it_over_as_trajectories(tmp_path: Path) -> None:
    buffer = _buffer(steps=55)
    save_storage(buffer, tmp_path / "demos")
    for size, num_envs in ((41, 2), (40, 3)):
        with pytest.raises(
            CheckpointError, match=r"rows per environment|num_envs 2, but this one has"
        ):
            load_storage(_buffer(size, num_envs), tmp_path / "demos")
    large = _buffer(200, num_envs=3)
    opened = open_storage(tmp_path / "demos")
    assert isinstance(opened, HasTrajectories)
    insert_trajectories(large, opened.trajectories())
    assert large.num_transitions == buffer.num_transitions


def test_demonstrations_that_do_not_fit_beside_each_other_are_refused() -> None:
    """One environment lives through a long episode, the other through many short ones."""
    lengths = [100] + [2] * 50
    for size, refused in ((204, True), (400, False)):
        buffer = ReplayBuffer(size)
        buffer.allocate(
            StorageSpec(
                observation=TensorSpec((1,), torch.float32),
                action=TensorSpec((), torch.int64),
                num_envs=2,
                state_sizes={},
                extras={},
                device=torch.device("cpu"),
            ),
            seeded(),
        )
        trajectories = [
            Trajectory(
                torch.zeros(n + 1, 1), torch.zeros(n, dtype=torch.int64), torch.ones(n), True
            )
            for n in lengths
        ]
        if refused:
            with pytest.raises(ConfigError, match="too small: 200 demonstrated transitions do not"):
                insert_trajectories(buffer, trajectories)
        else:
            assert insert_trajectories(buffer, trajectories) == buffer.num_transitions == 200


@pytest.mark.parametrize(("saved", "other"), [((8, 0.5), (8, 0.0)), ((8, 0.0), (8, 0.5))])
def test_other_sequences_are_refused(
    tmp_path: Path, saved: tuple[int, float], other: tuple[int, float]
) -> None:
    script = TransitionScript(seed=3, num_envs=2, recurrent=True)

    def buffer(length: int, overlap: float) -> ReplayBuffer:
        sequences = SequenceConfig(length=length, overlap=overlap)
        made = ReplayBuffer(40, sequences=sequences)
        made.allocate(script.spec(), seeded())
        return made

    filled = buffer(*saved)
    for transition in script.transitions(30):
        filled.insert_transition(transition)
    path = save_storage(filled, tmp_path / "sequences")
    like, unlike = buffer(*saved), buffer(*other)
    load_storage(like, path)
    check_same_state(stored(like), stored(filled))
    with pytest.raises(CheckpointError, match="was cut into other sequences; resume with the same"):
        load_storage(unlike, path)
    assert unlike.num_transitions == 0


@pytest.mark.parametrize(("size", "num_envs"), [(60, 2), (40, 3)])
def test_another_size_is_refused_with_what_to_do(tmp_path: Path, size: int, num_envs: int) -> None:
    save_storage(_buffer(steps=55), tmp_path / "demos")
    with pytest.raises(CheckpointError, match=r"give (the|its) directory as trainer\.demonstr"):
        load_storage(_buffer(size, num_envs), tmp_path / "demos")


def test_other_draws_are_refused_with_what_differs(tmp_path: Path) -> None:
    path = save_storage(_buffer(steps=9), tmp_path / "demos")
    uniform = ReplayBuffer(40, n_step=3)
    uniform.allocate(SCRIPT.spec(), seeded())
    with pytest.raises(CheckpointError, match=r"built with prioritized = .*, this one with prior"):
        load_storage(uniform, path)


def test_what_no_storage_was_saved_in_is_named(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for read in (partial(load_storage, _buffer(steps=9)), open_storage):
        with pytest.raises(CheckpointError, match=r"none is not a directory; expected a check"):
            read(tmp_path / "none")
        with pytest.raises(CheckpointError, match=r"is a run, not a storage .*demonstrations"):
            read(tmp_path / "run")


def test_no_save_overwrites_and_no_damage_is_loaded(tmp_path: Path) -> None:
    buffer = _buffer(steps=9)
    path = save_storage(buffer, tmp_path / "demos")
    with pytest.raises(CheckpointError, match="exists already and is not overwritten; save into a"):
        save_storage(buffer, path)
    tensors = path / "tensors.safetensors"
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(content)
    before = stored(buffer)
    with pytest.raises(CheckpointError, match="does not match the SHA-256"):
        load_storage(buffer, path)
    check_same_state(stored(buffer), before)


def test_nothing_is_saved_or_loaded_before_there_is_something(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not allocated yet"):
        save_storage(ReplayBuffer(10), tmp_path / "demos")
    path = save_storage(_buffer(steps=3), tmp_path / "demos")
    with pytest.raises(ConfigError, match="not allocated yet"):
        load_storage(ReplayBuffer(10), path)
    with pytest.raises(CheckpointError, match="other is not a directory"):
        load_storage(_buffer(), tmp_path / "other")


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc what memory is taken")
def test_loading_into_files_takes_no_memory(tmp_path: Path) -> None:
    """So that what is larger than the memory can be saved and loaded."""
    observation = TensorSpec((64, 64, 3), torch.uint8)
    spec = StorageSpec(observation, TensorSpec((1,), torch.float32), 1, {}, {}, torch.device("cpu"))

    taken = []

    class Watched(ReplayBuffer):
        def load_state_dict(self, state: StateDict) -> None:
            super().load_state_dict(state)
            taken.append(_anonymous_bytes())  # while all that was read is there

    def in_files() -> ReplayBuffer:
        storage = Watched(2000, mmap_dir=str(tmp_path))
        storage.allocate(spec, seeded())
        return storage

    storage, restored = in_files(), in_files()
    frames = np.arange(2002 * 64 * 64 * 3).astype(np.uint8).reshape(2002, 1, 64, 64, 3)
    for frame, after in pairwise(frames):
        storage.insert_transition(_step_of(frame, after))
    save_checkpoint(tmp_path, 1, state_of(storage), recipe=None, metadata={}, name="saved")
    before = _anonymous_bytes()
    load_storage(restored, tmp_path / "saved")
    assert taken[0] - before < storage.nbytes // 8
    check_same_state(stored(restored), stored(storage))


def _step_of(observation: Array, after: Array) -> Transition:
    no = np.array([False])
    return Transition(
        observation=observation,
        action=torch.zeros(1, 1),
        reward=np.zeros(1, np.float32),
        terminated=no,
        truncated=no,
        valid=~no,
        episode_start=no,
        next_observation=after,
        final_observation=None,
        state={},
        extras={},
    )


def _anonymous_bytes() -> int:
    """Return how much memory is held that no file stands for."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * int(rollup.split("Anonymous:")[1].split()[0])


CPU = torch.device("cpu")


SMALL = StorageSpec(TensorSpec((3, 1), torch.float32), TensorSpec((), torch.int64), 1, {}, {}, CPU)


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


def test_images_that_are_goals_are_opened_as_they_were_saved(tmp_path: Path) -> None:
    image = TensorSpec((4, 2, 2), torch.uint8)
    goals = ReferenceGoals("future", WITHOUT_ENDS)
    spec = replace(
        SMALL,
        observation={"camera": image, "aim": image, "achieved_goal": image},
    )
    storage = ReplayBuffer(
        40,
        hindsight=HindsightConfig(desired_goal="aim"),
        frame_stack=4,
        her_function=goals.functions,
    )
    storage.allocate(spec, seeded())

    def shown(observation: ArrayObservation) -> Mapping[str, Array]:
        assert isinstance(observation, Mapping)
        camera = np.asarray(observation["camera"])
        return {"camera": camera, "aim": camera[:, ::-1].copy(), "achieved_goal": 255 - camera}

    for step in range(20):
        given = _with_goal(step)
        observation, following = shown(given.observation), shown(given.next_observation)
        storage.insert_transition(
            replace(given, observation=observation, next_observation=following)
        )
    opened = open_storage(save_storage(storage, tmp_path / "goals"))
    assert isinstance(opened, ReplayBuffer)
    assert opened.unstacked == ("achieved_goal", "aim")
    check_same_state(stored(opened), stored(storage))


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
