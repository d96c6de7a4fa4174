"""A replay buffer alone in files: saved, loaded, opened, and taken over by another one."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rl_core.demonstrations import insert_trajectories
from rl_core.errors import CheckpointError, ConfigError
from rl_core.storage_files import open_storage
from rl_core.testing.replay import RandomTransitionScript, ReferenceGoals
from rl_core.testing.replay.goals import WITHOUT_ENDS
from rl_core.testing.stateful import check_same_state
from rl_core.testing.storages import seeded, stored
from rl_storages import HindsightConfig, PrioritizedConfig, ReplayBuffer

SCRIPT = RandomTransitionScript(seed=3, observation="dict", action="box")


def _buffer(size: int = 40, num_envs: int = 2, steps: int = 0) -> ReplayBuffer:
    buffer = ReplayBuffer(size, n_step=3, prioritized=PrioritizedConfig(alpha=0.7))
    buffer.allocate(replace(SCRIPT.spec(), num_envs=num_envs), seeded())
    for transition in SCRIPT.transitions(steps):
        buffer.insert_transition(transition)
    return buffer


def test_what_is_saved_is_loaded_bit_for_bit(tmp_path: Path) -> None:
    buffer, other = _buffer(steps=55), _buffer()
    assert buffer.save(tmp_path / "below" / "demos") == tmp_path / "below" / "demos"
    other.load(tmp_path / "below" / "demos")
    check_same_state(other.state_dict(), buffer.state_dict())
    (batch,), (again,) = (list(each.generate_batches(1, 20)) for each in (buffer, other))
    assert torch.equal(batch.action, again.action)


def test_it_is_opened_without_anything_else(tmp_path: Path) -> None:
    buffer = _buffer(steps=55)
    opened = open_storage(buffer.save(tmp_path / "demos"))
    assert isinstance(opened, ReplayBuffer)
    assert (opened.size, opened.n_step) == (40, 3)
    assert opened.prioritized == PrioritizedConfig(alpha=0.7)
    assert opened.spec == buffer.spec
    check_same_state(stored(opened), stored(buffer))


def test_what_is_not_there_any_more_is_not_needed_to_open_it(tmp_path: Path) -> None:
    """Neither the files that it lay in, nor an environment that rewards other goals."""
    script = RandomTransitionScript(seed=3, observation="goals")
    goals = ReferenceGoals("future", WITHOUT_ENDS)
    rows = tmp_path / "rows"
    rows.mkdir()
    buffer = ReplayBuffer(40, hindsight=HindsightConfig(), mmap_dir=str(rows))
    buffer.allocate(replace(script.spec(), goal_functions=lambda: goals.functions), seeded())
    for transition in script.transitions(55):
        buffer.insert_transition(transition)
    saved = buffer.save(tmp_path / "demos")
    shutil.rmtree(rows)
    opened = open_storage(saved)
    assert isinstance(opened, ReplayBuffer)
    assert (opened.size, opened.hindsight, opened.mmap_dir) == (40, None, None)
    check_same_state(stored(opened), stored(buffer))


def test_another_size_takes_it_over_as_trajectories(tmp_path: Path) -> None:
    buffer = _buffer(steps=55)
    buffer.save(tmp_path / "demos")
    for size, num_envs in ((41, 2), (40, 3)):
        with pytest.raises(CheckpointError, match=r"rows per environment|num_envs 2, but this one"):
            _buffer(size, num_envs).load(tmp_path / "demos")
    large = _buffer(200, num_envs=3)
    insert_trajectories(large, open_storage(tmp_path / "demos").trajectories())
    assert large.num_transitions == buffer.num_transitions


def test_no_save_overwrites_and_no_damage_is_loaded(tmp_path: Path) -> None:
    buffer = _buffer(steps=9)
    path = buffer.save(tmp_path / "demos")
    with pytest.raises(CheckpointError, match="exists already"):
        buffer.save(path)
    tensors = path / "tensors.safetensors"
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(content)
    before = stored(buffer)
    with pytest.raises(CheckpointError, match="does not match the SHA-256"):
        buffer.load(path)
    check_same_state(stored(buffer), before)


def test_nothing_is_saved_or_loaded_before_there_is_something(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not allocated yet and holds nothing to save"):
        ReplayBuffer(10).save(tmp_path / "demos")
    path = _buffer(steps=3).save(tmp_path / "demos")
    with pytest.raises(ConfigError, match="not allocated yet; load when its Trainer was made"):
        ReplayBuffer(10).load(path)
    with pytest.raises(CheckpointError, match="not a checkpoint directory"):
        _buffer().load(tmp_path / "other")
