from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from torch import Tensor

from rl_core.actor import ActionOutput
from rl_core.algorithm import PolicyLossAddOn, UpdateSchedule
from rl_core.batch import ReplayBatch, Rollout, RolloutBatch
from rl_core.env import EnvStep, VecEnv
from rl_core.errors import CheckpointError, ConfigError
from rl_core.nn.distributions import Categorical, Distribution
from rl_core.storage import TensorSpec
from rl_core.types import ArrayLike, Observation, State, StateDict, StateValue
from rl_envs import GymVecEnv
from rl_testing.reference import ReferenceRolloutStorage
from rl_testing.scripted import CountingEnv, IdentityEnv, WalkVecEnv
from rl_testing.stateful import check_plain, check_same_state, copy_state
from rl_testing.storages import stored
from rl_testing.toy import ToyActor, ToyActorCritic
from rl_train import Collector, Episode, RewardScaler
from support.envs import AsTensors, counting_envs

SAME_STEP, NEXT_STEP = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP


class Recording(ToyActorCritic):
    """Remembers what it was asked, and answers an extra."""

    def __init__(self, actor: ToyActor) -> None:
        super().__init__(actor)
        self.noises: list[Tensor] = []
        self.start_steps = 0

    @property
    def schedule(self) -> UpdateSchedule:
        return UpdateSchedule(start_steps=self.start_steps)

    @property
    def extras(self) -> Mapping[str, TensorSpec]:
        return {"shown": TensorSpec((), torch.float32)}

    def acting_step(
        self,
        observation: Observation,
        state: State,
        noise: Tensor | None,
        deterministic: bool = False,
        episode_start: Tensor | None = None,
    ) -> ActionOutput:
        assert noise is not None
        assert isinstance(observation, Tensor)
        self.noises.append(noise.clone())
        output = super().acting_step(observation, state, noise, deterministic, episode_start)
        extras = {"shown": observation[:, -1]}
        return ActionOutput(output.action, output.env_action, output.state, extras)


def _collector(envs: VecEnv, *, remembers: bool = False, seed: int = 0) -> Collector:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        actor = ToyActor(
            envs.single_observation_space, envs.single_action_space, remembers=remembers
        )
    generator = torch.Generator().manual_seed(seed)
    return Collector(envs, Recording(actor), generator=generator, seed=3)


def _storage(collector: Collector, num_steps: int) -> ReferenceRolloutStorage:
    storage = ReferenceRolloutStorage(num_steps)
    storage.allocate(collector.storage_spec(), torch.Generator())
    return storage


def _collect(collector: Collector, num_steps: int) -> tuple[list[Episode], Rollout]:
    storage = _storage(collector, num_steps)
    episodes = collector.collect(num_steps * collector.envs.num_envs, into=storage)
    return episodes, storage.rollout()


def _envs(mode: AutoresetMode) -> VecEnv:
    """The first row terminates after 2 steps, the second one is cut after 3."""
    return counting_envs([[2], [3]], [True, False], mode)


def _lists(value: object) -> list[object]:
    assert isinstance(value, Tensor)
    values: list[object] = value.tolist()
    return values


@pytest.mark.parametrize("mode", [SAME_STEP, AutoresetMode.DISABLED])
def test_what_is_stored_when_rows_reset_in_the_same_step(mode: AutoresetMode) -> None:
    collector = _collector(_envs(mode))
    episodes, rollout = _collect(collector, 5)
    assert isinstance(rollout.observation, Tensor)
    assert _lists(rollout.observation[:, 0, 1:]) == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0]]
    assert _lists(rollout.observation[:, 1, 1:]) == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]]
    assert _lists(rollout.next_observation) == [[0, 2, 1], [1, 1, 2]]
    assert _lists(rollout.reward.T) == [[1, 2, 101, 102, 201], [1, 2, 3, 101, 102]]
    assert _lists(rollout.terminated.nonzero()) == [[1, 0], [3, 0]]
    assert _lists(rollout.truncated.nonzero()) == [[2, 1]]
    assert _lists(rollout.episode_start.nonzero()) == [[0, 0], [0, 1], [2, 0], [3, 1], [4, 0]]
    assert rollout.valid.all()
    assert _lists(rollout.final_index) == [[2, 1]]
    assert _lists(rollout.final_observation) == [[1, 0, 3]]
    assert _lists(rollout.extras["shown"].T) == [[0, 1, 0, 1, 0], [0, 1, 2, 0, 1]]
    assert collector.total_steps == 10
    ended = [(e.env, e.episode_return, e.length) for e in episodes]
    assert ended == [(0, 3.0, 2), (1, 6.0, 3), (0, 203.0, 2)]
    assert collector.total_episodes == 3


def test_what_is_stored_when_rows_reset_in_the_next_step() -> None:
    collector = _collector(_envs(NEXT_STEP))
    episodes, rollout = _collect(collector, 5)
    assert isinstance(rollout.observation, Tensor)
    assert _lists(rollout.observation[:, 0, 1:]) == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]]
    assert _lists(rollout.observation[:, 1, 1:]) == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0]]
    assert _lists(rollout.next_observation) == [[0, 1, 2], [1, 1, 1]]
    assert _lists(rollout.reward.T) == [[1, 2, 0, 101, 102], [1, 2, 3, 0, 101]]
    assert _lists(rollout.terminated.nonzero()) == [[1, 0], [4, 0]]
    assert _lists(rollout.truncated.nonzero()) == [[2, 1]]
    assert _lists(rollout.episode_start.nonzero()) == [[0, 0], [0, 1], [3, 0], [4, 1]]
    assert _lists((~rollout.valid).nonzero()) == [[2, 0], [3, 1]]
    assert collector.total_steps == 8
    ended = [(e.env, e.episode_return, e.length) for e in episodes]
    assert ended == [(0, 3.0, 2), (1, 6.0, 3), (0, 203.0, 2)]


def test_rows_are_rounded_up_to_whole_steps() -> None:
    collector = _collector(_envs(SAME_STEP))
    storage = _storage(collector, 8)
    collector.collect(5, into=storage)
    assert collector.total_steps == 6
    assert len(storage) == 3
    collector.collect(2, into=storage)
    assert collector.total_steps == 8
    assert len(storage) == 4


@pytest.mark.parametrize("remembers", [False, True])
@pytest.mark.parametrize("mode", [SAME_STEP, NEXT_STEP])
def test_collecting_in_parts_is_collecting_at_once(mode: AutoresetMode, remembers: bool) -> None:
    parts, whole = (_collector(_envs(mode), remembers=remembers) for _ in range(2))
    in_parts, at_once = _storage(parts, 9), _storage(whole, 9)
    for rows in (2, 8, 8):
        parts.collect(rows, into=in_parts)
    whole.collect(18, into=at_once)
    check_same_state(stored(in_parts), stored(at_once))
    check_same_state(parts.state_dict(), whole.state_dict())


@pytest.mark.parametrize("mode", [SAME_STEP, NEXT_STEP])
def test_recurrent_state_is_carried_and_starts_anew(mode: AutoresetMode) -> None:
    collector = _collector(_envs(mode), remembers=True)
    storage = _storage(collector, 5)
    collector.collect(10, into=storage)
    data = storage.get_all_buffer_data()
    expected = torch.zeros(2, 3)
    for row in range(5):
        assert torch.equal(data["state/sum"][row], expected)
        start = data["episode_start"][row].unsqueeze(-1)
        expected = torch.where(start, 0.0, expected) + data["observation"][row]
    assert torch.equal(storage.rollout().state["sum"], torch.zeros(2, 3))


def test_the_next_rollout_begins_with_the_state_that_was_reached() -> None:
    collector = _collector(_envs(SAME_STEP), remembers=True)
    _collect(collector, 4)
    _, rollout = _collect(collector, 2)
    # The first row's second episode ended in the last step, the second row is one step into its.
    assert _lists(rollout.state["sum"]) == [[0, 2, 1], [1, 1, 0]]
    assert _lists(rollout.episode_start[0]) == [True, False]


def test_scaled_rewards_are_stored_and_the_environments_reported() -> None:
    scaled, plain = (_collector(_envs(NEXT_STEP)) for _ in range(2))
    scaled.reward_scaler = RewardScaler(2, gamma=0.5)
    episodes, rollout = _collect(scaled, 6)
    expected, raw = _collect(plain, 6)
    assert episodes == expected
    by_hand = RewardScaler(2, gamma=0.5)
    for row in range(6):
        ended = (raw.terminated | raw.truncated)[row].numpy()
        want = by_hand(raw.reward[row].numpy(), ended, raw.valid[row].numpy())
        np.testing.assert_array_equal(rollout.reward[row].numpy(), want)
    assert not torch.equal(rollout.reward, raw.reward)


def _noises(collector: Collector) -> list[Tensor]:
    algorithm = collector.algorithm
    assert isinstance(algorithm, Recording)
    return algorithm.noises


def test_noise_is_drawn_in_blocks_from_the_collectors_own_generator() -> None:
    collector = _collector(_envs(SAME_STEP), seed=5)
    before = torch.get_rng_state()
    _collect(collector, 130)
    assert torch.equal(torch.get_rng_state(), before)
    generator = torch.Generator().manual_seed(5)
    blocks = [collector.algorithm.draw_noise((128, 2), generator) for _ in range(2)]
    assert torch.equal(torch.stack(_noises(collector)), torch.cat(blocks)[:130])


def test_a_noise_block_goes_on_after_a_resume() -> None:
    collector = _collector(_envs(SAME_STEP))
    _collect(collector, 3)
    state = collector.state_dict()
    check_plain(state)
    saved = copy_state(state)
    assert isinstance(saved, Mapping)
    _collect(collector, 130)
    restored = _collector(_envs(SAME_STEP), seed=99)
    restored.load_state_dict(saved)
    _collect(restored, 130)
    assert torch.equal(torch.stack(_noises(restored)), torch.stack(_noises(collector)[3:]))
    assert restored.total_steps == collector.total_steps


def test_counters_and_statistics_are_restored() -> None:
    collector, restored = (_collector(_envs(NEXT_STEP)) for _ in range(2))
    for each in (collector, restored):
        each.reward_scaler = RewardScaler(2)
    _collect(collector, 5)
    restored.load_state_dict(collector.state_dict())
    assert (restored.total_steps, restored.total_episodes) == (8, 3)
    check_same_state(restored.state_dict(), collector.state_dict())


def test_a_resume_starts_new_episodes_and_a_new_memory() -> None:
    collector = _collector(_envs(SAME_STEP), remembers=True)
    _collect(collector, 4)
    restored = _collector(_envs(SAME_STEP), remembers=True)
    _collect(restored, 1)  # whose episodes do not go on either
    restored.load_state_dict(collector.state_dict())
    episodes, rollout = _collect(restored, 3)
    assert rollout.episode_start[0].all()
    assert not rollout.state["sum"].any()
    assert episodes[-1].length == 3  # not 4, as if the lost episode had gone on


class Stateless(GymVecEnv):
    """Environments of which a checkpoint holds nothing."""

    def state_dict(self) -> StateDict:
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        assert not state


def _random_envs(cls: type[GymVecEnv] = GymVecEnv) -> GymVecEnv:
    space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    return cls(SyncVectorEnv([partial(IdentityEnv, space)] * 2, autoreset_mode=SAME_STEP))


@pytest.mark.parametrize("cls", [GymVecEnv, Stateless])
def test_a_resume_is_seeded_and_does_not_repeat_the_start(cls: type[GymVecEnv]) -> None:
    collector = _collector(_random_envs(cls))
    _, first = _collect(collector, 4)
    state = collector.state_dict()
    again = []
    for _ in range(2):
        restored = _collector(_random_envs(cls))
        restored.load_state_dict(state)
        again.append(_collect(restored, 4)[1].observation)
    assert isinstance(first.observation, Tensor)
    check_same_state([again[1]], [again[0]])
    with pytest.raises(AssertionError):
        check_same_state([again[0]], [first.observation])


def test_a_second_reset_goes_on_with_other_episodes() -> None:
    collector = _collector(_random_envs())
    _, first = _collect(collector, 2)
    collector.reset()
    _, second = _collect(collector, 2)
    with pytest.raises(AssertionError):
        check_same_state([second.observation], [first.observation])


def test_a_reset_breaks_off_the_episodes_that_run() -> None:
    collector = _collector(counting_envs([[3], [9]], [True, True]))
    _collect(collector, 2)
    collector.reset()
    episodes, rollout = _collect(collector, 3)
    assert rollout.episode_start[0].all()
    assert [(e.episode_return, e.length) for e in episodes] == [(101.0 + 102.0 + 103.0, 3)]


def test_after_an_error_between_a_step_and_the_next_there_are_new_episodes() -> None:
    collector = _collector(_envs(SAME_STEP))
    with pytest.raises(ZeroDivisionError):
        collector.collect(2, into=_storage(collector, 4), on_row=lambda *_: 1 / 0)  # type: ignore[arg-type]  # fails on purpose
    assert not collector.has_episodes
    _, rollout = _collect(collector, 1)
    assert isinstance(rollout.observation, Tensor)
    assert _lists(rollout.observation[0]) == [[0, 1, 0], [1, 1, 0]]


def test_a_reset_that_fails_leaves_no_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = _collector(_envs(SAME_STEP))
    _collect(collector, 1)
    monkeypatch.setattr(collector.envs, "reset", lambda seed: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        collector.reset()
    assert not collector.has_episodes


def test_a_run_that_was_saved_after_its_warm_up_does_not_repeat_the_start() -> None:
    seeds = []
    for warm_up_rows in (0, 4):
        collector = _collector(_random_envs(Stateless))
        collector.load_state_dict({**collector.state_dict(), "warm_up_rows": warm_up_rows})
        seeds.append(collector.seed)
    assert seeds[0] == 3
    assert seeds[1] not in (3, None)


def test_runs_saved_at_different_steps_go_on_with_different_seeds() -> None:
    seeds = []
    for total_steps in (2, 4):
        collector = _collector(_random_envs(Stateless))
        collector.load_state_dict({**collector.state_dict(), "total_steps": total_steps})
        seeds.append(collector.seed)
    assert None not in seeds
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize("steps", [0, 2])
def test_environments_that_resume_their_random_numbers_are_not_seeded_again(steps: int) -> None:
    collector, restored = (_collector(WalkVecEnv(2)) for _ in range(2))
    collector.reset()
    collector.collect(2 * steps, into=_storage(collector, 2))
    restored.load_state_dict(collector.state_dict())
    for each in (collector, restored):
        each.reset()
    check_same_state(restored.state_dict(), collector.state_dict())


def test_a_state_of_another_run_is_refused() -> None:
    plain, scaled = (_collector(_envs(SAME_STEP)) for _ in range(2))
    scaled.reward_scaler = RewardScaler(2)
    for saved, other in ((plain, scaled), (scaled, plain)):
        with pytest.raises(CheckpointError, match=r"has scale_rewards=\w+, but this one has \w+"):
            other.load_state_dict(saved.state_dict())
    with pytest.raises(CheckpointError, match="'noise_cursor' is beyond the saved noise"):
        plain.load_state_dict({**plain.state_dict(), "noise_cursor": 1})


class RandomActor(ToyActor):
    """Would always choose action 0, unless asked for a random one."""

    def random_actions(
        self, num_envs: int, generator: torch.Generator, observation: Observation | None = None
    ) -> Tensor:
        return torch.randint(1, 2, (num_envs,), generator=generator)

    def to_env_action(self, action: Tensor) -> Tensor:
        return action

    def distribution(
        self, observation: Observation, state: State, episode_start: Tensor | None = None
    ) -> tuple[Distribution, State]:
        assert isinstance(observation, Tensor)
        logits = torch.tensor([1e6, 0.0]).expand(len(observation), 2)
        return Categorical(logits), state


class LateStart(ToyActorCritic):
    @property
    def schedule(self) -> UpdateSchedule:
        return UpdateSchedule(start_steps=5)


def test_the_first_steps_are_random() -> None:
    envs = _envs(NEXT_STEP)
    actor = RandomActor(envs.single_observation_space, envs.single_action_space)
    collector = Collector(envs, LateStart(actor), generator=torch.Generator())
    _, rollout = _collect(collector, 5)
    # Transitions count, not rows: 2, 4, and 5 with a row that only reset.
    assert _lists(rollout.action) == [[1, 1], [1, 1], [1, 1], [0, 0], [0, 0]]


def test_an_actor_without_random_actions_says_so() -> None:
    envs = _envs(SAME_STEP)
    algorithm = LateStart(ToyActor(envs.single_observation_space, envs.single_action_space))
    with pytest.raises(ConfigError, match="no random ones"):
        _collect(Collector(envs, algorithm, generator=torch.Generator()), 1)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("mode", [SAME_STEP, NEXT_STEP])
def test_environments_of_tensors_are_collected_alike(mode: AutoresetMode, scale: bool) -> None:
    rows = [partial(CountingEnv, [2], True, 0), partial(CountingEnv, [3], False, 1)]
    tensors = GymVecEnv(AsTensors(SyncVectorEnv(rows, autoreset_mode=mode)))
    results = []
    for envs in (_envs(mode), tensors):
        collector = _collector(envs)
        collector.reward_scaler = RewardScaler(2) if scale else None
        early, _ = _collect(collector, 3)
        storage = _storage(collector, 6)
        more = collector.collect(12, into=storage)
        episodes = [str(episode) for episode in early + more]
        results.append(cast("StateValue", {**stored(storage), "episodes": episodes}))
    assert tensors.array_type == "torch"
    check_same_state(results[1], results[0])


class Overwriting(GymVecEnv):
    """Writes into the actions that it gets."""

    def step(self, action: ArrayLike) -> EnvStep:
        outcome = super().step(deepcopy(action))
        action[...] = 77
        return outcome


@pytest.mark.parametrize("as_tensors", [False, True])
def test_what_environments_make_of_their_actions_is_not_stored(as_tensors: bool) -> None:
    rows = SyncVectorEnv([partial(CountingEnv, [9])] * 2, autoreset_mode=SAME_STEP)
    envs = Overwriting(AsTensors(rows) if as_tensors else rows)
    _, rollout = _collect(_collector(envs), 4)
    assert not rollout.action.eq(77).any()


class Nested(CountingEnv):
    """Shows its count in a dict."""

    def __init__(self, index: int) -> None:
        super().__init__([2], False, index)
        self.observation_space = spaces.Dict(
            {
                "count": spaces.Box(0.0, np.inf, (3,), np.float32),
                "inner": spaces.Dict({"step": spaces.Discrete(9)}),
            }
        )

    def _observe(self) -> Any:
        return {"count": super()._observe(), "inner": {"step": self.steps}}


def test_dict_observations_keep_their_final_ones() -> None:
    rows = [partial(Nested, index) for index in range(2)]
    envs = GymVecEnv(SyncVectorEnv(rows, autoreset_mode=SAME_STEP))
    _, rollout = _collect(_dict_collector(envs), 3)
    assert isinstance(rollout.observation, Mapping)
    assert set(rollout.observation) == {"count", "inner/step"}
    assert _lists(rollout.observation["inner/step"]) == [[0, 0], [1, 1], [0, 0]]
    assert rollout.observation["inner/step"].dtype == torch.int64
    assert isinstance(rollout.final_observation, Mapping)
    assert _lists(rollout.final_index) == [[1, 0], [1, 1]]
    assert _lists(rollout.final_observation["count"]) == [[0, 0, 2], [1, 0, 2]]
    assert _lists(rollout.final_observation["inner/step"]) == [2, 2]
    assert isinstance(rollout.next_observation, Mapping)
    assert _lists(rollout.next_observation["inner/step"]) == [1, 1]


def _dict_collector(envs: VecEnv) -> Collector:
    algorithm = ToyActorCritic(ToyActor(envs.single_observation_space, envs.single_action_space))
    return Collector(envs, algorithm, generator=torch.Generator())


def test_the_spec_says_what_will_be_inserted() -> None:
    envs = _envs(SAME_STEP)
    spec = _collector(envs, remembers=True).storage_spec()
    assert spec.observation == TensorSpec((3,), torch.float32)
    assert spec.action == TensorSpec((), torch.int64)
    assert (spec.num_envs, dict(spec.state_sizes)) == (2, {"sum": 3})
    assert dict(spec.extras) == {"shown": TensorSpec((), torch.float32)}
    assert spec.goal_functions == envs.goal_functions  # of these very environments


@pytest.mark.parametrize("scale", [False, True])
def test_the_spec_says_whether_rewards_are_scaled(scale: bool) -> None:
    collector = _collector(_envs(SAME_STEP))
    collector.reward_scaler = RewardScaler(2) if scale else None
    assert collector.storage_spec().scales_rewards is scale


def test_a_reset_ends_the_sums_that_scale_rewards() -> None:
    collector = _collector(counting_envs([[9], [9]], [True, True]))
    collector.reward_scaler = RewardScaler(2, gamma=0.5)
    _collect(collector, 2)  # sums of 1 and 2.5
    collector.reset()
    _collect(collector, 1)  # and of 101, not 102.25
    variance = collector.reward_scaler.state_dict()["var"]
    assert variance == pytest.approx(np.var([1.0, 1.0, 2.5, 2.5, 101.0, 101.0]))


class Chosen(gymnasium.Env[Any, Any]):
    """Writes down which actions it is given."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, taken: list[int]) -> None:
        self.taken = taken

    def reset(self, **_: Any) -> tuple[NDArray[np.float32], dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.taken.append(int(action))
        return np.zeros(1, np.float32), 0.0, False, False, {}


def test_the_warm_up_acts_at_random_and_counts_nothing() -> None:
    taken: list[int] = []
    envs = GymVecEnv(SyncVectorEnv([lambda: Chosen(taken)] * 2, autoreset_mode=SAME_STEP))
    actor = RandomActor(envs.single_observation_space, envs.single_action_space)
    collector = Collector(envs, LateStart(actor), generator=torch.Generator())
    collector.warm_up(3)
    assert taken == [1, 1, 1, 1]  # whole steps of both; the policy would choose 0
    assert collector.total_steps == 0


def test_random_actions_reach_environments_in_their_own_units() -> None:
    class Flipped(RandomActor):
        def to_env_action(self, action: Tensor) -> Tensor:
            return 1 - action

    taken: list[int] = []
    envs = GymVecEnv(SyncVectorEnv([lambda: Chosen(taken)] * 2, autoreset_mode=SAME_STEP))
    actor = Flipped(envs.single_observation_space, envs.single_action_space)
    _, rollout = _collect(Collector(envs, LateStart(actor), generator=torch.Generator()), 1)
    assert _lists(rollout.action) == [[1, 1]]
    assert taken == [0, 0]


def test_training_begins_with_new_episodes_after_the_warm_up() -> None:
    envs = counting_envs([[9]], [True])
    actor = RandomActor(envs.single_observation_space, envs.single_action_space)
    collector = Collector(envs, LateStart(actor), generator=torch.Generator(), seed=3)
    collector.warm_up(3)
    storage = _storage(collector, 2)
    collector.collect(2, storage)
    rollout = storage.rollout()
    assert isinstance(rollout.observation, Tensor)
    assert rollout.observation[:, 0, 2].tolist() == [0.0, 1.0]
    assert rollout.episode_start[:, 0].tolist() == [True, False]
    collector.warm_up(3)  # is done, and leaves the episodes alone
    storage.reset()
    collector.collect(2, storage)
    assert storage.rollout().episode_start[:, 0].tolist() == [False, False]


def test_an_error_in_the_warm_up_ends_the_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = counting_envs([[9]], [True])
    actor = RandomActor(envs.single_observation_space, envs.single_action_space)
    collector = Collector(envs, LateStart(actor), generator=torch.Generator())
    collector.reset()
    monkeypatch.setattr(envs, "step", lambda action: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        collector.warm_up(3)
    assert not collector.has_episodes


class Looking(PolicyLossAddOn):
    """Remembers the steps that the observations of the warm-up show."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def observe(self, observation: Observation) -> None:
        assert isinstance(observation, Tensor)
        self.seen += observation[:, 2].tolist()

    def compute_loss_term(
        self,
        batch: RolloutBatch | ReplayBatch,
        distribution: Distribution,
        info: Mapping[str, Tensor],
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        raise AssertionError("nothing is learned")


def test_add_ons_see_what_the_random_actions_of_the_warm_up_lead_to() -> None:
    envs = counting_envs([[2]], [True])
    actor = RandomActor(envs.single_observation_space, envs.single_action_space)
    looking = Looking()
    algorithm = ToyActorCritic(actor, add_ons=looking)
    Collector(envs, algorithm, generator=torch.Generator()).warm_up(3)
    assert looking.seen == [1.0, 0.0, 1.0]  # the second step ends an episode, the next one begins


class Restarting(ToyActorCritic):
    """Begins every rollout with new episodes."""

    def before_rollout(self, envs: VecEnv) -> bool:
        self.num_rollouts = getattr(self, "num_rollouts", 0) + 1
        return True


def test_an_algorithm_may_begin_each_rollout_with_new_episodes() -> None:
    envs = counting_envs([[9]], [True])
    actor = ToyActor(envs.single_observation_space, envs.single_action_space)
    algorithm = Restarting(actor)
    collector = Collector(envs, algorithm, generator=torch.Generator(), seed=3)
    storage = _storage(collector, 4)
    collector.collect(0, storage)
    collector.collect(3, storage, lambda: True)
    assert getattr(algorithm, "num_rollouts", 0) == 0
    for rollout in (1, 2):
        collector.collect(2, storage)
        collector.collect(2, storage)  # goes on with the same rollout
        assert algorithm.num_rollouts == rollout
        observation = storage.rollout().observation
        assert isinstance(observation, Tensor)
        assert observation[:, 0, 2].tolist() == [0.0, 1.0, 2.0, 3.0]
        storage.after_update()
