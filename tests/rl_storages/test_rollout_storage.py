from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_core.batch import PREPARED_COLUMNS, RolloutBatch, Transition
from rl_core.errors import CheckpointError, ConfigError, DataError
from rl_core.storage import StorageSpec, TensorSpec
from rl_storages import RolloutStorage
from rl_testing.rollout_storages import RolloutStorageSuite
from rl_testing.stateful import check_same_state, copy_state
from rl_testing.storages import SCRIPTS, seeded, stored
from rl_testing.transitions import TransitionScript, misfits


class TestRolloutStorage(RolloutStorageSuite):
    def make_storage(self) -> RolloutStorage:
        return RolloutStorage(11)


class TestRolloutStorageOfOtherLength(RolloutStorageSuite):
    """The last row ends episodes, and more samples than fit one minibatch evenly."""

    def make_storage(self) -> RolloutStorage:
        return RolloutStorage(8)


class TestSequences(RolloutStorageSuite):
    """Minibatches of a recurrent actor are cut from each environment's rows."""

    sequence_length = 4

    def make_storage(self) -> RolloutStorage:
        return _OnlyMemoriesNeedSequences(8, sequence_length=4)


class _OnlyMemoriesNeedSequences(RolloutStorage):
    """Leaves the length out for actors without memory, which would be refused."""

    def allocate(self, spec: StorageSpec, generator: torch.Generator) -> None:
        if not spec.state_sizes:
            self.sequence_length = None
        super().allocate(spec, generator)


SAME_STEP = TransitionScript(num_envs=2)
NEXT_STEP = TransitionScript(num_envs=2, autoreset="next_step")


def _filled(script: TransitionScript, num_steps: int, seed: int = 0) -> RolloutStorage:
    storage = RolloutStorage(num_steps)
    storage.allocate(script.spec(), torch.Generator().manual_seed(seed))
    for transition in script.transitions(num_steps):
        storage.insert_transition(transition)
    return storage


def _batches(storage: RolloutStorage, num_minibatches: int) -> list[RolloutBatch]:
    reward = storage.rollout().reward
    storage.attach(dict.fromkeys(PREPARED_COLUMNS, reward))
    return list(storage.generate_batches(num_minibatches, None))


def _rows(column: object) -> list[object]:
    assert isinstance(column, Tensor)
    rows: list[object] = column.tolist()
    return rows


# Environment 0 terminates after 3 steps, then is cut after 1; environment 1 is cut after 1 step.


def test_a_same_step_rollout_by_hand() -> None:
    rollout = _filled(SAME_STEP, 4).rollout()
    assert _rows(rollout.observation) == [
        [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]],
        [[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]],
        [[0.0, 0.0, 2.0], [1.0, 1.0, 1.0]],
        [[0.0, 1.0, 0.0], [1.0, 1.0, 2.0]],
    ]
    assert _rows(rollout.next_observation) == [[0.0, 2.0, 0.0], [1.0, 1.0, 3.0]]
    assert _rows(rollout.reward) == [[1.0, 1.0], [2.0, 101.0], [3.0, 102.0], [101.0, 103.0]]
    assert _rows(rollout.terminated.nonzero()) == [[2, 0]]
    assert _rows(rollout.truncated.nonzero()) == [[0, 1], [3, 0]]
    assert _rows(rollout.episode_start.nonzero()) == [[0, 0], [0, 1], [1, 1], [3, 0]]
    assert rollout.valid.all()
    assert _rows(rollout.final_index) == [[0, 1], [3, 0]]
    assert _rows(rollout.final_observation) == [[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]


def test_a_next_step_rollout_by_hand() -> None:
    rollout = _filled(NEXT_STEP, 4).rollout()
    assert _rows(rollout.observation) == [
        [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]],
        [[0.0, 0.0, 1.0], [1.0, 0.0, 1.0]],
        [[0.0, 0.0, 2.0], [1.0, 1.0, 0.0]],
        [[0.0, 0.0, 3.0], [1.0, 1.0, 1.0]],
    ]
    assert _rows(rollout.next_observation) == [[0.0, 1.0, 0.0], [1.0, 1.0, 2.0]]
    assert _rows((~rollout.valid).nonzero()) == [[1, 1], [3, 0]]
    assert _rows(rollout.reward) == [[1.0, 1.0], [2.0, 0.0], [3.0, 101.0], [0.0, 102.0]]
    assert _rows(rollout.terminated.nonzero()) == [[2, 0]]
    assert _rows(rollout.truncated.nonzero()) == [[0, 1]]
    assert _rows(rollout.episode_start.nonzero()) == [[0, 0], [0, 1], [2, 1]]
    assert rollout.final_index.shape == (0, 2)
    assert isinstance(rollout.final_observation, Tensor)
    assert rollout.final_observation.shape == (0, 3)


@pytest.mark.parametrize("script", [SAME_STEP, NEXT_STEP])
def test_each_observation_is_stored_once(script: TransitionScript) -> None:
    num_steps = 50
    storage = _filled(script, num_steps)
    data = storage.get_all_buffer_data()
    entries = sum(
        column.numel() // 3 for name, column in data.items() if name.endswith("observation")
    )
    cut = int(storage.rollout().truncated.sum()) if script is SAME_STEP else 0
    assert entries == num_steps * 2 + 2 + cut


def test_memory_is_allocated_once() -> None:
    storage = _filled(SAME_STEP, 4)

    def addresses() -> list[int]:
        rollout = storage.rollout()
        assert isinstance(rollout.observation, Tensor)
        return [rollout.observation.data_ptr(), rollout.action.data_ptr()]

    first = addresses()
    storage.after_update()
    for transition in SAME_STEP.transitions(4):
        storage.insert_transition(transition)
    assert addresses() == first


RECURRENT = TransitionScript(num_envs=2, recurrent=True)


def _recurrent(num_steps: int, sequence_length: int | None, num_envs: int = 2) -> RolloutStorage:
    script = TransitionScript(num_envs=num_envs, recurrent=True)
    storage = RolloutStorage(num_steps, sequence_length=sequence_length)
    storage.allocate(script.spec(), torch.Generator().manual_seed(0))
    for transition in script.transitions(num_steps):
        storage.insert_transition(transition)
    storage.attach(dict.fromkeys(PREPARED_COLUMNS, storage.rollout().reward))
    return storage


def test_sequences_by_hand() -> None:
    (batch,) = _recurrent(4, 2).generate_batches(1, None)
    assert isinstance(batch.observation, Tensor)
    assert batch.observation.shape == (2, 4, 3)
    found = sorted(
        zip(
            _rows(batch.state["memory"]),
            _rows(batch.observation.transpose(0, 1)),
            _rows(batch.episode_start.T),
            _rows(batch.advantage.T),
            strict=True,
        )
    )
    # The memory is the sum of the observations seen since its episode began.
    assert found == [
        ([0.0, 0.0, 0.0], [[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]], [True, False], [1.0, 2.0]),
        ([0.0, 0.0, 0.0], [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]], [True, True], [1.0, 101.0]),
        ([0.0, 0.0, 1.0], [[0.0, 0.0, 2.0], [0.0, 1.0, 0.0]], [False, True], [3.0, 101.0]),
        ([1.0, 1.0, 0.0], [[1.0, 1.0, 1.0], [1.0, 1.0, 2.0]], [False, False], [102.0, 103.0]),
    ]


def test_sequences_are_shuffled_over_time_and_environments() -> None:
    storage = _recurrent(12, 3, num_envs=4)
    orders = []
    for _ in range(2):
        batches = list(storage.generate_batches(4, None))
        assert [batch.mask.shape for batch in batches] == [(3, 4)] * 4
        orders.append([sequence for batch in batches for sequence in batch.action.T.tolist()])
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


def test_sequences_are_padded_where_they_do_not_divide() -> None:
    batches = list(_recurrent(6, 2, num_envs=1).generate_batches(2, None))
    assert [batch.mask.tolist() for batch in batches] == [[[1.0, 1.0]] * 2, [[1.0, 0.0]] * 2]


@pytest.mark.parametrize(
    ("num_steps", "expected"),
    [(32, 16), (16, 16), (24, 12), (100, 10), (8, 8), (34, 17), (38, 19), (97, 97), (5, 5)],
)
def test_sequences_that_nobody_sized_have_about_sixteen_steps(
    num_steps: int, expected: int
) -> None:
    (batch,) = _recurrent(num_steps, None).generate_batches(1, None)
    assert batch.mask.shape == (expected, 2 * num_steps // expected)


def test_the_smallest_minibatch_has_as_many_samples_as_are_learned_from() -> None:
    storage = _recurrent(8, 4, num_envs=5)  # ten sequences of four steps
    for minibatch_size in (12, None):  # four minibatches, of three sequences and of two
        number = 4 if minibatch_size is None else None
        storage.check_batches(number, minibatch_size, 8)
        with pytest.raises(ConfigError, match=r"4 minibatches .* only 8 in the smallest"):
            storage.check_batches(number, minibatch_size, 9)


def test_a_minibatch_is_a_whole_number_of_sequences() -> None:
    storage = _recurrent(8, 4, num_envs=4)
    for minibatch_size, shapes in (
        (4, [(4, 1)] * 8),
        (8, [(4, 2)] * 4),
        (11, [(4, 2)] * 4),
        (12, [(4, 3)] * 3),
    ):
        batches = list(storage.generate_batches(None, minibatch_size))
        assert [tuple(batch.mask.shape) for batch in batches] == shapes
    with pytest.raises(
        ConfigError, match="minibatch_size=3 has no room for one sequence of 4 steps; use at le"
    ):
        list(storage.generate_batches(None, 3))
    with pytest.raises(ConfigError, match=r"num_minibatches=9 is more than the 8 sequences of 4"):
        list(storage.generate_batches(9, None))


def test_a_rollout_that_no_memory_holds_is_refused() -> None:
    storage = RolloutStorage(10**15)
    with pytest.raises(ConfigError, match=r"num_steps=1000000000000000: there is no memory for so"):
        storage.allocate(_recurrent(8, 4).spec, torch.Generator())  # type: ignore[arg-type]  # allocated


@pytest.mark.parametrize("numbers", [(0, None), (-1, None), (None, 0), (2.0, None)])
def test_a_rollout_makes_a_whole_number_of_minibatches(numbers: Any) -> None:
    storage = _filled(SAME_STEP, 4)
    with pytest.raises(ConfigError, match=r"mini.*whole number of at least 1"):
        storage.check_batches(*numbers)
    with pytest.raises(ConfigError, match=r"mini.*whole number of at least 1"):
        next(storage.generate_batches(*numbers))


def test_a_rollout_is_a_whole_number_of_sequences() -> None:
    for length, closest in ((5, 4), (7, 8)):
        with pytest.raises(
            ConfigError, match=rf"sequence_length={length} does not divide .*=128; .* is {closest}$"
        ):
            RolloutStorage(128, sequence_length=length)
    storage = _recurrent(8, 4)
    data = storage.get_data_slice(0, 6)
    storage.reset()
    storage.insert_data_slice(data)
    storage.attach(dict.fromkeys(PREPARED_COLUMNS, torch.zeros(6, 2)))
    with pytest.raises(ConfigError, match="is not a whole number of sequences of 4 steps"):
        list(storage.generate_batches(1, None))


def test_sequences_without_memory_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"sequence_length=4, but the actor is not recurrent"):
        RolloutStorage(8, sequence_length=4).allocate(SAME_STEP.spec(), torch.Generator())


def test_padding_is_masked_and_spread() -> None:
    batches = _batches(_filled(SAME_STEP, 5), 4)
    assert [batch.mask.tolist() for batch in batches] == [
        [1.0, 1.0, 1.0],
        [1.0, 1.0, 1.0],
        [1.0, 1.0, 0.0],
        [1.0, 1.0, 0.0],
    ]


def test_a_slice_counts_from_its_own_first_row() -> None:
    data = _filled(SAME_STEP, 4).get_data_slice(2, 4)
    assert _rows(data["reward"]) == [[3.0, 102.0], [101.0, 103.0]]
    assert _rows(data["final_index"]) == [[1, 0]]
    assert _rows(data["final/observation"]) == [[0.0, 1.0, 1.0]]
    assert _rows(data["next/observation"]) == [[0.0, 2.0, 0.0], [1.0, 1.0, 3.0]]
    first = _filled(SAME_STEP, 4).get_data_slice(0, 2)
    assert _rows(first["next/observation"]) == [[0.0, 0.0, 2.0], [1.0, 1.0, 1.0]]


def test_a_boundary_by_hand() -> None:
    storage = RolloutStorage(4)
    storage.allocate(SAME_STEP.spec(), torch.Generator())
    worker = _filled(SAME_STEP, 4)
    storage.insert_data_slice(worker.get_data_slice(0, 2))
    storage.insert_data_slice(worker.get_data_slice(0, 2))
    rollout = storage.rollout()
    assert _rows(rollout.truncated.nonzero()) == [[0, 1], [1, 0], [1, 1], [2, 1]]
    found = {
        tuple(index): observation
        for index, observation in zip(
            rollout.final_index.tolist(), _rows(rollout.final_observation), strict=True
        )
    }
    assert found == {
        (0, 1): [1.0, 0.0, 1.0],
        (1, 0): [0.0, 0.0, 2.0],
        (1, 1): [1.0, 1.0, 1.0],
        (2, 1): [1.0, 0.0, 1.0],
    }


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("marks", [False, True])
def test_a_cut_off_episode_keeps_its_last_observation(truncated: bool, marks: bool) -> None:
    """Also one truncated in its own step, whose last observation the next row was to bring."""
    spec = TensorSpec((1,), torch.float32)
    storage = RolloutStorage(3)
    storage.allocate(StorageSpec(spec, spec, 1, {}, {}, torch.device("cpu")), torch.Generator())

    def insert(observation: float, following: float, *, ends: bool, starts: bool) -> None:
        def number(value: float) -> Any:
            return np.array([[value]], np.float32)

        flags = [np.array([flag]) for flag in (False, ends, True, starts)]
        reward = np.ones(1, np.float32)
        row = (number(observation), number(0.0), reward, *flags, number(following), None, {}, {})
        storage.insert_transition(Transition(*row))

    insert(0.0, 1.0, ends=False, starts=True)
    insert(1.0, 2.0, ends=truncated, starts=False)
    if marks:
        storage.mark_boundary()
    insert(100.0, 101.0, ends=False, starts=True)
    rollout = storage.rollout()
    assert _rows(rollout.truncated) == [[False], [True], [False]]
    assert _rows(rollout.final_index) == [[1, 0]]
    assert _rows(rollout.final_observation) == [[2.0]]


def test_a_recurrent_rollout_goes_on_with_new_episodes_after_a_boundary() -> None:
    storage = RolloutStorage(2)
    storage.allocate(RECURRENT.spec(), torch.Generator())
    (first,) = RECURRENT.transitions(1)
    storage.insert_transition(first)
    storage.mark_boundary()
    storage.insert_transition(first)
    # Environment 1 is cut by itself in each step, environment 0 by the boundary.
    assert _rows(storage.rollout().truncated) == [[True, True], [False, True]]


def test_consecutive_slices_leave_no_boundary() -> None:
    worker = _filled(SAME_STEP, 4)
    storage = RolloutStorage(4)
    storage.allocate(SAME_STEP.spec(), torch.Generator())
    for row in range(4):
        storage.insert_data_slice(worker.get_data_slice(row, row + 1))
    assert torch.equal(storage.rollout().truncated, worker.rollout().truncated)


def test_a_slice_after_a_terminated_episode_brings_what_follows_it() -> None:
    script = TransitionScript(num_envs=1)
    storage = RolloutStorage(5)
    storage.allocate(script.spec(), torch.Generator())
    for transition in script.transitions(3):  # the third step terminates, nothing is truncated
        storage.insert_transition(transition)
    storage.insert_data_slice(_filled(script, 2).get_data_slice(0, 2))
    rollout = storage.rollout()
    assert _rows(rollout.truncated.nonzero()) == []
    assert _rows(rollout.next_observation) == [[0.0, 0.0, 2.0]]


def test_actions_are_copied() -> None:
    storage = RolloutStorage(1)
    storage.allocate(SAME_STEP.spec(), torch.Generator())
    (transition,) = SAME_STEP.transitions(1)
    action = torch.tensor([1, 0])
    storage.insert_transition(replace(transition, action=action))
    action.zero_()
    assert _rows(storage.rollout().action) == [[1, 0]]


@pytest.mark.parametrize("as_slice", [False, True])
def test_columns_attached_before_the_last_row_are_not_used(as_slice: bool) -> None:
    whole = _filled(SAME_STEP, 4)
    storage = RolloutStorage(4)
    storage.allocate(SAME_STEP.spec(), torch.Generator())
    storage.insert_data_slice(whole.get_data_slice(0, 3))
    storage.attach(dict.fromkeys(PREPARED_COLUMNS, torch.zeros(3, 2)))
    if as_slice:
        storage.insert_data_slice(whole.get_data_slice(3, 4))
    else:
        storage.insert_transition(SAME_STEP.transitions(4)[3])
    with pytest.raises(ConfigError, match="attach the prepared columns"):
        list(storage.generate_batches(1, None))


@pytest.mark.parametrize("shape", [(3, 2), (4, 1), (4, 3), (8,)])
def test_columns_that_are_not_one_number_per_row_are_not_attached(shape: tuple[int, ...]) -> None:
    storage = _filled(SAME_STEP, 4)
    with pytest.raises(DataError, match=r"'advantage': expected leading shape \(4, 2\), got"):
        storage.attach({"advantage": torch.zeros(shape)})


@pytest.mark.parametrize("count", [0, 12.5, True, "16"])
def test_sizes_of_a_rollout_are_whole_numbers_from_one(count: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"^storage\.num_steps must be a whole number of at least"
    ):
        RolloutStorage(count)
    with pytest.raises(ConfigError, match=r"^storage\.sequence_length must be .*1, or None, got"):
        RolloutStorage(16, sequence_length=count)


def test_a_slice_of_unequal_parts_names_the_column() -> None:
    storage = _filled(SAME_STEP, 4)
    data = dict(storage.get_data_slice(0, 2))
    storage.reset()
    with pytest.raises(DataError, match=r"'final/observation'.*\(1, 3\).*\(0, 3\)"):
        storage.insert_data_slice({**data, "final/observation": torch.zeros(0, 3)})
    with pytest.raises(DataError, match="lacks column 'next/observation'"):
        storage.insert_data_slice({k: v for k, v in data.items() if k != "next/observation"})


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_transition_that_does_not_fit_is_refused(script: TransitionScript) -> None:
    """Nothing is broadcast or cast, and nothing written."""
    storage = RolloutStorage(num_steps=8)
    storage.allocate(script.spec(), seeded())
    first, second = script.transitions(2)
    storage.insert_transition(first)
    before = stored(storage)
    for misfit in misfits(second, with_state=script.recurrent):
        with pytest.raises(DataError):
            storage.insert_transition(misfit)
    check_same_state(stored(storage), before)
    storage.insert_transition(second)
    assert len(storage) == 2


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("observation", np.full((1, 3), 300.7)),
        ("observation", np.zeros((1, 3), np.uint8)),
        ("action", torch.zeros(1)),
        ("reward", np.float32(1.0)),
        ("terminated", np.array([True])),
    ],
)
def test_nothing_is_broadcast_or_cast(name: str, wrong: object) -> None:
    image, action = TensorSpec((3,), torch.uint8), TensorSpec((2,), torch.float32)
    storage = RolloutStorage(num_steps=8)
    storage.allocate(StorageSpec(image, action, 4, {}, {}, torch.device("cpu")), seeded())
    no, shown = np.zeros(4, np.bool_), np.zeros((4, 3), np.uint8)
    fits = Transition(
        observation=shown,
        action=torch.zeros(4, 2),
        reward=np.zeros(4, np.float32),
        terminated=no,
        truncated=no,
        valid=~no,
        episode_start=no,
        next_observation=shown,
        final_observation=None,
        state={},
        extras={},
    )
    with pytest.raises(DataError, match=rf"transition\.{name}: got .*; expected .* of shape \(4"):
        storage.insert_transition(replace(fits, **{name: wrong}))  # type: ignore[arg-type]  # wrong


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("valid", lambda c: c.view(torch.uint8).fill_(255).view(torch.bool), "neither true nor"),
        ("final_index", lambda c: c.fill_(10**9), r"beyond the 8 rows of 2 environments"),
        ("final_index", lambda c: c - 1, r"beyond the 8 rows"),
        ("final_index", lambda c: c.new_zeros(()), "shape"),
    ],
)
def test_a_state_that_cannot_be_is_refused(
    name: str, spoil: Callable[[Tensor], Tensor], message: str
) -> None:
    state: Any = copy_state(_filled(SAME_STEP, 8).state_dict())
    data = {**state["data"], name: spoil(state["data"][name].clone())}
    assert len(state["data"]["final_index"])
    with pytest.raises(CheckpointError, match=f"{name}.*{message}"):
        _filled(SAME_STEP, 8).load_state_dict({**state, "data": data})
    with pytest.raises(CheckpointError, match="has 8 rows; expected 7"):
        _filled(SAME_STEP, 8).load_state_dict({**state, "step": 7})
    with pytest.raises(CheckpointError, match="more"):
        _filled(SAME_STEP, 8).load_state_dict({**state, "more": 1})
