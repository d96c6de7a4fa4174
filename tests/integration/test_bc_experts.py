from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rl_algos_offpolicy import BC, SAC, BCConfig, OffPolicyActor, OffPolicyActorConfig
from rl_algos_offpolicy.actor.config import PolicyKind
from rl_algos_offpolicy.experts import ExpertPolicy
from rl_algos_onpolicy import OnPolicyActor
from rl_core.errors import CheckpointError, ConfigError, DataError, SpaceError
from rl_core.spaces import Space
from rl_core.stateful import StateReader
from rl_envs import SyncVecEnv
from rl_testing.replay import ReferenceReplayStorage
from rl_testing.scripted import IdentityEnv
from rl_testing.storages import seeded
from rl_testing.toy import ToyActor
from rl_train import Collector, Trainer, load_actor

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)


BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))


def _actor(
    space: Space, policy: PolicyKind = "stochastic", seed: int = 0, seen: Space = VECTOR
) -> OffPolicyActor:
    torch.manual_seed(seed)
    config = OffPolicyActorConfig(policy=policy, hidden_sizes=(8,), num_critics=1)
    return OffPolicyActor(seen, space, config)


class Prioritized(ReferenceReplayStorage):
    """A storage that wants errors of values."""

    needs_td_errors = True


def test_switches_have_no_distances() -> None:
    with pytest.raises(ConfigError, match=r"loss 'mse' needs real actions, but those of MultiBin"):
        BC(OnPolicyActor(VECTOR, spaces.MultiBinary(3)), BCConfig(loss="mse"))


@pytest.mark.parametrize(
    ("storage", "problem"),
    [
        (ReferenceReplayStorage(n_step=4), "transitions of up to 4 steps; leave storage.n_step"),
        (Prioritized(), "leave storage.prioritized out"),
    ],
)
def test_storages_that_are_about_values_are_refused_at_set_up(
    storage: ReferenceReplayStorage, problem: str
) -> None:
    envs = SyncVecEnv([IdentityEnv(SQUARE, 5)])
    learner = BC(_actor(SQUARE, seen=SQUARE), expert=_identity)
    with pytest.raises(ConfigError, match=problem):
        Trainer(envs, learner, storage)


SQUARE = spaces.Box(-2.0, 2.0, (2,), np.float32)


def _collected(
    learner: BC, env_space: Space, steps: int = 40, num_envs: int = 2
) -> ReferenceReplayStorage:
    """Let the learner's expert act in environments whose right action is what they show."""
    envs = SyncVecEnv([IdentityEnv(env_space, 5) for _ in range(num_envs)])
    collector = Collector(envs, learner, generator=torch.Generator(), seed=0)
    storage = ReferenceReplayStorage(200)
    storage.allocate(collector.storage_spec(), seeded())
    episodes = collector.collect(steps, into=storage)
    assert all(abs(episode.episode_return - 5.0) < 1e-5 for episode in episodes)
    assert len(episodes) == steps // 5
    return storage


def _identity(observation: object) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    return np.asarray(observation)


@pytest.mark.parametrize("space", [SQUARE, spaces.Discrete(4, start=3)])
def test_the_expert_acts_and_its_actions_are_stored_as_the_learners(space: Space) -> None:
    storage = _collected(BC(_actor(space, seen=space), expert=_identity), space)
    for row in storage.transitions():
        own = row["observation"] / 2.0 if isinstance(space, spaces.Box) else row["observation"] - 3
        torch.testing.assert_close(row["action"], own)


class Echo(ToyActor):
    """Does what it sees, and remembers how often it did."""

    def get_action(self, observation, state, noise, deterministic=False, episode_start=None):  # type: ignore[no-untyped-def]
        output = super().get_action(observation, state, noise, deterministic, episode_start)
        return type(output)(output.action, observation, {"sum": state["sum"] + 1.0})


def _memory(learner: BC) -> Tensor:
    return StateReader(learner.more_state(), "").reader("expert").tensor("sum")


def test_an_experts_memory_is_its_own_and_is_saved() -> None:
    space = spaces.Discrete(4)
    learner = BC(_actor(space, seen=space), expert=Echo(space, space, remembers=True))
    _collected(learner, space, steps=20)
    memory = _memory(learner)
    assert memory.tolist() == [[10.0] * 4] * 2
    other = BC(_actor(space, seen=space), expert=Echo(space, space, remembers=True))
    other.load_state_dict(learner.state_dict())
    assert torch.equal(_memory(other), memory)
    with pytest.raises(CheckpointError, match="the saved expert has the states"):
        BC(_actor(space, seen=space), expert=_identity).load_state_dict(learner.state_dict())
    _collected(learner, space, steps=15, num_envs=3)  # what it remembers is of two others
    assert _memory(learner).tolist() == [[5.0] * 4] * 3


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda seen: seen[:1], r"shape \(1, 2\) and dtype float32; expected \(2, 2\) and float32"),
        (lambda seen: seen.astype(np.int64), r"shape \(2, 2\) and dtype int64; expected"),
        (lambda seen: np.where([[False], [True]], 50.0, seen), "of observation 1 is .*50"),
        (lambda seen: np.full_like(seen, np.nan), "of observation 0 is .*nan"),
    ],
)
def test_a_function_that_returns_no_actions_is_refused(
    answer: Callable[[np.ndarray], np.ndarray], problem: str
) -> None:
    with pytest.raises(DataError, match=f"the expert returned: .*{problem}"):
        _collected(BC(_actor(SQUARE, seen=SQUARE), expert=answer), SQUARE)  # type: ignore[arg-type]


def test_experts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SpaceError, match="the expert's action space is"):
        BC(_actor(BOX), expert=SAC(_actor(SQUARE)))
    with pytest.raises(ConfigError, match="expert is int; expected an actor"):
        BC(_actor(BOX), expert=3)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ConfigError, match="leave one out"):
        BC(_actor(BOX), BCConfig(expert="runs/sac"), expert=_identity)
    learner = BC(_actor(SQUARE, seen=SQUARE), BCConfig(expert="runs/sac"))
    with pytest.raises(ConfigError, match=r"give the actor itself: load_actor of rl_train loads"):
        _collected(learner, SQUARE)


def test_an_expert_that_is_not_there_is_noticed_before_anything_is_written(tmp_path: Path) -> None:
    loader = partial(load_actor, observation_space=SQUARE, action_space=SQUARE)
    config = BCConfig(expert="no/such/run")
    learner = BC(_actor(SQUARE, seen=SQUARE), config, load_actor=loader)
    envs = SyncVecEnv([IdentityEnv(SQUARE, 5)])
    run_dir = tmp_path / "run"
    with pytest.raises(CheckpointError, match="no/such/run is not a run: it is not a directory"):
        Trainer(envs, learner, ReferenceReplayStorage(), run_dir=run_dir)
    assert not run_dir.exists()


class Elsewhere(Echo):
    """Is on another device, and can only do what it sees there."""

    @property
    def device(self) -> torch.device:
        return torch.device("meta")

    def get_action(self, observation, state, noise, deterministic=False, episode_start=None):  # type: ignore[no-untyped-def]
        assert {observation.device.type, noise.device.type, episode_start.device.type} == {"meta"}
        starts = torch.zeros(2, dtype=torch.bool)
        return super().get_action(torch.ones(2), state, None, deterministic, starts)  # type: ignore[no-untyped-call]  # as above


def test_an_expert_on_another_device_is_brought_what_it_needs() -> None:
    space = spaces.Discrete(4)
    expert = ExpertPolicy(
        Elsewhere(space, space, remembers=True), _actor(space, seen=space), is_deterministic=True
    )
    expert.state = {"sum": torch.zeros(2, 4)}
    action = expert.act(torch.zeros(2, dtype=torch.int64), torch.zeros(2, 0), torch.zeros(2) > 0)
    assert action.tolist() == [1, 1]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("is_deterministic", [True, False])
def test_an_expert_on_the_cpu_teaches_a_learner_on_the_gpu(is_deterministic: bool) -> None:
    expert, learner = _actor(SQUARE, seed=3, seen=SQUARE), _actor(SQUARE, seen=SQUARE).to("cuda")
    policy = ExpertPolicy(expert, learner, is_deterministic=is_deterministic)
    noise = policy.draw_noise((2,), torch.Generator("cuda"))
    observation = torch.rand(2, *SQUARE.shape)
    starts = torch.zeros(2, dtype=torch.bool, device="cuda")
    action = policy.act(observation.to("cuda"), noise, starts)
    mode = expert.get_action(observation, {}, None, True).env_action
    assert noise.device == action.device == learner.device
    assert torch.allclose(action.cpu(), mode) == is_deterministic


def test_without_an_expert_nothing_is_collected_and_steps_are_gradient_steps() -> None:
    learner = BC(_actor(BOX), BCConfig(num_minibatches=7))
    assert not learner.collects
    assert learner.schedule.update_every == 7
    storage = ReferenceReplayStorage()
    with pytest.raises(ConfigError, match="BC has nobody to imitate"):
        learner.update(storage)


def test_a_deterministic_expert_is_its_mode_and_another_samples() -> None:
    expert, observation = _actor(BOX, seed=3), torch.rand(6, 3)
    noise = expert.draw_noise((6,), seeded())
    answers: list[Tensor] = []
    for is_deterministic in (True, False):
        config = BCConfig(deterministic_expert=is_deterministic)
        learner = BC(_actor(BOX), config, expert=expert)
        answers.append(learner.acting_step(observation, {}, noise).env_action)
    assert torch.equal(answers[0], expert.get_action(observation, {}, None, True).env_action)
    assert torch.equal(answers[1], expert.get_action(observation, {}, noise).env_action)
    quiet = learner.acting_step(observation, {}, noise, True)  # of what was learned, not shown
    assert torch.equal(quiet.action, learner.actor.get_action(observation, {}, None, True).action)


def test_an_expert_acts_in_evaluation_mode_and_goes_on_as_it_was() -> None:
    space, modes = spaces.Discrete(4), set[bool]()

    class Watched(Echo):
        def get_action(self, observation, state, noise, deterministic=False, episode_start=None):  # type: ignore[no-untyped-def]
            modes.add(self.training)
            return super().get_action(observation, state, noise, deterministic, episode_start)  # type: ignore[no-untyped-call]  # as above

    expert = Watched(space, space, remembers=True)
    _collected(BC(_actor(space, seen=space), expert=expert), space)
    assert modes == {False}
    assert expert.training
