import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from torch import Tensor

from rl_core.actor import ActionOutput, Actor
from rl_core.env import VecEnv
from rl_core.errors import ConfigError, EnvironmentFaultError, SpaceError
from rl_core.nn.distributions import Deterministic, Distribution
from rl_core.types import Observation, State
from rl_envs import GymVecEnv, make_gym_vec
from rl_testing.scripted import CountingEnv, IdentityEnv
from rl_testing.toy import ToyActor, ToyActorCritic
from rl_train import evaluate_policy
from rl_train.evaluation import (
    draws_actions,
    evaluation_metrics,
    in_words,
    interquartile_mean,
    stratified_bootstrap_interval,
    summarize,
)
from support.envs import FaultyEnv, counting_envs

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED]


def _actor(envs: VecEnv, *, remembers: bool = False) -> ToyActor:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return ToyActor(
            envs.single_observation_space, envs.single_action_space, remembers=remembers
        )


@pytest.mark.parametrize("mode", MODES)
def test_every_environment_plays_its_quota(mode: AutoresetMode) -> None:
    """Whoever took the first four episodes to end would take all from the first row."""
    envs = counting_envs([[1], [10]], [True, False], mode)
    result = evaluate_policy(_actor(envs), envs, 4)
    assert result.returns == (1.0, 101.0, 55.0, 1055.0)
    assert result.num_episodes == 4
    assert result.mean == (1.0 + 101.0 + 55.0 + 1055.0) / 4
    assert result.std == pytest.approx(np.std([1.0, 101.0, 55.0, 1055.0]))
    assert result.mean_length == 5.5


def test_what_is_left_over_goes_to_the_first_environments() -> None:
    envs = counting_envs([[1], [2], [3]], [True] * 3)
    actor = _actor(envs)
    assert evaluate_policy(actor, envs, 5).returns == (1.0, 101.0, 3.0, 203.0, 6.0)
    assert evaluate_policy(actor, envs, 2).returns == (1.0, 3.0)


@pytest.mark.parametrize("mode", MODES)
def test_episodes_that_do_not_end_are_cut_and_told(mode: AutoresetMode) -> None:
    """A row whose episode was cut begins a new one before it counts again."""
    envs = counting_envs([[10], [2]], [True] * 2, mode)
    result = evaluate_policy(_actor(envs), envs, 4, max_episode_steps=3)
    assert result.returns == (6.0, 306.0, 3.0, 203.0)
    assert result.num_cut == 2
    assert str(result).endswith(", 2 cut at the limit of steps")
    assert result.as_dict()["num_cut"] == 2


@pytest.mark.parametrize("mode", MODES)
def test_what_is_left_of_an_episode_that_was_cut_does_not_count(mode: AutoresetMode) -> None:
    envs = counting_envs([[5], [3]], [True] * 2, mode)
    result = evaluate_policy(_actor(envs), envs, 4, max_episode_steps=3)
    assert result.returns == (6.0, 306.0, 6.0, 306.0)  # without the 9.0 of steps 4 and 5
    assert result.num_cut == 2


def test_rows_that_wait_for_an_end_are_reset_when_the_others_have_finished() -> None:
    envs = counting_envs([[10**6], [2]], [True] * 2)
    told: list[tuple[int, int]] = []
    result = evaluate_policy(
        _actor(envs),
        envs,
        4,
        max_episode_steps=3,
        is_stopping=lambda: len(told) > 7,
        on_step=lambda *numbers: told.append(numbers),
    )
    assert result.returns == (6.0, 306.0, 3.0, 203.0)
    # After steps 2 and 4 the second row has finished, after 3 and 7 the first one is cut.
    assert told == [(0, 2), (1, 4), (2, 6), (3, 8), (3, 10), (3, 12), (4, 14)]


@pytest.mark.parametrize("limit", [0, -1, 2.5])
def test_a_limit_that_is_none_is_refused(limit: Any) -> None:
    envs = counting_envs([[10]], [True], AutoresetMode.NEXT_STEP)
    with pytest.raises(ConfigError, match="max_episode_steps must be a whole number of at least 1"):
        evaluate_policy(_actor(envs), envs, 1, max_episode_steps=limit)


def test_a_limit_of_the_environments_is_theirs_to_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_train.evaluation.evaluation._MOST_STEPS", 5)
    envs = make_gym_vec(lambda: TimeLimit(CountingEnv([10]), 8))
    assert envs.max_episode_steps == 8
    for limit, length, num_cut in ((None, 8.0, 0), (3, 3.0, 1)):
        result = evaluate_policy(_actor(envs), envs, 1, max_episode_steps=limit)
        assert (result.mean_length, result.num_cut) == (length, num_cut)


def test_an_episode_without_a_limit_is_cut_after_5000_steps() -> None:
    envs = counting_envs([[6000]], [True], AutoresetMode.NEXT_STEP)
    assert envs.max_episode_steps is None
    result = evaluate_policy(_actor(envs), envs, 1)
    assert (result.mean_length, result.num_cut) == (5000.0, 1)


def test_exploration_is_that_of_the_algorithm() -> None:
    class Stubborn(ToyActorCritic):
        def explore(
            self,
            observation: Observation,
            state: State,
            noise: Tensor,
            episode_start: Tensor | None = None,
        ) -> ActionOutput:
            output = self.actor.get_action(observation, state, noise, False, episode_start)
            return ActionOutput(output.action, torch.zeros_like(output.action), state)

    envs = make_gym_vec(partial(IdentityEnv, spaces.Discrete(3), 30), 2)
    algorithm = Stubborn(_actor(envs))
    plain = evaluate_policy(algorithm, envs, 4, seed=3)
    explored = evaluate_policy(algorithm, envs, 4, explore=True, seed=3)
    assert explored.returns != plain.returns
    with pytest.raises(ConfigError, match="explore needs an algorithm, got ToyActor"):
        evaluate_policy(algorithm.actor, envs, 4, explore=True)


def test_the_robust_figures_are_those_of_the_returns() -> None:
    returns = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1000.0]
    result = summarize(returns, [2] * 8, [True, False], seed=4)
    assert result.iqm == 3.5
    expected = stratified_bootstrap_interval(
        [np.array(returns)], interquartile_mean, generator=np.random.default_rng(4)
    )
    assert result.ci95 == expected
    assert result.ci95[0] < 3.5 < result.ci95[1]
    assert result.success_rate == 0.5
    assert result.as_dict() == {
        "num_episodes": 8,
        "mean": result.mean,
        "std": result.std,
        "iqm": 3.5,
        "ci95": list(expected),
        "mean_length": 2.0,
        "success_rate": 0.5,
        "returns": returns,
        "num_cut": 0,
    }
    assert str(result).startswith("127.6 ± 329.7 over 8 episodes (IQM 3.5, 95 % interval")
    assert str(result).endswith("success 50%")
    assert str(summarize([0.0625], [2], [])).startswith("0.0625 ± 0.0000 over 1 episode (IQM")


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((500.0, 0.0), ("500.0", "0.0")),
        ((-9.54, 10.0), ("-9.5", "10.0")),
        ((-9.54, 9.99), ("-9.54", "9.99")),
        ((0.7402, math.nan), ("0.740", "nan")),
        ((0.7402, -math.inf), ("0.740", "-inf")),
        ((-0.00076, 0.0001234), ("-0.000760", "0.000123")),
        ((0.0,), ("0.0",)),
    ],
)
def test_numbers_are_written_with_three_digits(
    numbers: tuple[float, ...], words: tuple[str, ...]
) -> None:
    assert in_words(*numbers) == words


def test_metrics_are_named_by_path() -> None:
    metrics = evaluation_metrics(summarize([1.0, 3.0], [4, 6], []))
    assert metrics == {
        "test/episode_return": 2.0,
        "test/episode_return_std": 1.0,
        "test/episode_return_iqm": 2.0,
        "test/episode_length": 5.0,
    }
    assert evaluation_metrics(summarize([1.0], [4], [True]))["test/success_rate"] == 1.0
    adapted = replace(summarize([1.0]), stages={"after step 1": summarize([5.0])})
    assert evaluation_metrics(adapted)["test/return_after_step_1"] == 5.0


class Achieving(CountingEnv):
    """Succeeds in every other episode, and says so in its last step."""

    def step(self, action: object) -> tuple[Any, Any, bool, bool, dict[str, object]]:
        observation, reward, terminated, truncated, _ = super().step(action)
        success = (terminated or truncated) and self.episode % 2 == 0
        return observation, reward, terminated, truncated, {"is_success": success}

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Any, dict[str, object]]:
        return super().reset(seed=seed, options=options)[0], {"is_success": True}


@pytest.mark.parametrize("mode", MODES)
def test_success_is_counted_where_it_is_reported(mode: AutoresetMode) -> None:
    rows = [partial(Achieving, [2], True, 0), partial(Achieving, [3], False, 1)]
    envs = GymVecEnv(SyncVectorEnv(rows, autoreset_mode=mode))
    assert evaluate_policy(_actor(envs), envs, 6).success_rate == pytest.approx(4 / 6)
    rows = [partial(Achieving, [2], True, 0), partial(Achieving, [9], True, 1)]
    envs = GymVecEnv(SyncVectorEnv(rows, autoreset_mode=mode))
    cut = evaluate_policy(_actor(envs), envs, 2, max_episode_steps=4)
    assert (cut.num_cut, cut.success_rate) == (1, 0.5)
    all_cut = evaluate_policy(_actor(envs), envs, 2, max_episode_steps=1)
    assert (all_cut.num_cut, all_cut.success_rate) == (2, 0.0)
    silent = counting_envs([[2]], [True], mode)
    assert evaluate_policy(_actor(silent), silent, 3).success_rate is None
    assert evaluate_policy(_actor(silent), silent, 3, max_episode_steps=1).success_rate is None


class LateAchieving(Achieving):
    """Says nothing before its last step."""

    def step(self, action: object) -> tuple[Any, Any, bool, bool, dict[str, object]]:
        observation, reward, terminated, truncated, info = super().step(action)
        told = info if terminated or truncated else {}
        return observation, reward, terminated, truncated, told


def test_an_episode_that_is_cut_before_success_is_reported_is_none() -> None:
    rows = [partial(LateAchieving, [2], True, 0), partial(LateAchieving, [9], True, 1)]
    envs = GymVecEnv(SyncVectorEnv(rows, autoreset_mode=AutoresetMode.SAME_STEP))
    result = evaluate_policy(_actor(envs), envs, 2, max_episode_steps=5)
    assert (result.num_cut, result.success_rate) == (1, 0.5)


class Watched(ToyActor):
    """Remembers how it was asked."""

    def __init__(self, *spaces: Any, remembers: bool = False) -> None:
        super().__init__(*spaces, remembers=remembers)
        self.dropout = torch.nn.Dropout()
        self.frozen = torch.nn.BatchNorm1d(3).eval()
        self.modes: set[tuple[bool, ...]] = set()
        self.sums: list[list[list[float]]] = []
        self.actions: list[list[float]] = []

    def get_action(
        self,
        observation: Observation,
        state: State,
        noise: Tensor | None,
        deterministic: bool = False,
        episode_start: Tensor | None = None,
    ) -> ActionOutput:
        self.modes.add(tuple(module.training for module in self.modules()))
        output = super().get_action(observation, state, noise, deterministic, episode_start)
        self.sums.append([row.tolist() for row in output.state.get("sum", ())])
        self.actions.append(output.action.tolist())
        return output


@pytest.mark.parametrize("was_training", [False, True])
def test_every_module_gets_its_own_mode_back(was_training: bool) -> None:
    envs = counting_envs([[2]], [True])
    actor = Watched(envs.single_observation_space, envs.single_action_space)
    actor.train(was_training)
    actor.frozen.eval()
    before = [module.training for module in actor.modules()]
    evaluate_policy(actor, envs, 1)
    assert not any(any(modes) for modes in actor.modes)
    assert [module.training for module in actor.modules()] == before
    assert not actor.frozen.training


def test_the_mode_is_put_back_when_an_environment_fails() -> None:
    envs = make_gym_vec(lambda: FaultyEnv(CountingEnv([9]), "raise_step", at_step=3))
    actor = _actor(envs)
    with pytest.raises(EnvironmentFaultError):
        evaluate_policy(actor, envs, 1)
    assert all(module.training for module in actor.modules())


@pytest.mark.parametrize("mode", MODES)
def test_a_memory_begins_anew_with_each_episode(mode: AutoresetMode) -> None:
    envs = counting_envs([[2]], [True], mode)
    actor = Watched(envs.single_observation_space, envs.single_action_space, remembers=True)
    evaluate_policy(actor, envs, 2)
    sums = [row for (row,) in actor.sums]
    assert sums[:2] == [[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    assert sums[-2:] == [[0.0, 1.0, 0.0], [0.0, 2.0, 1.0]]


def _identity_envs() -> VecEnv:
    return make_gym_vec(partial(IdentityEnv, spaces.Box(-1.0, 1.0, (2,), np.float32)), 2)


def test_the_seed_decides_environments_and_samples() -> None:
    envs = _identity_envs()
    actor = _actor(envs)
    before = torch.get_rng_state()
    for deterministic in (False, True):
        run = partial(evaluate_policy, actor, deterministic=deterministic)
        first = run(envs, 4, seed=1)
        assert run(_identity_envs(), 4, seed=1) == first
        assert run(envs, 4, seed=1) == first
        assert run(envs, 4, seed=2) != first
    mode, sampled = (evaluate_policy(actor, envs, 4, deterministic=d) for d in (True, False))
    assert mode != sampled
    assert torch.equal(torch.get_rng_state(), before)


def test_the_seed_decides_samples_where_environments_draw_nothing() -> None:
    envs = counting_envs([[40]], [True])
    taken = []
    for seed in (1, 1, 2):
        actor = Watched(envs.single_observation_space, envs.single_action_space)
        actor.load_state_dict(_actor(envs).state_dict(), strict=False)
        evaluate_policy(actor, envs, 1, deterministic=False, seed=seed)
        taken.append(actor.actions)
    assert taken[0] == taken[1] != taken[2]


def test_a_policy_that_draws_nothing_is_not_asked_to() -> None:
    class Settled(ToyActor):
        """Takes the likeliest action in any case."""

        def distribution(
            self, observation: Observation, state: State, episode_start: Tensor | None = None
        ) -> tuple[Distribution, State]:
            found, after = super().distribution(observation, state, episode_start)
            return Deterministic(found.mode()), after

    envs = _identity_envs()
    actor = Settled(envs.single_observation_space, envs.single_action_space)
    actor.train()
    assert draws_actions(_actor(envs))
    assert not draws_actions(actor)
    assert actor.training
    with pytest.raises(
        ConfigError, match=r"^deterministic=False, but the policy of Settled is det"
    ):
        evaluate_policy(actor, envs, 4, deterministic=False)
    assert evaluate_policy(actor, envs, 4).num_episodes == 4


@pytest.mark.parametrize("of", [lambda actor: actor, ToyActorCritic])
def test_actors_and_whatever_has_one_are_evaluated(of: Callable[[Actor], Any]) -> None:
    with make_gym_vec("CartPole-v1") as envs:
        actor = _actor(envs)
    result = evaluate_policy(of(actor), "CartPole-v1", 3, num_envs=2)
    assert result.num_episodes == 3
    assert result.mean == result.mean_length


def test_environments_that_are_built_for_an_evaluation_are_as_few_as_episodes_and_closed() -> None:
    class Closing(CountingEnv):
        def close(self) -> None:
            closed.append(self)

    closed: list[CountingEnv] = []
    actor = _actor(counting_envs([[2]], [True]))
    assert evaluate_policy(actor, partial(Closing, [2]), 3, num_envs=8).num_episodes == 3
    assert len(closed) == 3


def test_given_environments_stay_open() -> None:
    envs = _identity_envs()
    evaluate_policy(_actor(envs), envs, 1)
    envs.reset()


@pytest.mark.parametrize("count", [0, -1, 1.5, "2", True, None])
def test_at_least_one_episode_is_needed(count: Any) -> None:
    envs = _identity_envs()
    message = f"num_episodes must be a whole number of at least 1, got {count!r}"
    with pytest.raises(ConfigError, match=message):
        evaluate_policy(_actor(envs), envs, count)


@pytest.mark.parametrize("option", ["deterministic", "explore"])
def test_flags_are_true_or_false(option: str) -> None:
    envs = _identity_envs()
    with pytest.raises(ConfigError, match=f"^{option} must be True or False, got 'no'"):
        evaluate_policy(_actor(envs), envs, 1, **{option: "no"})  # type: ignore[arg-type]  # wrong


def test_numbers_of_numpy_are_numbers() -> None:
    envs = _identity_envs()
    result = evaluate_policy(
        _actor(envs),
        envs,
        np.int64(2),  # type: ignore[arg-type]  # what is tested
        max_episode_steps=np.int64(3),  # type: ignore[arg-type]  # likewise
    )
    assert result.num_episodes == 2
    assert result.mean_length == 3.0


def test_other_spaces_are_refused_before_anything_runs() -> None:
    actor = _actor(_identity_envs())
    for name in ("observation", "action"):
        other = _identity_envs()
        other.reset = pytest.fail  # type: ignore[assignment, method-assign]  # must not be called
        setattr(other, f"_{name}_space", spaces.MultiBinary(7))
        with pytest.raises(SpaceError, match=rf"{name} space of the environments is MultiB"):
            evaluate_policy(actor, other, 2)


def test_a_policy_without_an_actor_is_refused() -> None:
    with pytest.raises(ConfigError, match="policy is NoneType; expected an actor"):
        evaluate_policy(None, _identity_envs(), 2)  # type: ignore[arg-type]  # what is tested


def test_actions_have_no_gradients_outside_of_no_grad() -> None:
    envs = make_gym_vec(lambda: IdentityEnv(spaces.Box(-1.0, 1.0, (2,), np.float32), 5), 2)
    algorithm = ToyActorCritic(_actor(envs))
    observation = torch.zeros(2, 2)
    output = algorithm.acting_step(observation, {}, None, deterministic=True)
    assert output.env_action.numpy().shape == (2, 2)
