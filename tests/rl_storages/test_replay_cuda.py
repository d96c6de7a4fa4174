import pytest
import torch

from rl_core.batch import ReplayBatch
from rl_core.errors import ConfigError
from rl_storages import PrioritizedConfig, ReplayBuffer, SequenceConfig
from rl_testing.replay import LIVES
from rl_testing.stateful import check_same_state
from rl_testing.storages import columns_of, seeded
from rl_testing.transitions import TransitionScript
from support.stacks import STACKED_LIVES

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def _used(
    storage: ReplayBuffer, life: TransitionScript, device: str
) -> tuple[list[ReplayBatch], ReplayBuffer]:
    storage.allocate(life.spec(device), seeded())
    batches = []
    for number, transition in enumerate(life.transitions(120)):
        storage.insert_transition(transition)
        if number % 10 == 9:
            for batch in storage.generate_batches(3, 16):
                batches.append(batch)
                error = batch.reward[:, 0].abs() + 1.0
                storage.after_gradients(batch, {"td_error": error})
    return batches, storage


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
@pytest.mark.parametrize("prioritized", [None, PrioritizedConfig()])
@pytest.mark.parametrize("data_device", [None, "cpu"])
def test_a_gpu_gets_the_same_batches(
    life: TransitionScript, prioritized: PrioritizedConfig | None, data_device: str | None
) -> None:
    expected, ours = _used(ReplayBuffer(150, n_step=3, prioritized=prioritized), life, "cpu")
    storage = ReplayBuffer(150, n_step=3, prioritized=prioritized, data_device=data_device)
    actual, theirs = _used(storage, life, "cuda")
    for batch, on_cpu in zip(actual, expected, strict=True):
        columns = columns_of(batch)
        assert {column.device.type for column in columns.values()} == {"cuda"}
        moved = {name: column.cpu() for name, column in columns.items()}
        check_same_state(moved, columns_of(on_cpu))
    _, counts = theirs.new_observations()
    assert counts.device.type == "cuda"
    other = ReplayBuffer(150, n_step=3, prioritized=prioritized)
    other.allocate(life.spec(), seeded())
    other.load_state_dict(theirs.state_dict())
    other.insert_data_slice(theirs.get_data_slice(3, 9))
    theirs.insert_data_slice(ours.get_data_slice(3, 9))
    theirs.load_state_dict(other.state_dict())
    (batch,) = theirs.generate_batches(1, 8)
    (on_cpu,) = other.generate_batches(1, 8)
    moved = {name: column.cpu() for name, column in columns_of(batch).items()}
    check_same_state(moved, columns_of(on_cpu))


@pytest.mark.parametrize("name", ["same_step_interrupted", "next_step_recurrent"])
@pytest.mark.parametrize("data_device", [None, "cpu"])
def test_a_gpu_gets_the_same_sequences_of_stacks(name: str, data_device: str | None) -> None:
    life = STACKED_LIVES[name]
    batches = []
    for device in ("cpu", "cuda"):
        storage = ReplayBuffer(
            150,
            n_step=2,
            frame_stack=3,
            sequences=SequenceConfig(length=6),
            prioritized=PrioritizedConfig(),
            data_device=data_device if device == "cuda" else None,
        )
        storage.allocate(life.spec(device), seeded())
        drawn = []
        for number, transition in enumerate(life.transitions(120)):
            storage.insert_transition(transition)
            if number == 50:
                storage.insert_data_slice(storage.get_data_slice(3, 9))
            if number % 10 == 9:
                (batch,) = storage.generate_batches(1, 32)
                assert {part.device.type for part in columns_of(batch).values()} == {device}
                drawn.append({key: part.cpu() for key, part in columns_of(batch).items()})
                storage.after_gradients(batch, {"td_error": batch.reward.abs().sum(-1) + 1.0})
        batches.append(drawn)
    for theirs, ours in zip(batches[1], batches[0], strict=True):
        check_same_state(theirs, ours)


def test_more_than_a_gpu_has_is_refused() -> None:
    life = LIVES["same_step"]
    with pytest.raises(ConfigError, match="memory on cuda"):
        ReplayBuffer(10**12).allocate(life.spec("cuda"), seeded())
