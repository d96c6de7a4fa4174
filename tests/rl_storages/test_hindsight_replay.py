"""Goals relabeled in hindsight, compared with what episodes say when they are gone through."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import cycle, pairwise
from typing import Any, get_args

import numpy as np
import pytest
from torch import Tensor

from rl_core.batch import ReplayBatch, Transition
from rl_core.env import GoalFunctions
from rl_core.errors import ConfigError, EnvironmentFaultError
from rl_core.types import Array, ArrayLike
from rl_storages import (
    HindsightConfig,
    PrioritizedConfig,
    RecentConfig,
    ReplayBuffer,
    SequenceConfig,
)
from rl_storages.gather.hindsight import NewGoals, Relabeler, Rewards
from rl_storages.replay.episodes import Episodes
from rl_storages.replay.flags import Mask, Positions
from rl_testing._rows import Row
from rl_testing.replay import (
    LIVES,
    ReferenceReplayStorage,
    check_transitions,
)
from rl_testing.stateful import check_same_state, copy_state
from rl_testing.storages import columns_of, seeded
from rl_testing.transitions import TransitionScript
from support.goals import WITH_ENDS, WITHOUT_ENDS, ReferenceGoals, Strategy, scripted_reward

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

ROWS = 30
STEPS = 130

AT_THEIR_OWN_PACE = TransitionScript(seed=2, num_envs=5)
ALL_LIVES = {
    name: replace(life, observation="goals")
    for name, life in {**LIVES, "at_their_own_pace": AT_THEIR_OWN_PACE}.items()
}
LIFE = ALL_LIVES["at_their_own_pace"]


SAMPLERS: tuple[Mapping[str, Any], ...] = (
    {},
    {"prioritized": PrioritizedConfig()},
    {"recent": RecentConfig(eta=1e-9, cmin=20)},
    {"prioritized": PrioritizedConfig(), "recent": RecentConfig(eta=1e-9, cmin=20)},
)


def _pair(
    life: TransitionScript,
    hindsight: HindsightConfig,
    functions: GoalFunctions = WITH_ENDS,
    n_step: int = 3,
    rows: int = ROWS,
    **options: Any,
) -> tuple[ReplayBuffer, ReferenceReplayStorage]:
    storage = ReplayBuffer(
        rows * life.num_envs,
        n_step=n_step,
        hindsight=hindsight,
        her_function=functions,  # scripted rewards are not those of goals
        **options,
    )
    storage.allocate(life.spec(), seeded())
    oracle = ReferenceReplayStorage((rows + 4) * life.num_envs, n_step)
    oracle.allocate(life.spec(), seeded())
    return storage, oracle


def _draw(storage: ReplayBuffer, size: int) -> ReplayBatch:
    (batch,) = storage.generate_batches(1, size)
    return batch


def _allowed(strategy: Strategy, episode: list[Row], index: int) -> list[float]:
    """Return the goals that an episode's transition may get, the oldest first."""
    rows = {"final": episode[-1:], "future": episode[index:], "episode": episode}[strategy]
    return [_achieved(row) for row in rows]


def _achieved(row: Row) -> float:
    return float(row.successor["observation/achieved_goal"])


def _check(
    batch: ReplayBatch, oracle: ReferenceReplayStorage, strategy: Strategy, functions: GoalFunctions
) -> list[float | None]:
    """Assert that every sample is what it must be with the goal that it has.

    Returns:
        The new goal of each sample, None where it has its own.
    """
    goals = ReferenceGoals(strategy, functions)
    check_transitions(batch, oracle, goals=goals)
    assert isinstance(batch.observation, Mapping)
    return [goals.new_goal(desired) for desired in batch.observation["desired_goal"]]


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        *zip(ALL_LIVES, cycle(STRATEGIES), strict=False),
        *(("same_step_interrupted", strategy) for strategy in STRATEGIES),
    ],
)
def test_every_sample_is_what_its_goal_makes_of_it(name: str, strategy: Strategy) -> None:
    """With windows of several lengths, all ways to draw, and ends that depend on goals or not.

    Each life has one strategy, in turn, and one of them has all.
    """
    life = ALL_LIVES[name]
    config = HindsightConfig(strategy=strategy)
    cases = [
        (functions, *_pair(life, config, functions, n_step, **sampler))
        for number, sampler in enumerate(SAMPLERS)
        for functions, n_step in [((WITH_ENDS, WITHOUT_ENDS)[number % 2], (1, 3, 5, 3)[number])]
    ]
    for count, transition in enumerate(life.transitions(STEPS)):
        for functions, storage, oracle in cases:
            storage.insert_transition(transition)
            oracle.insert_transition(transition)
            if count % 16 == 1 and storage.num_transitions:
                batch = _draw(storage, 30)
                _check(batch, oracle, strategy, functions)
                storage.after_gradients(batch, {"td_error": batch.reward.sum(1)})


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "name", ["same_step_interrupted", "next_step_interrupted", "disabled_interrupted"]
)
def test_goals_stay_in_their_slice(name: str, strategy: Strategy) -> None:
    """Also where a storage is emptied, and where slices fill it more than once."""
    life = ALL_LIVES[name]
    config = HindsightConfig(strategy=strategy)
    storage, oracle = _pair(life, config)
    transitions = life.transitions(2 * STEPS)
    for number, start in enumerate(range(0, 2 * STEPS, 46)):
        worker, source = _pair(life, config)
        for transition in transitions[start : start + (9 if number % 2 else 45)]:
            worker.insert_transition(transition)
            source.insert_transition(transition)
        storage.insert_data_slice(worker.get_all_buffer_data())
        length = len(source)
        oracle.insert_data_slice(source.get_data_slice(length - len(worker), length))
        _check(_draw(storage, 60), oracle, strategy, WITH_ENDS)
        if number == 2:
            storage.reset()
            oracle.reset()


@pytest.mark.parametrize("k", [0.0, 1.0, 4.0])
def test_so_many_are_relabeled(k: float) -> None:
    """k of k + 1, whichever they are; within four standard deviations."""
    storage, oracle = _pair(LIFE, HindsightConfig(k=k))
    for transition in LIFE.transitions(STEPS):
        storage.insert_transition(transition)
        oracle.insert_transition(transition)
    found = _check(_draw(storage, 2000), oracle, "future", WITH_ENDS)
    share = sum(goal is not None for goal in found) / 2000
    expected = k / (k + 1.0)
    assert abs(share - expected) <= 4.0 * (expected * (1.0 - expected) / 2000) ** 0.5


@pytest.mark.parametrize("strategy", ["future", "episode", "random"])
def test_all_allowed_goals_are_chosen_alike(strategy: Strategy) -> None:
    """Pearson's statistic, of the transition that has most to choose from."""
    life = replace(LIFE, num_envs=1)
    storage, oracle = _pair(life, HindsightConfig(strategy=strategy, k=1e9), rows=70)
    for transition in life.transitions(60):
        storage.insert_transition(transition)
        oracle.insert_transition(transition)
    episode = max(oracle.episodes(0), key=len)
    index = 2
    allowed = (
        [_achieved(row) for part in oracle.episodes(0) for row in part]
        if strategy == "random"
        else _allowed(strategy, episode, index)
    )
    action = int(episode[index].columns["action"])
    batch = _draw(storage, 300)
    slot = batch.index[batch.action.tolist().index(action), :1]
    (alone,) = storage.gather(slot.expand(1, 60 * len(allowed)))
    observation = alone.observation
    assert isinstance(observation, Mapping)
    counts = Counter(observation["desired_goal"].flatten().tolist())
    assert set(counts) == set(allowed)
    statistic = sum((counts[goal] - 60) ** 2 / 60 for goal in allowed)
    freedom = len(allowed) - 1
    assert statistic < freedom + 4.0 * (2.0 * freedom) ** 0.5


def test_any_transition_gives_random_goals_to_sequences() -> None:
    """Not only those with which sequences begin, every second one here."""
    life = replace(LIFE, num_envs=1)
    config = HindsightConfig(strategy="random", k=1e9)
    storage, oracle = _pair(life, config, rows=70, sequences=SequenceConfig(length=4))
    for transition in life.transitions(40):
        storage.insert_transition(transition)
        oracle.insert_transition(transition)
    observation = _draw(storage, 2000).observation
    assert isinstance(observation, Mapping)
    achieved = {_achieved(row) for episode in oracle.episodes(0) for row in episode}
    assert set(observation["desired_goal"][0].flatten().tolist()) == achieved


def test_a_running_episode_gives_what_it_has_achieved_so_far() -> None:
    life = replace(LIFE, num_envs=1)
    storage, oracle = _pair(life, HindsightConfig(strategy="final", k=1e9), rows=200)
    grown = 0
    for transition in life.transitions(60):
        storage.insert_transition(transition)
        oracle.insert_transition(transition)
        running = oracle.episodes(0)[-1]
        newest = [_achieved(running[-1])]
        goals = set(_check(_draw(storage, 40), oracle, "final", WITH_ENDS))
        grown += newest[0] in goals
    assert grown > 30


def _episode(goal: float, achieved: Sequence[float]) -> Iterator[Transition]:
    """Yield the steps of one environment, which end by themselves after the last goal achieved."""
    (like,) = replace(LIFE, num_envs=1).transitions(1)
    others = like.observation
    assert isinstance(others, Mapping)

    def observation(position: float) -> dict[str, ArrayLike]:
        goals = {"achieved_goal": position, "desired_goal": goal}
        return {**others, **{n: np.array([[g]], np.float32) for n, g in goals.items()}}

    for step, (before, after) in enumerate(pairwise((0.0, *achieved))):
        yield replace(
            like,
            observation=observation(before),
            next_observation=observation(after),
            final_observation=observation(after),
            terminated=np.array([step == len(achieved) - 1]),
            episode_start=np.array([step == 0]),
        )


@pytest.mark.parametrize("n_step", [1, 2])
def test_an_end_that_has_nothing_to_do_with_goals_remains(n_step: int) -> None:
    """The first episode falls on its way to 9; the second one reaches 5."""
    functions = GoalFunctions(
        scripted_reward, lambda achieved, desired, info: (achieved == desired)[..., 0]
    )
    life = replace(LIFE, num_envs=1)
    storage, _ = _pair(life, HindsightConfig(strategy="random", k=1e9), functions, n_step)
    for transition in (*_episode(9.0, [1.0, 2.0]), *_episode(5.0, [3.0, 4.0, 5.0])):
        storage.insert_transition(transition)
    batch = _draw(storage, 300)
    following = batch.next_observation
    assert isinstance(following, Mapping)
    after, desired = following["achieved_goal"][:, 0], following["desired_goal"][:, 0]
    fell, reached = after == 2.0, after == 5.0
    assert (fell & (desired != 2.0)).any()
    assert batch.terminated[fell].all()
    assert (batch.terminated[reached] == (desired[reached] == 5.0)).all()
    assert (reached & ~batch.terminated).any()


class _BeforeTheAction(Relabeler):
    def achieved_after(self, slots: Positions) -> Tensor:
        return super().achieved_after((slots - self._ring.num_envs) % self._ring.num_slots)


class _IgnoresEnds(Relabeler):
    def recompute(
        self, rows: Positions, goals: Tensor, counts: Mask
    ) -> tuple[Rewards, Mask | None]:
        return super().recompute(rows, goals, counts)[0], None


class _ForgetsFalls(Relabeler):
    def _ended_by_goal(self, slots: Positions) -> Mask:
        return np.ones(slots.shape, dtype=np.bool_)


class _MixesGoals(Relabeler):
    def recompute(
        self, rows: Positions, goals: Tensor, counts: Mask
    ) -> tuple[Rewards, Mask | None]:
        rewards, ends = super().recompute(rows, goals, counts)
        others = super().recompute(rows, goals.flip(0), counts)[0]
        rewards[1:] = others[1:]
        return rewards, ends


class _KeepsTheNextGoal(Relabeler):
    def write(self, columns: Mapping[str, Tensor], new: NewGoals, axis: int = 0) -> None:
        first = {name: c for name, c in columns.items() if not name.startswith("next_")}
        super().write(first, new, axis)


class _UsesOtherEpisodes(Episodes):
    def bounds(self, slots: Positions) -> tuple[Positions, Positions, Positions]:
        positions, first, last = super().bounds(slots)
        newest = self._ring.write_positions.positions[slots % self._ring.num_envs] - 1
        return positions, first, np.minimum(last + 3, newest)


class _UsesOverwrittenRows(Episodes):
    def bounds(self, slots: Positions) -> tuple[Positions, Positions, Positions]:
        positions, _, last = super().bounds(slots)
        return positions, self._first[self._episode[slots]], last


class _StartsTooEarly(Episodes):
    def bounds(self, slots: Positions) -> tuple[Positions, Positions, Positions]:
        positions, first, last = super().bounds(slots)
        return np.maximum(positions - 1, first), first, last


@pytest.mark.parametrize(
    ("mutant", "strategy"),
    [
        (_BeforeTheAction, "future"),
        (_IgnoresEnds, "future"),
        (_ForgetsFalls, "episode"),
        (_MixesGoals, "future"),
        (_KeepsTheNextGoal, "future"),
        (_UsesOtherEpisodes, "final"),
        (_UsesOtherEpisodes, "future"),
        (_UsesOverwrittenRows, "episode"),
        (_StartsTooEarly, "future"),
    ],
)
def test_wrong_goals_are_found_out(
    mutant: type, strategy: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_relabeler = issubclass(mutant, Relabeler)
    module = "replay.buffer.Relabeler" if is_relabeler else "gather.hindsight.Episodes"
    monkeypatch.setattr(f"rl_storages.{module}", mutant)
    assert any(_fails(life, strategy) for life in ALL_LIVES.values())


def _fails(life: TransitionScript, strategy: Strategy) -> bool:
    storage, oracle = _pair(life, HindsightConfig(strategy=strategy))
    for count, transition in enumerate(life.transitions(STEPS)):
        storage.insert_transition(transition)
        oracle.insert_transition(transition)
        try:
            if count % 8 == 7:
                _check(_draw(storage, 100), oracle, strategy, WITH_ENDS)
        except AssertionError:
            return True
    return False


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_restored_storage_relabels_alike(sampler: Mapping[str, Any]) -> None:
    saved, oracle = _pair(LIFE, HindsightConfig(strategy="episode"), **sampler)
    restored, _ = _pair(LIFE, HindsightConfig(strategy="episode"), **sampler)
    transitions = LIFE.transitions(STEPS)
    for transition in transitions[:101]:
        saved.insert_transition(transition)
        oracle.insert_transition(transition)
    for transition in transitions[:119]:  # farther than the other one is
        restored.insert_transition(transition)
    _draw(restored, 8)
    state = copy_state(saved.state_dict())
    assert isinstance(state, dict)
    restored.load_state_dict(state)
    for transition in transitions[101:]:
        expected, actual = _draw(saved, 16), _draw(restored, 16)
        check_same_state(columns_of(actual), columns_of(expected))
        _check(actual, oracle, "episode", WITH_ENDS)
        for storage in (saved, restored, oracle):
            storage.insert_transition(transition)


def test_weights_are_those_of_the_priorities() -> None:
    """A relabeled sample has the key and the weight of the transition it was made of."""
    prioritized = PrioritizedConfig(alpha=1.0, beta=1.0, epsilon=0.0)
    storage, _ = _pair(LIFE, HindsightConfig(k=1.0), prioritized=prioritized)
    for transition in LIFE.transitions(40):
        storage.insert_transition(transition)
    batch = _draw(storage, 400)
    storage.after_gradients(batch, {"td_error": 1.0 + batch.action % 3})
    batch = _draw(storage, 400)
    weights = {1.0: 1.0, 2.0: 0.5, 3.0: 1.0 / 3.0}
    learned = [weights[1.0 + action % 3] for action in batch.action.tolist()]
    assert batch.weight.tolist() == pytest.approx(learned)


def _spec_errors(life: TransitionScript, config: HindsightConfig, **changes: object) -> str:
    spec = replace(life.spec(), goal_functions=lambda: WITH_ENDS)
    spec = replace(spec, **changes)  # type: ignore[arg-type]  # of several types
    with pytest.raises(ConfigError) as caught:
        ReplayBuffer(300, hindsight=config).allocate(spec, seeded())
    return str(caught.value)


def test_what_has_no_goals_is_refused() -> None:
    config = HindsightConfig()
    assert "needs goals, but the observation is an array" in _spec_errors(
        LIVES["same_step"], config
    )
    assert "needs goals" in _spec_errors(LIVES["next_step_dict_torch"], config)
    assert "desired_goal" in _spec_errors(LIFE, HindsightConfig(desired_goal="wanted"))
    shapes = HindsightConfig(desired_goal="observation")
    assert "expected the same" in _spec_errors(LIFE, shapes)
    assert "compute_reward" in _spec_errors(LIFE, config, goal_functions=None)
    assert "compute_reward" in _spec_errors(LIFE, config, goal_functions=lambda: None)
    assert "scale_rewards" in _spec_errors(LIFE, config, scales_rewards=True)


def test_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="future"):
        HindsightConfig(strategy="futur")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ConfigError, match="k must be a finite number of at least 0"):
        HindsightConfig(k=-1.0)
    with pytest.raises(ConfigError, match="both"):
        HindsightConfig(achieved_goal="desired_goal")
    with pytest.raises(ConfigError, match="hindsight"):
        ReplayBuffer(her_function=scripted_reward)


def test_the_users_function_wins() -> None:
    storage = ReplayBuffer(
        300, hindsight=HindsightConfig(k=1e9), her_function=lambda achieved, desired, info: 7.0
    )
    assert storage.uses_objects
    storage.allocate(replace(LIFE.spec(), goal_functions=lambda: WITH_ENDS), seeded())
    for transition in LIFE.transitions(9):
        storage.insert_transition(transition)
    assert _draw(storage, 20).reward.tolist() == [[7.0]] * 20


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (np.ones((3, 3)), "shape"),
        (np.full(20, np.nan), "finite"),
        (np.array(["a"] * 20), "numbers"),
    ],
)
def test_rewards_that_are_none_are_refused(answer: Array, message: str) -> None:
    functions = GoalFunctions(lambda achieved, desired, info: answer)
    storage, _ = _pair(LIFE, HindsightConfig(k=1e9), functions, n_step=1)
    for transition in LIFE.transitions(9):
        storage.insert_transition(transition)
    with pytest.raises(EnvironmentFaultError, match=message):
        _draw(storage, 20)


def test_an_environment_whose_steps_reward_otherwise_than_its_goals_is_refused() -> None:
    storage = ReplayBuffer(LIFE.num_envs * ROWS, hindsight=HindsightConfig())
    storage.allocate(replace(LIFE.spec(), goal_functions=lambda: WITH_ENDS), seeded())
    for transition in LIFE.transitions(9):
        storage.insert_transition(transition)
    with pytest.raises(ConfigError, match=r"compute_reward returns .* whose reward was .* differ"):
        _draw(storage, 40)


@pytest.mark.parametrize(
    ("size", "others", "is_refused"), [(40, 2, False), (40, 3, True), (10, 1, False), (10, 2, True)]
)
def test_one_reward_in_20_may_be_judged_otherwise(size: int, others: int, is_refused: bool) -> None:
    """As at the edge of a tolerance, on whose other side a goal may be once it is rounded."""

    def reward(achieved: Array, desired: Array, info: object) -> Array:
        return np.where(np.arange(len(achieved)) < others, 0.0, 7.0)

    storage = ReplayBuffer(LIFE.num_envs * ROWS, hindsight=HindsightConfig())
    spec = replace(LIFE.spec(), goal_functions=lambda: GoalFunctions(reward))
    storage.allocate(spec, seeded())
    for transition in LIFE.transitions(9):
        rewards = np.full(LIFE.num_envs, 7.0, np.float32)
        storage.insert_transition(replace(transition, reward=rewards))
    with pytest.raises(ConfigError, match="differ") if is_refused else nullcontext():
        _draw(storage, size)


@pytest.mark.parametrize("wrong", [3, "reward"])
def test_what_rewards_no_goals_is_refused_when_it_is_given(wrong: object) -> None:
    with pytest.raises(ConfigError, match="her_function must be a function or a GoalFunctions, or"):
        ReplayBuffer(300, hindsight=HindsightConfig(), her_function=wrong)  # type: ignore[arg-type]


def test_a_fault_of_the_users_function_is_not_the_environments() -> None:
    storage = ReplayBuffer(
        300,
        hindsight=HindsightConfig(k=1e9),
        her_function=lambda achieved, desired, info: np.full(len(achieved), np.nan),
    )
    life = ALL_LIVES["same_step_interrupted"]
    storage.allocate(life.spec(), seeded())
    for transition in life.transitions(5):
        storage.insert_transition(transition)
    with pytest.raises(EnvironmentFaultError, match=r"^her_function returned nan"):
        _draw(storage, 8)
