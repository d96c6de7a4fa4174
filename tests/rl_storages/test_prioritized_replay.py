from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_core.batch import ReplayBatch
from rl_core.config import Linear
from rl_core.errors import CheckpointError, ConfigError, DataError
from rl_core.types import StateDict
from rl_storages import PrioritizedConfig, RecentConfig, ReplayBuffer
from rl_testing.replay import LIVES
from rl_testing.stateful import check_same_state, copy_state
from rl_testing.storages import columns_of, seeded

LIFE = LIVES["next_step"]  # one environment, whose actions are numbers that never recur


def _buffer(config: PrioritizedConfig, size: int = 40, count: int = 0) -> ReplayBuffer:
    storage = ReplayBuffer(size, prioritized=config)
    storage.allocate(LIFE.spec(), seeded())
    for transition in LIFE.transitions(count):
        storage.insert_transition(transition)
    return storage


def _draw(storage: ReplayBuffer, size: int) -> ReplayBatch:
    (batch,) = storage.generate_batches(1, size)
    return batch


def _all_of(storage: ReplayBuffer) -> tuple[ReplayBatch, Tensor]:
    """Return a batch with every transition in it once, by order of actions, and the actions."""
    batch = _draw(storage, 4000)
    actions, places = np.unique(batch.action.numpy(), return_index=True)
    assert len(actions) == storage.num_transitions
    (alone,) = storage.gather(batch.index[places, 0].unsqueeze(0))
    return alone, torch.from_numpy(actions)


def _learn(storage: ReplayBuffer, batch: ReplayBatch, errors: Sequence[float]) -> None:
    storage.after_gradients(batch, {"td_error": torch.tensor(errors)})


def test_weights_by_hand() -> None:
    """Eq. (2): beta 0.5 and priorities 1, 4 and 16 to the power of 0.5."""
    storage = _buffer(PrioritizedConfig(alpha=0.5, beta=0.5, epsilon=0.0), count=6)
    batch, actions = _all_of(storage)
    _learn(storage, batch, [1.0, 4.0, -16.0] + [25.0] * (len(actions) - 3))
    batch, _ = _all_of(storage)
    expected = torch.tensor([1.0, 2.0**-0.5, 0.5] + [5.0**-0.5] * (len(actions) - 3))
    torch.testing.assert_close(batch.weight, expected)


def test_all_batches_have_weights_of_one_scale() -> None:
    """The smallest priority is that of the buffer, also where a batch has only larger ones."""
    storage = _buffer(PrioritizedConfig(alpha=1.0, beta=1.0, epsilon=0.0), count=30)
    batch, actions = _all_of(storage)
    errors = torch.linspace(0.5, 9.0, len(actions))
    _learn(storage, batch, errors.tolist())
    largest = []
    for _ in range(20):
        batch = _draw(storage, 4)
        of_batch = errors[torch.searchsorted(actions, batch.action)]
        torch.testing.assert_close(batch.weight, 0.5 / of_batch)
        largest.append(float(batch.weight.max()))
    assert min(largest) < 0.2


def test_weights_know_the_smallest_priority_that_is_left() -> None:
    """It goes with the transition it is of, when that is learned from or overwritten."""
    transitions = LIFE.transitions(200)
    storage = _buffer(PrioritizedConfig(alpha=1.0, beta=1.0, epsilon=0.0), size=20, count=20)
    batch, actions = _all_of(storage)
    rest = [4.0] * (len(actions) - 2)
    for errors, expected in (([0.5, 1.0], 0.125), ([8.0, 1.0], 0.25), ([8.0, 2.0], 0.5)):
        _learn(storage, batch, [*errors, *rest])
        (batch,) = storage.gather(batch.index[:, 0].unsqueeze(0))
        assert batch.weight.tolist()[2:] == [expected] * len(rest)
    for transition in transitions[20:60]:
        storage.insert_transition(transition)
    assert bool((_draw(storage, 50).weight == 1.0).all())


def test_what_is_never_drawn_does_not_scale_the_others() -> None:
    """With epsilon 0, an error of 0 leaves no chance to be drawn, but no weight of 0 to others."""
    storage = _buffer(PrioritizedConfig(alpha=1.0, beta=1.0, epsilon=0.0), count=20)
    batch, actions = _all_of(storage)
    _learn(storage, batch, [0.0, 2.0] + [4.0] * (len(actions) - 2))
    (batch,) = storage.gather(batch.index[:, 0].unsqueeze(0))
    assert batch.weight.tolist() == [1.0, 1.0] + [0.5] * (len(actions) - 2)


def test_draws_follow_priorities() -> None:
    """Pearson's statistic against Eq. (1); stratified draws vary less than free ones."""
    storage = _buffer(PrioritizedConfig(alpha=0.6, epsilon=0.01), count=38)
    batch, actions = _all_of(storage)
    errors = np.arange(len(actions)) ** 2 / 10.0
    _learn(storage, batch, errors.tolist())
    shares = (errors + 0.01) ** 0.6
    expected = torch.from_numpy(shares / shares.sum())
    counts = torch.zeros(len(actions), dtype=torch.float64)
    for _ in range(400):
        batch = _draw(storage, 50)
        counts += (batch.action.unsqueeze(1) == actions).sum(0)
    statistic = float(((counts - 20_000 * expected) ** 2 / (20_000 * expected)).sum())
    assert statistic < len(actions) + 4 * (2 * len(actions)) ** 0.5


def test_draws_are_stratified() -> None:
    """One from each of as many equal shares as there are samples."""
    storage = _buffer(PrioritizedConfig(), count=20)
    count = storage.num_transitions
    for _ in range(5):
        assert len(set(_draw(storage, count).action.tolist())) == count


def test_new_transitions_have_the_largest_priority_so_far() -> None:
    storage = _buffer(PrioritizedConfig(alpha=1.0, beta=1.0, epsilon=0.0), count=4)
    batch, actions = _all_of(storage)
    assert bool((batch.weight == 1.0).all())
    _learn(storage, batch, [8.0] + [2.0] * (len(actions) - 1))
    _learn(storage, batch, [4.0] + [2.0] * (len(actions) - 1))
    for transition in LIFE.transitions(9)[4:]:
        storage.insert_transition(transition)
    batch, later = _all_of(storage)
    new = len(later) - len(actions)
    assert new > 1
    expected = [0.5] + [1.0] * (len(actions) - 1) + [0.25] * new
    assert batch.weight.tolist() == expected


def test_a_default_error_stands_for_what_was_not_learned_from() -> None:
    config = PrioritizedConfig(alpha=1.0, beta=1.0, epsilon=1.0, default_error=3.0)
    storage = _buffer(config, count=4)
    batch, actions = _all_of(storage)
    _learn(storage, batch, [15.0] + [7.0] * (len(actions) - 1))
    for transition in LIFE.transitions(9)[4:]:
        storage.insert_transition(transition)
    batch, later = _all_of(storage)
    new = len(later) - len(actions)
    assert batch.weight.tolist() == [0.25] + [0.5] * (len(actions) - 1) + [1.0] * new


def test_what_one_batch_teaches_changes_the_next_one() -> None:
    storage = _buffer(PrioritizedConfig(alpha=1.0), count=30)
    favourite = 0
    for number, batch in enumerate(storage.generate_batches(30, 16)):
        if number == 0:
            favourite = int(batch.action[3])
        elif number > 1:
            assert int((batch.action == favourite).sum()) >= 15
        is_favourite = batch.action == favourite
        storage.after_gradients(batch, {"td_error": torch.where(is_favourite, 1e6, 1e-3)})


def test_keys_of_overwritten_transitions_are_ignored() -> None:
    transitions = LIFE.transitions(200)
    storage = _buffer(PrioritizedConfig(alpha=1.0, beta=1.0), size=20, count=20)
    old = _draw(storage, 64)
    for transition in transitions[20:35]:
        storage.insert_transition(transition)
    storage.after_gradients(old, {"td_error": torch.full((64,), 4.0)})
    batch, actions = _all_of(storage)
    known = set(old.action.tolist())
    still_there = torch.tensor([action in known for action in actions.tolist()])
    assert 0 < int(still_there.sum()) < len(actions)
    expected = torch.where(still_there, 0.25, 1.0)
    torch.testing.assert_close(batch.weight, expected, rtol=1e-5, atol=0.0)


def test_overwritten_transitions_leave_no_priority_behind() -> None:
    """The newcomer in the same place begins with the largest error, not with the old one."""
    transitions = LIFE.transitions(200)
    storage = _buffer(PrioritizedConfig(alpha=1.0, beta=1.0, epsilon=0.0), size=20, count=20)
    batch, actions = _all_of(storage)
    _learn(storage, batch, [0.125] * len(actions))
    for transition in transitions[20:60]:
        storage.insert_transition(transition)
    batch, _ = _all_of(storage)
    assert bool((batch.weight == 1.0).all())


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_errors_that_are_not_finite_are_refused(wrong: float) -> None:
    storage = _buffer(PrioritizedConfig(), count=20)
    batch = _draw(storage, 8)
    before = copy_state(storage.state_dict())
    with pytest.raises(DataError, match=r"2 of 8 errors .* of samples 1, 3 of the batch.*lower"):
        _learn(storage, batch, [1.0, wrong, 2.0, wrong, 3.0, 4.0, 5.0, 6.0])
    check_same_state(storage.state_dict(), before)


def test_errors_must_be_there_and_one_per_sample() -> None:
    storage = _buffer(PrioritizedConfig(), count=20)
    batch = _draw(storage, 8)
    with pytest.raises(ConfigError, match=r"needs gradient steps that return 'td_error', got \['q"):
        storage.after_gradients(batch, {"q_value": torch.zeros(8)})
    for shape in ((7,), (8, 1), ()):
        with pytest.raises(DataError, match=r"expected \(8,\), one per sample"):
            storage.after_gradients(batch, {"td_error": torch.zeros(shape)})


def test_uniform_draws_need_no_errors() -> None:
    storage = ReplayBuffer(40)
    storage.allocate(LIFE.spec(), seeded())
    storage.insert_transition(LIFE.transitions(1)[0])
    storage.after_gradients(_draw(storage, 4), {})
    assert storage.live_parameters() == {}


def test_a_transition_without_error_can_be_drawn_alone() -> None:
    """With epsilon 0 it hardly ever is beside others, but never gets lost."""
    storage = _buffer(PrioritizedConfig(epsilon=0.0), count=1)
    _learn(storage, _draw(storage, 2), [0.0, 0.0])
    batch = _draw(storage, 3)
    assert batch.weight.tolist() == [1.0, 1.0, 1.0]


def test_without_alpha_all_are_drawn_alike() -> None:
    storage = _buffer(PrioritizedConfig(alpha=0.0, beta=1.0, epsilon=0.0), count=20)
    batch, actions = _all_of(storage)
    _learn(storage, batch, [0.0] + [100.0] * (len(actions) - 1))
    batch = _draw(storage, len(actions))
    assert len(set(batch.action.tolist())) == len(actions)
    assert bool((batch.weight == 1.0).all())


def test_beta_follows_its_schedule() -> None:
    config = PrioritizedConfig(alpha=1.0, beta=Linear(0.0, 1.0), epsilon=0.0)
    storage = _buffer(config, count=4)
    batch, actions = _all_of(storage)
    _learn(storage, batch, [4.0] + [1.0] * (len(actions) - 1))
    for progress, expected in ((0.0, 1.0), (0.5, 0.5), (1.0, 0.25)):
        storage.set_progress(progress)
        batch, _ = _all_of(storage)
        assert float(batch.weight[0]) == expected
    storage.update_storage_parameter("beta", 0.5)
    storage.set_progress(1.0)
    assert storage.live_parameters() == {"alpha": 1.0, "beta": 0.5}


def test_alpha_changes_all_priorities_at_once() -> None:
    storage = _buffer(PrioritizedConfig(alpha=0.0, beta=1.0, epsilon=0.0), count=4)
    batch, actions = _all_of(storage)
    _learn(storage, batch, [16.0] + [1.0] * (len(actions) - 1))
    for alpha, expected in ((1.0, 0.0625), (0.5, 0.25), (0.0, 1.0), (1.0, 0.0625)):
        storage.update_storage_parameter("alpha", alpha)
        batch, _ = _all_of(storage)
        assert float(batch.weight[0]) == expected


def test_alpha_changes_what_was_not_learned_from_too() -> None:
    storage = _buffer(PrioritizedConfig(alpha=0.0, beta=1.0, epsilon=0.0), count=4)
    batch, actions = _all_of(storage)
    _learn(storage, batch, [4.0] + [1.0] * (len(actions) - 1))
    for transition in LIFE.transitions(9)[4:]:
        storage.insert_transition(transition)
    storage.update_storage_parameter("alpha", 1.0)
    batch, later = _all_of(storage)
    new = len(later) - len(actions)
    assert batch.weight.tolist() == [0.25] + [1.0] * (len(actions) - 1) + [0.25] * new


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("alpha", 1.1, r"alpha must be a number in \[0, 1\], got 1\.1"),
        ("beta", -0.1, r"beta must be a number in \[0, 1\], got -0\.1"),
        ("beta", Linear(0.4, 1.2), r"beta must be a number in \[0, 1\]"),
        ("epsilon", -1e-9, r"epsilon must be a number in \[0, 1e\+30\], got -1e-09"),
        (
            "default_error",
            0.0,
            r"default_error must be a number in \(0, 1e\+30\], or None",
        ),
    ],
)
def test_parameters_out_of_range_are_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PrioritizedConfig(**{name: value})  # type: ignore[arg-type]
    if name in ("alpha", "beta") and isinstance(value, float):
        storage = _buffer(PrioritizedConfig())
        with pytest.raises(ConfigError, match=message):
            storage.update_storage_parameter(name, value)


def test_beta_is_not_given_another_schedule_while_running() -> None:
    storage = _buffer(PrioritizedConfig(beta=0.4))
    with pytest.raises(ConfigError, match="beta must be a finite number"):
        storage.update_storage_parameter("beta", Linear(0.9, 1.0))  # type: ignore[arg-type]
    storage.set_progress(0.5)
    assert storage.live_parameters()["beta"] == 0.4


def test_a_buffer_that_is_used_again_begins_anew() -> None:
    storage = _buffer(PrioritizedConfig(alpha=0.5, beta=0.5), count=6)
    batch, actions = _all_of(storage)
    _learn(storage, batch, [100.0] * len(actions))
    storage.update_storage_parameter("alpha", 0.1)
    storage.update_storage_parameter("beta", 0.9)
    storage.allocate(LIFE.spec(), seeded())
    fresh = _buffer(PrioritizedConfig(alpha=0.5, beta=0.5))
    check_same_state(storage.state_dict(), fresh.state_dict())


def test_parameters_need_memory() -> None:
    with pytest.raises(ConfigError, match="allocate"):
        ReplayBuffer(40, prioritized=PrioritizedConfig()).live_parameters()


def test_a_restored_buffer_goes_on_alike() -> None:
    """With learned priorities, changed parameters and what was inserted since the last draw."""
    transitions = LIFE.transitions(200)
    config = PrioritizedConfig(alpha=1, beta=Linear(0.4, 1.0))  # 1.0, as a user may write it
    saved = _buffer(config, size=30, count=50)
    generator = torch.Generator().manual_seed(3)
    for batch in saved.generate_batches(3, 16):
        saved.after_gradients(batch, {"td_error": torch.rand(16, generator=generator)})
    saved.update_storage_parameter("alpha", 0.9)
    saved.set_progress(0.25)
    for transition in transitions[50:60]:
        saved.insert_transition(transition)
    state = copy_state(saved.state_dict())
    restored = _buffer(config, size=30, count=70)
    assert isinstance(state, dict)
    restored.load_state_dict(state)
    assert restored.live_parameters() == pytest.approx({"alpha": 0.9, "beta": 0.55})
    for storage in (saved, restored):
        storage.update_storage_parameter("alpha", 0.8)  # priorities anew, from the errors
    for step, transition in enumerate(transitions[60:100]):
        ours, theirs = _draw(saved, 16), _draw(restored, 16)
        check_same_state(columns_of(theirs), columns_of(ours))
        errors = {"td_error": torch.rand(16, generator=generator)}
        for storage, batch in ((saved, ours), (restored, theirs)):
            storage.set_progress(step / 40)
            storage.after_gradients(batch, errors)
            storage.insert_transition(transition)


def test_the_end_of_betas_schedule_is_saved() -> None:
    config = PrioritizedConfig(beta=Linear(0.4, 1.0))
    saved, restored = (_buffer(config, count=4) for _ in range(2))
    saved.update_storage_parameter("beta", 0.5)
    restored.load_state_dict(copy_state(saved.state_dict()))  # type: ignore[arg-type]  # a dict
    restored.set_progress(1.0)
    assert restored.live_parameters()["beta"] == 0.5


def test_states_of_other_draws_are_refused() -> None:
    uniform = ReplayBuffer(40)
    uniform.allocate(LIFE.spec(), seeded())
    prioritized = _buffer(PrioritizedConfig(), count=10)
    recent = ReplayBuffer(40, prioritized=PrioritizedConfig(), recent=RecentConfig(cmin=5))
    recent.allocate(LIFE.spec(), seeded())
    for transition in LIFE.transitions(10):
        uniform.insert_transition(transition)
        recent.insert_transition(transition)
    state: StateDict
    for storage, state in (
        (uniform, prioritized.state_dict()),
        (prioritized, uniform.state_dict()),
        (prioritized, recent.state_dict()),
        (recent, prioritized.state_dict()),
    ):
        with pytest.raises(RuntimeError, match="storage/sampler"):
            storage.load_state_dict(state)


@pytest.mark.parametrize(
    "name", ["same_step_dict_box", "next_step_interrupted", "disabled_interrupted"]
)
def test_priorities_are_those_of_a_slow_dictionary(name: str) -> None:
    """Through inserts, slices, resets, learning and late answers, of several environments."""
    life = LIVES[name]
    storage = ReplayBuffer(
        25 * life.num_envs, prioritized=PrioritizedConfig(alpha=1.0, beta=1.0, epsilon=0.0)
    )
    storage.allocate(life.spec(), seeded())
    generator = np.random.default_rng(0)
    errors: dict[str, float] = {}
    largest = 1.0
    late: list[ReplayBatch] = []
    for number, transition in enumerate(life.transitions(300)):
        storage.insert_transition(transition)
        if number == 150:
            storage.reset()
            late = []
            continue
        if number % 5:
            continue
        for batch in storage.generate_batches(2, 40):
            actions = [str(action) for action in batch.action.tolist()]
            stored = _stored(storage)
            for action in stored:
                errors.setdefault(action, largest)
            smallest = min(errors[action] for action in stored)
            priorities = np.array([errors[action] for action in actions])
            np.testing.assert_allclose(batch.weight, smallest / priorities, rtol=1e-5)
            late.append(batch)
            chosen = late.pop(int(generator.integers(len(late))))
            _check_late(storage, chosen, errors, generator)
            largest = max(largest, max(errors.values()))


def _stored(storage: ReplayBuffer) -> list[str]:
    return [str(action) for piece in storage.trajectories() for action in piece.action.tolist()]


def _check_late(
    storage: ReplayBuffer,
    batch: ReplayBatch,
    errors: dict[str, float],
    generator: np.random.Generator,
) -> None:
    """Learn from a batch, maybe an old one, with equal errors for equal transitions."""
    stored = {tuple(index) for index in _draw(storage, 2000).index.tolist()}
    drawn = {str(action): float(generator.integers(1, 9)) for action in batch.action.tolist()}
    given = [drawn[str(action)] for action in batch.action.tolist()]
    for action, key in zip(batch.action.tolist(), batch.index.tolist(), strict=True):
        if tuple(key) in stored:
            errors[str(action)] = drawn[str(action)]
    storage.after_gradients(batch, {"td_error": torch.tensor(given)})


@pytest.mark.parametrize(
    ("part", "name", "wrong"),
    [
        ("sampler", "priorities", float("nan")),
        ("sampler", "priorities", -1.0),
        ("sampler", "priorities", 0.0),
        ("sampler", "errors", float("inf")),
        ("sampler", "errors", -1.0),
        ("sampler", "largest", float("inf")),
        ("sampler", "largest", -1.0),
        ("ring/columns", "flags", 255),
    ],
)
def test_a_state_that_cannot_be_is_refused(part: str, name: str, wrong: float) -> None:
    life = LIVES["same_step_interrupted"]

    def filled() -> ReplayBuffer:
        storage = ReplayBuffer(60, prioritized=PrioritizedConfig())
        storage.allocate(life.spec(), seeded())
        for transition in life.transitions(20):
            storage.insert_transition(transition)
        return storage

    state: Any = copy_state(filled().state_dict())
    filled().load_state_dict(state)
    holder = state
    for key in part.split("/"):
        holder = holder[key]
    if name == "largest":
        holder[name] = wrong
    else:
        holder[name].fill_(wrong)
    with pytest.raises(CheckpointError, match=rf"storage/{part}: '{name}'"):
        filled().load_state_dict(state)


@pytest.mark.parametrize("name", ["default_error", "epsilon"])
def test_errors_beyond_single_precision_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name} must be .* 1e\+30\].*, got 1e\+39"):
        PrioritizedConfig(**{name: 1e39})
    storage = _buffer(PrioritizedConfig(**{name: 1e30}), count=20)
    batch = _draw(storage, 8)
    assert bool(batch.weight.isfinite().all())
    with pytest.raises(DataError, match="1 of 8 errors are not finite, or beyond 1e"):
        _learn(storage, batch, [1e31, *[1.0] * 7])
