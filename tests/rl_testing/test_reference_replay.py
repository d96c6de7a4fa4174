from dataclasses import replace

import pytest
import torch

from rl_core.batch import ReplayBatch, SequenceStart
from rl_testing.replay import (
    LIVES,
    ReferenceReplayStorage,
    ReferenceSequenceStorage,
    ReplayStorageSuite,
    check_sequences,
    check_transitions,
    must_hold,
)
from rl_testing.storages import seeded
from rl_testing.transitions import TransitionScript

# Environment 0 of a `TransitionScript` terminates after 3 steps, then is cut after 1; environment
# 1 is cut after 1 step. After s steps of its episode e, environment b shows [b, e, s].
SAME_STEP = TransitionScript(num_envs=2)
NEXT_STEP = TransitionScript(num_envs=2, autoreset="next_step")


class TestReferenceReplayStorage(ReplayStorageSuite):
    def make_storage(self, *, size: int, n_step: int) -> ReferenceReplayStorage:
        return ReferenceReplayStorage(size, n_step)


def _allocated(script: TransitionScript, size: int = 100) -> ReferenceReplayStorage:
    storage = ReferenceReplayStorage(size, n_step=2)
    storage.allocate(script.spec(), seeded())
    return storage


def _filled(script: TransitionScript, steps: int, size: int = 100) -> ReferenceReplayStorage:
    storage = _allocated(script, size)
    for transition in script.transitions(steps):
        storage.insert_transition(transition)
    return storage


def _rows(storage: ReferenceReplayStorage, env: int) -> list[tuple[object, ...]]:
    """Return observation, rewards, their number, end and what follows, of each transition."""
    return [
        (
            t["observation"].int().tolist(),
            t["reward"].tolist(),
            int(t["num_steps"]),
            bool(t["terminated"]),
            t["next_observation"].int().tolist(),
        )
        for t in storage.transitions()
        if t["observation"][0] == env
    ]


def test_same_step_transitions_by_hand() -> None:
    storage = _filled(SAME_STEP, 5)
    assert _rows(storage, 0) == [
        ([0, 0, 0], [1.0, 2.0], 2, False, [0, 0, 2]),
        ([0, 0, 1], [2.0, 3.0], 2, True, [0, 0, 3]),
        ([0, 0, 2], [3.0, 0.0], 1, True, [0, 0, 3]),
        ([0, 1, 0], [101.0, 0.0], 1, False, [0, 1, 1]),
        ([0, 2, 0], [201.0, 0.0], 1, False, [0, 2, 1]),
    ]
    assert _rows(storage, 1) == [
        ([1, 0, 0], [1.0, 0.0], 1, False, [1, 0, 1]),
        ([1, 1, 0], [101.0, 102.0], 2, False, [1, 1, 2]),
        ([1, 1, 1], [102.0, 103.0], 2, False, [1, 1, 3]),
        ([1, 1, 2], [103.0, 104.0], 2, True, [1, 1, 4]),
        ([1, 1, 3], [104.0, 0.0], 1, True, [1, 1, 4]),
    ]


def test_next_step_transitions_by_hand() -> None:
    storage = _filled(NEXT_STEP, 6)
    assert _rows(storage, 0) == [
        ([0, 0, 0], [1.0, 2.0], 2, False, [0, 0, 2]),
        ([0, 0, 1], [2.0, 3.0], 2, True, [0, 0, 3]),
        ([0, 0, 2], [3.0, 0.0], 1, True, [0, 0, 3]),
        ([0, 1, 0], [101.0, 0.0], 1, False, [0, 1, 1]),
    ]
    assert [row[0] for row in _rows(storage, 1)] == [
        [1, 0, 0],
        [1, 1, 0],
        [1, 1, 1],
        [1, 1, 2],
        [1, 1, 3],
    ]


def test_a_full_storage_by_hand() -> None:
    storage = _filled(NEXT_STEP, 6, size=7)
    assert len(storage) == 3
    assert _rows(storage, 0) == [([0, 1, 0], [101.0, 0.0], 1, False, [0, 1, 1])]
    assert [row[0] for row in _rows(storage, 1)] == [[1, 1, 1], [1, 1, 2], [1, 1, 3]]
    assert [t["index"].tolist() for t in storage.transitions()] == [[2, 1], [1, 1], [3, 1], [5, 1]]


def test_new_observations_by_hand() -> None:
    storage = _filled(NEXT_STEP, 3)
    observation, counts = storage.new_observations()
    assert isinstance(observation, torch.Tensor)
    assert observation[:, 1].int().tolist() == [[1, 0, 0], [1, 0, 1], [1, 1, 0]]
    assert counts.tolist() == [[True, True], [True, False], [True, True]]
    storage.insert_transition(NEXT_STEP.transitions(4)[-1])
    assert storage.new_observations()[1].tolist() == [[False, True]]
    assert storage.new_observations()[1].shape == (0, 2)


def test_an_episode_that_is_left_is_neither_terminated_nor_bridged() -> None:
    storage = _filled(SAME_STEP, 2)
    storage.insert_transition(SAME_STEP.transitions(1)[0])
    assert _rows(storage, 0) == [
        ([0, 0, 0], [1.0, 2.0], 2, False, [0, 0, 2]),
        ([0, 0, 1], [2.0, 0.0], 1, False, [0, 0, 2]),
        ([0, 0, 0], [1.0, 0.0], 1, False, [0, 0, 1]),
    ]


def test_slices_are_bridged_only_where_one_goes_on_from_the_other() -> None:
    source, storage = _filled(SAME_STEP, 6), _allocated(SAME_STEP)
    for start, end in ((0, 1), (1, 2), (4, 5)):
        storage.insert_data_slice(source.get_data_slice(start, end))
    storage.insert_transition(SAME_STEP.transitions(6)[5])
    assert _rows(storage, 0) == [
        ([0, 0, 0], [1.0, 2.0], 2, False, [0, 0, 2]),
        ([0, 0, 1], [2.0, 0.0], 1, False, [0, 0, 2]),
        ([0, 2, 0], [201.0, 0.0], 1, False, [0, 2, 1]),
        ([0, 2, 1], [202.0, 0.0], 1, False, [0, 2, 2]),
    ]


def test_what_must_be_held_leaves_a_row_after_every_episode() -> None:
    storage = _filled(SAME_STEP, 5)
    # Environment 0 has episodes of 3, 1 and 1 steps at places 0 to 4, environment 1 of 1 and 4.
    expected = {1: [], 2: [4], 3: [4], 4: [3, 4], 5: [3, 4], 6: [2, 3, 4], 8: [0, 1, 2, 3, 4]}
    for rows, places in expected.items():
        assert sorted(place for place in must_hold(storage, rows) if place < 5) == places
    assert sorted(place for place in must_hold(storage, 5) if place >= 5) == [6, 7, 8, 9]
    assert sorted(place for place in must_hold(storage, 7) if place >= 5) == [5, 6, 7, 8, 9]


def test_samples_are_named_by_place_and_all_of_them_count() -> None:
    life = TransitionScript(seed=0, num_envs=2)
    storage = ReferenceReplayStorage(20)
    storage.allocate(life.spec(), seeded())
    for transition in life.transitions(4):
        storage.insert_transition(transition)
    (batch,) = storage.gather(torch.tensor([[3, 0, 5]]))
    assert check_transitions(batch, storage) == [3, 0, 5]
    action = int(batch.action[2])
    spoilt = replace(batch, reward=torch.tensor([*batch.reward[:2].tolist(), [7.0]]))
    with pytest.raises(AssertionError, match=rf"reward .* action \({action},\) is \[7.0\]"):
        check_transitions(spoilt, storage)
    for mask in (torch.tensor([1.0, 0.0, 1.0]), torch.zeros(3), torch.full((3,), 0.5)):
        with pytest.raises(AssertionError, match="every sample must count"):
            check_transitions(replace(batch, mask=mask), storage)


def test_a_batch_without_samples_is_found_out() -> None:
    life = TransitionScript(seed=0, num_envs=2, recurrent=True)
    storage = ReferenceSequenceStorage(20, learned=3, burn_in=2)
    storage.allocate(life.spec(), seeded())
    storage.insert_transition(life.transitions(1)[0])
    (batch,) = storage.gather(torch.tensor([[0]]))
    with pytest.raises(AssertionError, match="no sample"):
        check_transitions(replace(batch, mask=batch.mask[:0]), storage)
    start = SequenceStart({}, batch.observation, batch.action, batch.terminated)
    with pytest.raises(AssertionError, match="no sample"):
        check_sequences(replace(batch, start=start, index=batch.index[:0]), storage)


def test_a_sample_of_another_time_is_named() -> None:
    life = TransitionScript(seed=0, num_envs=1)
    storage = ReferenceReplayStorage(3)
    storage.allocate(life.spec(), seeded())
    drawn: list[ReplayBatch] = []
    for transition in life.transitions(4):
        storage.insert_transition(transition)
        drawn += storage.gather(torch.tensor([[0]]))
    with pytest.raises(AssertionError, match=r"action \(0,\) must not be drawn"):
        check_transitions(drawn[0], storage)


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
def test_a_life_holds_what_it_is_for(life: TransitionScript) -> None:
    transitions = life.transitions(130)
    terminated, truncated, valid, start = (
        torch.stack([torch.as_tensor(getattr(t, name)) for t in transitions])
        for name in ("terminated", "truncated", "valid", "episode_start")
    )
    ended = terminated | truncated
    for kind in (terminated & ~truncated, truncated & ~terminated, terminated & truncated):
        assert kind.any()
    assert (start & ended).any(), "no episode of one step"
    assert bool((~valid).any()) == (life.autoreset == "next_step")
    assert not (ended & ~valid).any()
    begins_after = ended if life.autoreset != "next_step" else ~valid
    assert bool((start[1:] & ~begins_after[:-1]).any()) == life.interrupted
    has_final = [t.final_observation is not None for t in transitions]
    expected = {"same_step": ended.any(1).tolist(), "next_step": [False] * 130}
    assert has_final == expected.get(life.autoreset, [True] * 130)


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
def test_no_two_rows_of_a_life_are_alike(life: TransitionScript) -> None:
    if life.alike:
        pytest.skip("all observations are")
    storage = ReferenceReplayStorage(130 * life.num_envs)
    storage.allocate(life.spec(), seeded())
    for transition in life.transitions(130):
        storage.insert_transition(transition)
    transitions = storage.transitions()
    for prefix in ("observation", "next_observation", "action", "reward"):
        columns = [
            str([value.tolist() for name, value in t.items() if name.split("/")[0] == prefix])
            for t in transitions
        ]
        assert len(set(columns)) == len(transitions)
