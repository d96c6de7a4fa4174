"""Sequences of transitions, with numbers worked out by hand.

Observation, action and state of a step are the same number, so ``10 -> 11`` was acted on with
action 10 and a memory of 10. Its reward is a tenth.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_core.batch import ReplayBatch, Transition
from rl_core.config import construct, decode, options_of
from rl_core.errors import ConfigError, DataError
from rl_core.storage import StorageSpec, TensorSpec
from rl_core.types import StateDict
from rl_storages import PrioritizedConfig, ReplayBuffer, SequenceConfig
from rl_storages.replay.flags import SEQUENCE, SequenceStarts
from rl_testing.replay import (
    LIVES,
    ReferenceSequenceStorage,
    SequenceReplaySuite,
    check_sequences,
)
from rl_testing.stateful import check_same_state, copy_state
from rl_testing.storages import columns_of, seeded
from rl_testing.transitions import TransitionScript

NUMBER = TensorSpec((1,), torch.float32)
SPEC = StorageSpec(NUMBER, NUMBER, 1, {"memory": 1}, {}, torch.device("cpu"))
FOUR_AND_TWO = SequenceConfig(length=6, overlap=0.4)


def _step(now: float, after: float, *, start: bool = False, ends: str = "") -> Transition:
    column = np.array([[now]], np.float32)
    following = np.array([[after]], np.float32)
    return Transition(
        observation=column,
        action=torch.from_numpy(column),
        reward=column[0] / 10,
        terminated=np.array([ends == "terminated"]),
        truncated=np.array([ends == "truncated"]),
        valid=np.array([True]),
        episode_start=np.array([start]),
        next_observation=np.array([[99.0]], np.float32) if ends else following,
        final_observation=following if ends else None,
        state={"memory": torch.from_numpy(column)},
        extras={},
    )


def _buffer(*transitions: Transition, n_step: int = 1, size: int = 40) -> ReplayBuffer:
    storage = ReplayBuffer(size, n_step=n_step, sequences=FOUR_AND_TWO)
    storage.allocate(SPEC, seeded())
    for transition in transitions:
        storage.insert_transition(transition)
    return storage


def _all_of(storage: ReplayBuffer) -> ReplayBatch:
    """Return a batch with every sequence in it once, in the order of first actions."""
    (batch,) = storage.generate_batches(1, 400)
    _, places = np.unique(batch.action[0, :, 0].numpy(), return_index=True)
    (alone,) = storage.gather(batch.index[places, 0].unsqueeze(0))
    return alone


def _episode(first: int, steps: int, ends: str = "terminated") -> list[Transition]:
    return [
        _step(now, now + 1, start=now == first, ends=ends if now == first + steps - 1 else "")
        for now in range(first, first + steps)
    ]


def test_an_episode_is_cut_into_sequences() -> None:
    """Six transitions: four, and two after a burn-in of the last two of these."""
    batch = _all_of(_buffer(*_episode(10, 6), n_step=2))
    assert isinstance(batch.observation, Tensor)
    assert isinstance(batch.next_observation, Tensor)
    assert batch.mask.T.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch.action[:, 0, 0].tolist() == [10, 11, 12, 13]
    assert batch.action[:2, 1, 0].tolist() == [14, 15]
    assert batch.num_steps.T.tolist() == [[2, 2, 2, 2], [2, 1, 1, 1]]
    expected = [[1.0, 1.1], [1.1, 1.2], [1.2, 1.3], [1.3, 1.4]]
    torch.testing.assert_close(batch.reward[:, 0], torch.tensor(expected))
    torch.testing.assert_close(
        batch.reward[:, 1], torch.tensor([[1.4, 1.5], [1.5, 0.0], [0.0, 0.0], [0.0, 0.0]])
    )
    assert batch.terminated.T.tolist() == [[False] * 4, [True, True, False, False]]
    seen = torch.cat([batch.observation, batch.next_observation])[..., 0]
    assert seen[:, 0].tolist() == [10, 11, 12, 13, 14, 15]
    assert seen[:3, 1].tolist() == [14, 15, 16]
    start = batch.start
    assert start is not None
    assert isinstance(start.burn_in, Tensor)
    assert start.episode_start.T.tolist() == [[False, False, True], [False, False, False]]
    assert start.burn_in[:, 1, 0].tolist() == [12, 13]
    assert start.state["memory"].tolist() == [[0.0], [12.0]]


def test_an_environment_that_is_missing_from_a_slice_goes_on_with_its_sequence() -> None:
    starts = SequenceStarts(SequenceConfig(length=2, overlap=0.0), num_envs=2)
    starts.mark(np.array([[True, True]]))
    starts.mark(np.zeros((2, 2), np.bool_), num_rows=np.array([1, 0]))
    # the second transition of a sequence, and then the third and the second
    assert starts.mark(np.zeros((1, 2), np.bool_)).tolist() == [[SEQUENCE, 0]]


def test_a_burn_in_that_begins_with_the_episode_starts_from_zero() -> None:
    storage = ReplayBuffer(40, sequences=SequenceConfig(length=5, overlap=0.5))
    storage.allocate(SPEC, seeded())
    for transition in _episode(10, 5):
        storage.insert_transition(transition)
    start = _all_of(storage).start
    assert start is not None
    assert start.episode_start.T.tolist() == [[False, False, True], [False, False, False]]
    storage = ReplayBuffer(40, sequences=SequenceConfig(length=4, overlap=0.5))
    storage.allocate(SPEC, seeded())
    for transition in _episode(10, 4):
        storage.insert_transition(transition)
    start = _all_of(storage).start
    assert start is not None
    assert start.episode_start.T.tolist() == [[False, False, True], [True, False, False]]


@pytest.mark.parametrize("overlap", [0.0, 0.5])
def test_a_slice_from_the_middle_of_an_episode_begins_in_its_stored_state(overlap: float) -> None:
    """Steps 108 to 115 of a running episode: sequences of as many as are learned from."""
    config = SequenceConfig(length=8, overlap=overlap)
    source, other = (ReplayBuffer(40, sequences=config) for _ in range(2))
    for storage in (source, other):
        storage.allocate(SPEC, seeded())
    for transition in _episode(100, 20, ends=""):
        source.insert_transition(transition)
    other.insert_data_slice(source.get_data_slice(8, 16))
    batch = _all_of(other)
    assert batch.start is not None
    first = {0.0: [108.0], 0.5: [108.0, 108.0]}[overlap]
    assert batch.start.state["memory"].flatten().tolist() == first
    begins = batch.start.episode_start.T.tolist()
    assert begins == ([[False]] if overlap == 0.0 else [[False] * 4 + [True], [False] * 5])


def test_a_cut_episode_bootstraps_from_its_true_last_observation() -> None:
    batch = _all_of(_buffer(*_episode(10, 3, "truncated"), *_episode(20, 2)))
    assert isinstance(batch.observation, Tensor)
    assert batch.mask.sum(0).tolist() == [3, 2]
    assert batch.observation[3, 0].tolist() == [13.0]
    assert batch.terminated.T.tolist() == [[False] * 4, [False, True, False, False]]


def test_the_running_sequence_ends_at_the_newest_row() -> None:
    transitions = _episode(10, 6)
    storage = _buffer()
    for count in range(1, 6):
        storage.insert_transition(transitions[count - 1])
        assert _all_of(storage).mask.sum(0).tolist() == ([count] if count < 5 else [4, 1])


def test_minibatch_size_counts_transitions() -> None:
    storage = _buffer(*_episode(10, 20))
    for size, sequences in ((1, 1), (4, 1), (5, 2), (8, 2), (256, 64)):
        (batch,) = storage.generate_batches(1, size)
        assert batch.action.shape == (4, sequences, 1)


def test_states_are_stored_for_sequences_only() -> None:
    plain = ReplayBuffer(40)
    plain.allocate(SPEC, seeded())
    assert _buffer().nbytes / 46 == plain.nbytes / 41 + 4
    assert _buffer().gives_sequences
    assert not plain.gives_sequences


def test_files_hold_what_memory_does(tmp_path: Path) -> None:
    life = LIVES["same_step_recurrent"]
    options = {"n_step": 2, "sequences": FOUR_AND_TWO}
    storages = [
        ReplayBuffer(100, **options),  # type: ignore[arg-type]  # of several types
        ReplayBuffer(100, mmap_dir=str(tmp_path), **options),  # type: ignore[arg-type]
        ReplayBuffer(100, data_device="cpu", **options),  # type: ignore[arg-type]
    ]
    batches = []
    for storage in storages:
        storage.allocate(life.spec(), seeded())
        for transition in life.transitions(120):
            storage.insert_transition(transition)
        batches.append(columns_of(next(storage.generate_batches(1, 64))))
    check_same_state(batches[1], batches[0])
    check_same_state(batches[2], batches[0])


# Priorities


def _prioritized(config: PrioritizedConfig, *transitions: Transition) -> ReplayBuffer:
    storage = ReplayBuffer(40, sequences=FOUR_AND_TWO, prioritized=config)
    storage.allocate(SPEC, seeded())
    for transition in transitions:
        storage.insert_transition(transition)
    return storage


def test_the_priority_of_a_sequence_by_hand() -> None:
    """Eq. (3) of errors 1, 3, 2, 2 and of 4, 8, and then Eq. (2) with beta 1."""
    config = PrioritizedConfig(alpha=1.0, beta=1.0, epsilon=0.0)
    for eta, first, second in ((None, 2.9, 7.8), (0.5, 2.5, 7.0), (0.0, 2.0, 6.0)):
        storage = _prioritized(replace(config, eta=eta), *_episode(10, 6))
        batch = _all_of(storage)
        errors = torch.tensor([[1.0, -3.0, 2.0, 2.0], [4.0, -8.0, float("nan"), 9.0]]).T
        storage.after_gradients(batch, {"td_error": errors})
        expected = torch.tensor([1.0, first / second]).expand(4, 2)
        torch.testing.assert_close(_all_of(storage).weight, expected)


def test_a_sequence_that_has_grown_counts_as_new() -> None:
    transitions = _episode(10, 6)
    storage = _prioritized(PrioritizedConfig(alpha=1.0, beta=1.0), *transitions[:2])
    storage.after_gradients(_all_of(storage), {"td_error": torch.full((4, 1), 0.25)})
    for transition in transitions[2:]:
        storage.insert_transition(transition)
    assert _all_of(storage).weight[0].tolist() == [1.0, 1.0]
    storage.after_gradients(_all_of(storage), {"td_error": torch.full((4, 2), 0.25)})
    storage.insert_transition(_step(20, 21, start=True))
    torch.testing.assert_close(_all_of(storage).weight[0], torch.tensor([1.0, 1.0, 0.25]))


def test_a_sequence_ends_its_episode_with_any_of_its_transitions() -> None:
    # episodes of 6, 4, 1 and 3 transitions, the last of which goes on; 4 are learned from at once
    ended = [*_episode(10, 6), *_episode(20, 4, "truncated"), *_episode(30, 1)]
    rows = _buffer(*ended, *_episode(40, 4)[:3]).ring
    slots = rows.drawable()
    assert rows.reward[slots].tolist() == pytest.approx([1.0, 1.4, 2.0, 3.0, 4.0])
    assert rows.ends_episode(slots).tolist() == [False, True, True, True, False]


def test_changes_are_told_in_the_order_of_time() -> None:
    storage = _buffer(*_episode(10, 3), _step(20, 21, start=True), size=10)
    mark = storage.ring.cursor()
    for transition in [_step(21, 22), *_episode(30, 6)]:
        storage.insert_transition(transition)
    _, new = storage.ring.changes_since(mark)
    told = storage.ring.reward[new].tolist()
    assert told == pytest.approx([2.0, 3.0, 3.4])  # the first has grown
    for transition in _episode(40, 9):  # which wrap around
        storage.insert_transition(transition)
    restored = _buffer(size=10)
    restored.load_state_dict(storage.state_dict())
    for rows in (storage.ring, restored.ring):
        _, all_of_it = rows.changes_since(None)
        assert sorted(all_of_it) == rows.drawable().tolist()
        rewards = rows.reward[all_of_it].tolist()
        assert rewards == sorted(rewards)
        assert all_of_it.tolist() != sorted(all_of_it)


def test_changes_of_more_than_a_lap_name_each_slot_once() -> None:
    storage = _buffer(*_episode(10, 4), size=10)
    mark = storage.ring.cursor()
    for transition in [*_episode(20, 9), *_episode(30, 11)]:
        storage.insert_transition(transition)
    gone, new = storage.ring.changes_since(mark)
    assert sorted(new) == storage.ring.drawable().tolist()
    rewards = storage.ring.reward[new].tolist()
    assert rewards == sorted(rewards)
    assert len({*gone, *new}) == len(gone) + len(new)


def test_errors_are_one_per_row_and_finite() -> None:
    storage = _prioritized(PrioritizedConfig(), *_episode(10, 6))
    batch = _all_of(storage)
    with pytest.raises(DataError, match=r"expected \(4, 2\), one per sample"):
        storage.after_gradients(batch, {"td_error": torch.zeros(2)})
    errors = torch.ones(4, 2)
    errors[0, 0] = errors[3, 1] = float("inf")  # the latter pads
    with pytest.raises(DataError, match="1 of 6 errors are not finite"):
        storage.after_gradients(batch, {"td_error": errors})


@pytest.mark.parametrize("name", ["same_step_recurrent", "next_step_interrupted"])
def test_priorities_are_those_of_a_slow_dictionary(name: str) -> None:
    """Through inserts, growth, overwriting, resume and late answers."""
    life = LIVES[name]
    config = PrioritizedConfig(alpha=1.0, beta=1.0, epsilon=0.0)

    def make() -> ReplayBuffer:
        storage = ReplayBuffer(25 * life.num_envs, sequences=FOUR_AND_TWO, prioritized=config)
        storage.allocate(life.spec(), seeded())
        return storage

    storage = make()
    oracle = ReferenceSequenceStorage(10**6, learned=4, burn_in=2)
    oracle.allocate(life.spec(), seeded())
    generator = np.random.default_rng(0)
    errors: dict[tuple[str, int], float] = {}
    largest = 1.0
    late: list[ReplayBatch] = []
    for number, transition in enumerate(life.transitions(150)):
        storage.insert_transition(transition)
        oracle.insert_transition(transition)
        lengths = {
            str(each.rows[0].columns["action"].tolist()): len(each.rows)
            for each in oracle.sequences()
        }
        for known in lengths.items():
            errors.setdefault(known, largest)
        if number % 3 or not lengths:
            continue
        if number == 60:
            state = copy_state(storage.state_dict())
            storage = make()
            assert isinstance(state, dict)
            storage.load_state_dict(state)
        (batch,) = storage.generate_batches(1, 120)
        check_sequences(batch, oracle)
        firsts = [str(action) for action in batch.action[0].tolist()]
        priorities = np.array([errors[(first, lengths[first])] for first in firsts])
        saved: Any = storage.state_dict()
        stored = saved["sampler"]["priorities"]
        smallest = float(stored[stored > 0].min())
        np.testing.assert_allclose(batch.weight[0], smallest / priorities, rtol=1e-5)
        late.append(batch)
        chosen = late.pop(int(generator.integers(len(late))))
        answer = {key: float(generator.integers(1, 9)) for key in map(_key, chosen.index)}
        given = torch.tensor([answer[_key(key)] for key in chosen.index]).expand(4, -1)
        storage.after_gradients(chosen, {"td_error": given})
        (now,) = storage.generate_batches(1, 4000)
        stored = {_key(key) for key in now.index}
        for first, key in zip(chosen.action[0].tolist(), map(_key, chosen.index), strict=True):
            if key in stored:
                errors[(str(first), lengths[str(first)])] = answer[key]
                largest = max(largest, answer[key])


def _key(key: Tensor) -> tuple[int, int]:
    slot, generation = key.tolist()
    return slot, generation


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overlap": 1.0}, r"overlap must be a number in \[0, 1\), got 1\.0"),
        ({"overlap": -0.1}, r"overlap must be a number in \[0, 1\)"),
        ({"overlap": float("nan")}, r"overlap"),
        ({"length": 0}, "length must be a whole number of at least 1"),
    ],
)
def test_lengths_out_of_range_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SequenceConfig(**options)  # type: ignore[arg-type]


def test_the_defaults_are_the_known_ones() -> None:
    config = SequenceConfig()
    assert (config.length, config.overlap, config.burn_in, config.learned) == (40, 0.5, 20, 20)
    assert SequenceConfig(length=7, overlap=0.99).learned == 1


def test_eta_without_sequences_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"storage\.prioritized\.eta=0\.5 is about sequences"):
        ReplayBuffer(40, prioritized=PrioritizedConfig(eta=0.5))


def test_options_go_through_recipes() -> None:
    data = {"sequences": {"length": 10, "overlap": 0.2}, "frame_stack": 4}
    storage = construct(ReplayBuffer, {}, decode(options_of(ReplayBuffer), data))
    assert storage.sequences == SequenceConfig(length=10, overlap=0.2)
    assert storage.frame_stack == 4


# What the suite finds out


Spoil = Callable[[ReplayBatch], ReplayBatch]


def _spoilt_start(batch: ReplayBatch, **changes: Callable[[Tensor], Tensor]) -> ReplayBatch:
    start = batch.start
    assert start is not None
    assert isinstance(start.burn_in, Tensor)
    for name, change in changes.items():
        old = getattr(start, name)
        new = {k: change(v) for k, v in old.items()} if isinstance(old, dict) else change(old)
        start = replace(start, **{name: new})  # type: ignore[arg-type]  # by name
    return replace(batch, start=start)


def _ends_nowhere(batch: ReplayBatch) -> ReplayBatch:
    return replace(batch, mask=torch.ones_like(batch.mask))


def _rolled(column: object) -> Tensor:
    assert isinstance(column, Tensor)
    return column.roll(1, 0)


SPOILS: dict[str, Spoil] = {
    "no_mask": _ends_nowhere,
    "shifted_rewards": lambda b: replace(b, reward=b.reward.roll(1, 0)),
    "shifted_steps": lambda b: replace(b, num_steps=b.num_steps + 1),
    "never_terminates": lambda b: replace(b, terminated=torch.zeros_like(b.terminated)),
    "other_successors": lambda b: replace(b, next_observation=_rolled(b.next_observation) + 1),
    "shifted_burn_in": lambda b: _spoilt_start(b, burn_in=lambda c: c.roll(1, 0)),
    "fresh_states": lambda b: _spoilt_start(b, state=torch.zeros_like),
    "no_starts": lambda b: _spoilt_start(b, episode_start=torch.zeros_like),
    "late_starts": lambda b: _spoilt_start(b, episode_start=lambda c: c.roll(1, 0)),
}
"""Batches as storages with one fault each would give them."""


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
def test_the_suite_finds_spoilt_batches(spoil: Spoil) -> None:
    class Spoiling(ReplayBuffer):
        def gather(self, indices: Tensor):  # type: ignore[no-untyped-def]  # as in the base
            yield from map(spoil, super().gather(indices))

    assert _finds(Spoiling, "test_every_sample_is_what_happened", n_step=2)


class _ForgetsTheGenerator(ReplayBuffer):
    def load_state_dict(self, state: StateDict) -> None:
        own = self.generator.get_state()
        super().load_state_dict(state)
        self.generator.set_state(own)


class _ForgetsWhereASequenceIs(ReplayBuffer):
    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        assert self.ring.sequence_starts is not None
        self.ring.sequence_starts.begin_anew(np.ones(self.ring.num_envs, dtype=np.int64))


class _DrawsAllRows(ReplayBuffer):
    """Sequences begin with any transition, whatever the ones before are learned from."""

    def allocate(self, spec: StorageSpec, generator: torch.Generator) -> None:
        super().allocate(spec, generator)
        self.ring.drawn = 2


class _KeepsTheOldest(ReplayBuffer):
    """Sequences are drawn whose burn-in is overwritten."""

    def allocate(self, spec: StorageSpec, generator: torch.Generator) -> None:
        super().allocate(spec, generator)
        self.ring.writer.kept.clear()


class _KeepsNoMore(ReplayBuffer):
    """There is no room for burn-in beside what is learned from."""

    def __init__(self, size: int, **options: object) -> None:
        super().__init__(max(size * 2 // 3, 1), **options)  # type: ignore[arg-type]


class _FavoursOne(ReplayBuffer):
    def sample_indices(self, *sizes: int | None):  # type: ignore[no-untyped-def]  # as in the base
        for block in super().sample_indices(*sizes):
            block[:, ::7] = block[:, :1]
            yield block


class _IndexWithoutGeneration(ReplayBuffer):
    def gather(self, indices: Tensor):  # type: ignore[no-untyped-def]  # as in the base
        for batch in super().gather(indices):
            yield replace(batch, index=batch.index * torch.tensor([1, 0]))


class _RunsSlicesTogether(ReplayBuffer):
    def insert_data_slice(self, data: Mapping[str, Tensor]) -> None:
        super().insert_data_slice(data)
        self.ring.writer.boundaries.inserted()


@cache
def _shared_ones(shape: torch.Size) -> Tensor:
    return torch.ones(shape)


class _SharesWeights(ReplayBuffer):
    def gather(self, indices: Tensor):  # type: ignore[no-untyped-def]  # as in the base
        for batch in super().gather(indices):
            yield replace(batch, weight=_shared_ones(batch.weight.shape))


class _SaysItGivesNone(ReplayBuffer):
    def allocate(self, spec: StorageSpec, generator: torch.Generator) -> None:
        super().allocate(spec, generator)
        self.gives_sequences = False


@pytest.mark.parametrize(
    ("mutant", "name"),
    [
        (_SaysItGivesNone, "test_it_gives_sequences"),
        (_DrawsAllRows, "test_every_sample_is_what_happened"),
        (_KeepsTheOldest, "test_every_sample_is_what_happened"),
        (_KeepsNoMore, "test_nothing_is_missing"),
        (_FavoursOne, "test_all_samples_are_drawn_alike"),
        (_IndexWithoutGeneration, "test_an_index_names_one_sample"),
        (_ForgetsTheGenerator, "test_a_restored_storage_goes_on_alike"),
        (_ForgetsWhereASequenceIs, "test_a_restored_storage_goes_on_alike"),
        (_RunsSlicesTogether, "test_slices_bring_the_same_samples"),
        (_SharesWeights, "test_nothing_is_shared"),
    ],
)
def test_the_suite_finds_broken_storages(mutant: type[ReplayBuffer], name: str) -> None:
    own = {test for test in dir(SequenceReplaySuite) if test.startswith("test_")}
    assert name in own
    case = {"n_step": 2, "count": 52}
    known = inspect.signature(getattr(SequenceReplaySuite, name)).parameters
    assert _finds(mutant, name, **{key: case[key] for key in case.keys() & known.keys()})


def _finds(mutant: type[ReplayBuffer], name: str, **case: object) -> bool:
    class Suite(SequenceReplaySuite):
        def make_storage(
            self, *, size: int, n_step: int, learned: int, burn_in: int
        ) -> ReplayBuffer:
            length = learned + burn_in
            config = SequenceConfig(length=length, overlap=(burn_in + 0.5) / length)
            return mutant(size, n_step=n_step, sequences=config)

    lives: list[TransitionScript] = [
        LIVES["same_step_recurrent"],
        LIVES["same_step_interrupted"],
        LIVES["next_step_interrupted"],
    ]
    for life in lives:
        try:
            getattr(Suite(), name)(life=life, **case)
        except AssertionError:
            return True
    return False
