"""Draws from the newest transitions: which they are, how many, and how alike."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from rl_core.errors import CheckpointError, ConfigError
from rl_core.types import StateDict
from rl_storages import PrioritizedConfig, RecentConfig, ReplayBuffer
from rl_storages.replay.flags import Positions
from rl_storages.sampling.index_layout import LayoutByTime
from rl_storages.sampling.recent import RecentWindows
from rl_testing.replay import LIVES
from rl_testing.stateful import check_same_state, copy_state
from rl_testing.storages import columns_of, seeded
from rl_testing.transitions import TransitionScript

AT_THEIR_OWN_PACE = TransitionScript(seed=2, num_envs=5)
"""Every environment that resets in the same step needs a row more than the others."""

PRIORITIZED = (None, PrioritizedConfig())


def _buffer(
    life: TransitionScript,
    recent: RecentConfig | None,
    prioritized: PrioritizedConfig | None = None,
    rows: int = 30,
) -> ReplayBuffer:
    size = rows * life.num_envs
    storage = ReplayBuffer(size, n_step=3, recent=recent, prioritized=prioritized)
    storage.allocate(life.spec(), seeded())
    return storage


def _drawn(storage: ReplayBuffer, size: int, num_batches: int = 1) -> list[int]:
    """Return what tells transitions apart, which grows with time and with environments."""
    batches = storage.generate_batches(num_batches, size)
    return [int(a) for batch in batches for a in batch.action.reshape(size, -1)[:, 0]]


def _check_windows(
    life: TransitionScript, prioritized: PrioritizedConfig | None, width: int
) -> None:
    """Assert that batches hold just the newest of what a storage that draws all alike holds.

    Windows are narrower than the storage, if only by one.
    """
    width = min(width, 30 * life.num_envs - 1)
    # The first batch of a period would already be drawn from less than one transition.
    storage = _buffer(life, RecentConfig(eta=1e-9, cmin=width), prioritized)
    everything = _buffer(life, None)
    for count, transition in enumerate(life.transitions(130)):
        storage.insert_transition(transition)
        everything.insert_transition(transition)
        if count % 13 and count < 128:
            continue  # so that several steps come in between two draws
        stored = sorted(set(_drawn(everything, 2500))) if everything.num_transitions else []
        if stored:
            assert set(_drawn(storage, 2500)) == set(stored[-width:])


@pytest.mark.parametrize("prioritized", PRIORITIZED, ids=["uniform", "prioritized"])
@pytest.mark.parametrize("width", [8, 61, 1000])
@pytest.mark.parametrize(
    "life", [*LIVES.values(), AT_THEIR_OWN_PACE], ids=[*LIVES, "at_their_own_pace"]
)
def test_windows_hold_just_the_newest(
    life: TransitionScript, prioritized: PrioritizedConfig | None, width: int
) -> None:
    """Of all environments, before and after rows are overwritten, however episodes end."""
    _check_windows(life, prioritized, width)


class _ByRows(LayoutByTime):
    """Takes rows that are equally far from the heads for equally old."""

    def catch_up(self) -> tuple[Positions, Positions]:
        self._ring.flags[:] |= 16  # every row a step
        return super().catch_up()


class _Forgetful(LayoutByTime):
    """Counts what was overwritten."""

    def _has_no_gap(self, count: int) -> bool:
        return count <= self.end


class _ShortByOne(LayoutByTime):
    def first_of_newest(self, count: int) -> int:
        return super().first_of_newest(max(count - 1, 1))

    def newest(self, ranks: Positions, count: int) -> Positions:
        count = max(count - 1, 1)
        return super().newest(np.minimum(ranks, count - 1), count)


class _EnvironmentByEnvironment(LayoutByTime):
    def catch_up(self) -> tuple[Positions, Positions]:
        given_up, new = super().catch_up()
        numbers = np.sort(self._number[new])
        new = new[np.argsort(new % self._ring.num_envs, kind="stable")]
        self._number[new] = numbers
        self._slot_at[numbers % self._ring.num_slots] = new
        return given_up, new


@pytest.mark.parametrize("prioritized", PRIORITIZED, ids=["uniform", "prioritized"])
@pytest.mark.parametrize("mutant", [_ByRows, _Forgetful, _ShortByOne, _EnvironmentByEnvironment])
def test_a_wrong_order_is_found_out(
    mutant: type[LayoutByTime],
    prioritized: PrioritizedConfig | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = "recent" if prioritized is None else "prioritized"
    monkeypatch.setattr(f"rl_storages.sampling.{module}.LayoutByTime", mutant)
    assert any(_fails(prioritized, width) for width in (1, 8, 111))


def test_all_of_a_window_are_drawn_alike() -> None:
    """Pearson's statistic, in a window with gaps, because environments overwrite at their pace."""
    storage = _buffer(AT_THEIR_OWN_PACE, RecentConfig(eta=1e-9, cmin=110))
    for transition in AT_THEIR_OWN_PACE.transitions(130):
        storage.insert_transition(transition)
    _, counts = np.unique(_drawn(storage, 11_000), return_counts=True)
    assert len(counts) == 110
    assert float(((counts - 100.0) ** 2 / 100.0).sum()) < 109 + 4 * (2 * 109) ** 0.5


def test_priorities_count_within_a_window() -> None:
    """Eq. (1) of prioritized draws, with its sum over the newest; weights of 1/N and beta 1.

    Smaller priorities that are stored, but not in the window, make no weight smaller.
    """
    life = LIVES["same_step"]
    storage = _buffer(
        life,
        RecentConfig(eta=1e-9, cmin=3),
        PrioritizedConfig(alpha=1.0, beta=1.0, epsilon=0.0),
    )
    for transition in life.transitions(90):
        storage.insert_transition(transition)
    newest = sorted(set(_drawn(storage, 50)))
    (batch,) = storage.generate_batches(1, 50)
    places = [batch.action.tolist().index(action) for action in newest]
    (alone,) = storage.gather(batch.index[places, 0].unsqueeze(0))
    storage.after_gradients(alone, {"td_error": torch.tensor([1.0, 2.0, 5.0])})
    drawn = _drawn(storage, 800)
    assert [drawn.count(action) for action in newest] == [100, 200, 500]  # they are stratified
    (batch,) = storage.generate_batches(1, 80)
    weight = dict(zip(batch.action.tolist(), batch.weight.tolist(), strict=True))
    assert [weight[action] for action in newest] == pytest.approx([1.0, 0.5, 0.2])
    for transition in life.transitions(92)[90:]:  # they have the largest priority so far
        storage.insert_transition(transition)
    (batch,) = storage.generate_batches(1, 80)
    assert bool((batch.weight == 1.0).all())


def test_widths_by_hand() -> None:
    """Eq. (1): 0.996 to the power of 250 is 0.367142, and so on."""
    windows = RecentWindows(RecentConfig(eta=0.996, cmin=50_000, period=None))
    widths = [windows.width(1_000_000, batch, 4) for batch in range(4)]
    assert widths == [367_142, 134_793, 50_000, 50_000]
    assert windows.width(40_000, 3, 4) == 40_000


def test_cmin_counts_sequences() -> None:
    """Of 1000 transitions, in sequences of 7 that are learned from: 142.9, so 143."""
    windows = RecentWindows(RecentConfig(eta=1e-9, cmin=1000), learned=7)
    assert windows.width(10_000, 0, 1) == 143
    assert windows.width(90, 0, 1) == 90


def test_windows_shrink_over_the_batches_of_an_update() -> None:
    storage = _buffer(LIVES["same_step"], RecentConfig(eta=0.997, cmin=1, period=None), rows=400)
    for transition in LIVES["same_step"].transitions(300):
        storage.insert_transition(transition)
    stored = storage.num_transitions
    actions = np.array(_drawn(storage, 2000, num_batches=4)).reshape(4, 2000)
    sizes = [len(set(row)) for row in actions.tolist()]
    assert sizes == [int(stored * 0.997**power) for power in (250, 500, 750, 1000)]


def test_a_period_is_the_same_however_many_batches_an_update_has() -> None:
    whole, pieces = (
        RecentWindows(RecentConfig(cmin=1, period=6)),
        RecentWindows(RecentConfig(cmin=1, period=6)),
    )
    expected = [whole.width(10_000, batch, 12) for batch in range(12)]
    assert expected[:6] == expected[6:]
    assert expected[0] == int(10_000 * 0.996 ** (1000 / 6))
    assert expected[5] == int(10_000 * 0.996**1000)
    assert [pieces.width(10_000, 0, 1) for _ in range(12)] == expected


def test_a_state_of_a_longer_period_goes_on_within_the_shorter_one() -> None:
    longer, shorter = (RecentWindows(RecentConfig(cmin=1, period=period)) for period in (10, 4))
    for _ in range(6):
        longer.width(10_000, 0, 1)
    shorter.load_state_dict(longer.state_dict())
    assert shorter.width(10_000, 0, 1) == int(10_000 * 0.996**750)  # the third of four


def test_a_single_batch_has_no_windows_that_shrink() -> None:
    storage = _buffer(LIVES["same_step"], RecentConfig(cmin=1, period=None))
    for transition in LIVES["same_step"].transitions(5):
        storage.insert_transition(transition)
    with pytest.raises(ConfigError, match="period"):
        _drawn(storage, 3)
    storage.check_batches(2, 3)
    for number in (1, None):
        with pytest.raises(ConfigError, match="updates have a single one; give a period"):
            storage.check_batches(number, 3)


def test_eta_follows_the_returns_by_hand() -> None:
    """Eq. (2): six lines of mean gradients over the last 20 returns."""
    storage = _buffer(LIVES["same_step"], RecentConfig(eta=0.9, cmin=1, update_eta=True))
    storage.note_returns([5.0] * 19)
    assert storage.metrics() == {"eta": 0.9, "return_gradient": 0.0}
    for episode_return, gradient, eta in (
        (5.0, 0.0, 0.95),  # neither better nor worse, and nothing to divide by
        (25.0, 1.5, 0.9),  # (10 + 20) / 20
        (5.0, -0.5, 1.0),  # (10 + 0 - 20) / 20, the lowest so far
        (5.0, 0.0, 0.95),
        (10.0, 0.375, 0.95 - 0.05 * 0.25 / 0.9999**3),  # a quarter of the decayed highest
        (5.0, -0.125, 0.95 + 0.05 * 0.25 / 0.9999**3),  # a quarter of the decayed lowest
    ):
        storage.note_returns([episode_return])
        assert storage.metrics()["return_gradient"] == pytest.approx(gradient)
        assert storage.metrics()["eta"] == pytest.approx(eta)
    assert storage.live_parameters() == {"eta": storage.metrics()["eta"]}


def test_eta_stays_where_it_is_unless_it_shall_move() -> None:
    storage = _buffer(LIVES["same_step"], RecentConfig(eta=0.9, cmin=1), PrioritizedConfig())
    storage.note_returns([float(number) for number in range(40)])
    assert storage.metrics() == {"alpha": 0.6, "beta": 0.4, "eta": 0.9}


@pytest.mark.parametrize("prioritized", PRIORITIZED, ids=["uniform", "prioritized"])
def test_eta_may_change_while_running(prioritized: PrioritizedConfig | None) -> None:
    storage = _buffer(LIVES["same_step"], RecentConfig(cmin=2), prioritized)
    for transition in LIVES["same_step"].transitions(90):
        storage.insert_transition(transition)
    assert len(set(_drawn(storage, 900))) > 20
    storage.update_storage_parameter("eta", 1e-9)
    assert len(set(_drawn(storage, 300))) == 2
    with pytest.raises(ConfigError, match="eta"):
        storage.update_storage_parameter("eta", 1.5)
    assert storage.live_parameters()["eta"] == 1e-9


def test_an_eta_that_was_set_to_a_whole_number_goes_into_a_checkpoint() -> None:
    storage, other = (_buffer(LIVES["same_step"], RecentConfig(cmin=2)) for _ in range(2))
    other.update_storage_parameter("eta", 1)
    other.load_state_dict(storage.state_dict())
    assert other.live_parameters() == storage.live_parameters()


def test_eta_may_rest_at_1_for_a_while() -> None:
    """Nothing moves it there, until it is set again."""
    storage = _buffer(LIVES["same_step"], RecentConfig(eta=0.9, cmin=1, update_eta=True))
    storage.update_storage_parameter("eta", 1.0)
    storage.note_returns([float(number) for number in range(40)])
    assert storage.live_parameters() == {"eta": 1.0}
    storage.update_storage_parameter("eta", 0.8)
    storage.note_returns([40.0])
    assert storage.live_parameters()["eta"] == pytest.approx(0.8)


@pytest.mark.parametrize("prioritized", PRIORITIZED, ids=["uniform", "prioritized"])
def test_a_restored_storage_goes_on_with_its_windows(
    prioritized: PrioritizedConfig | None,
) -> None:
    config = RecentConfig(eta=0.99, cmin=4, period=7, update_eta=True)
    life = AT_THEIR_OWN_PACE
    saved, restored = _buffer(life, config, prioritized), _buffer(life, config, prioritized)
    transitions = life.transitions(130)
    for transition in transitions[:100]:
        saved.insert_transition(transition)
    saved.note_returns([float(number**2) for number in range(23)])
    _drawn(saved, 5, num_batches=3)
    state = copy_state(saved.state_dict())
    assert isinstance(state, dict)
    restored.load_state_dict(state)
    for transition in transitions[100:]:
        for storage in (saved, restored):
            storage.insert_transition(transition)
            storage.note_returns([3.0])
        for expected, actual in zip(_batches(saved), _batches(restored), strict=True):
            check_same_state(actual, expected)
    assert saved.metrics() == restored.metrics()


def test_numbers_that_contradict_the_rows_are_refused() -> None:
    storage = _buffer(AT_THEIR_OWN_PACE, RecentConfig(cmin=100))
    for transition in AT_THEIR_OWN_PACE.transitions(40):
        storage.insert_transition(transition)
    state = dict(storage.state_dict())
    sampler = state["sampler"]
    assert isinstance(sampler, dict)
    order = sampler["order"]
    assert isinstance(order, dict)
    numbers = order["numbers"]
    for wrong in (numbers.clamp(min=7), numbers + 10**6, numbers // 2):
        damaged = {**sampler, "order": {**order, "numbers": wrong}}
        with pytest.raises(CheckpointError, match="numbers"):
            storage.load_state_dict({**state, "sampler": damaged})
    more = {**sampler, "order": {**order, "more": 1}}
    with pytest.raises(CheckpointError, match=r"storage/sampler/order: .*'more'"):
        storage.load_state_dict({**state, "sampler": more})


@pytest.mark.parametrize(
    "options", [{"eta": 0.0}, {"eta": 1.01}, {"cmin": 0}, {"period": 0}, {"period": 1}]
)
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        RecentConfig(**options)  # type: ignore[arg-type]  # wrong on purpose


def test_an_eta_that_could_not_move_is_refused() -> None:
    """Eq. (2) with eta 1 is 1, whatever the returns are."""
    assert RecentConfig(eta=1.0).eta == 1.0
    with pytest.raises(ConfigError) as caught:
        RecentConfig(eta=1.0, update_eta=True)
    assert str(caught.value) == (
        "update_eta moves eta between its own value and 1, so eta=1.0 could not move; set "
        "storage.recent.eta below 1, such as 0.996, or leave storage.recent.update_eta out"
    )


def test_windows_as_wide_as_the_buffer_are_refused() -> None:
    """Of 5001 transitions 5000 are a window, of 5000 and of 1000 they are all."""
    assert ReplayBuffer(5001, recent=RecentConfig()).size == 5001
    with pytest.raises(ConfigError, match=r"cmin=5000 is not below storage\.size=5000"):
        ReplayBuffer(5000, recent=RecentConfig())
    with pytest.raises(ConfigError) as caught:
        ReplayBuffer(1000, recent=RecentConfig(), prioritized=PrioritizedConfig())
    assert str(caught.value) == (
        "storage.recent.cmin=5000 is not below storage.size=1000, so that every batch would be "
        "drawn from the whole buffer; set storage.recent.cmin to less, such as 100, or "
        "storage.size to more, or leave storage.recent out"
    )


def _fails(prioritized: PrioritizedConfig | None, width: int) -> bool:
    try:
        _check_windows(AT_THEIR_OWN_PACE, prioritized, width)
    except AssertionError:
        return True
    return False


def _batches(storage: ReplayBuffer) -> Iterator[StateDict]:
    for batch in storage.generate_batches(2, 9):
        yield columns_of(batch)
