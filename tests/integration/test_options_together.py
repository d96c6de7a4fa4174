"""Features that are each right alone, and what they do together."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import rl_train
from rl_algos_offpolicy import DQN, DQNConfig, OffPolicyActor, OffPolicyActorConfig
from rl_core.errors import CheckpointError, ConfigError
from rl_core.storage import HasTrajectories
from rl_envs import make_vec
from rl_storages import ReplayBuffer
from rl_train import Agent, Callback, Trainer, TrainerConfig, evaluate_policy

SMALL: dict[str, Any] = {"hidden_sizes": (8,), "minibatch_size": 8, "update_after": 20}


def trained(
    algorithm: str, env: Any, total_steps: int, run_dir: Path | None = None, **options: Any
) -> Agent:
    more = {} if algorithm == "bc" else SMALL
    agent = rl_train.make(algorithm, env, seed=0, **{**more, **options})
    agent.train(total_steps=total_steps, run_dir=run_dir, progress=False)
    return agent


def trainer_of(agent: Agent) -> Trainer:
    assert agent._trainer is not None
    return agent._trainer


class Counting(gymnasium.Env[Any, Any]):
    """Observes which episode it is and how many steps it has had, of ten."""

    observation_space = spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = spaces.Discrete(2)
    episode = steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        return np.array([self.episode, 0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        observation = np.array([self.episode, self.steps], np.float32)
        return observation, 1.0, False, self.steps >= 10, {}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of 60 steps of CartPole, whose rewards are 1."""
    directory = tmp_path_factory.mktemp("runs") / "demo"
    trained("dqn", "CartPole-v1", 60, directory, n_step=1)
    return directory


def test_demonstrations_have_the_rewards_of_the_run(demo: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"demo was recorded with env.training_reward_scale=1.0"):
        rl_train.make("dqn", "CartPole-v1", demonstrations=str(demo), training_reward_scale=0.1)
    with pytest.raises(ConfigError, match=r"env.training_reward_clip=none, but this run has 0.5"):
        rl_train.make("dqn", "CartPole-v1", demonstrations=str(demo), training_reward_clip=0.5)
    halved: dict[str, Any] = {"training_reward_scale": 0.5, "n_step": 1}
    trained("dqn", "CartPole-v1", 60, tmp_path / "halved", **halved)
    with pytest.raises(ConfigError, match=r"training_reward_scale=0.5, but this run has 1.0"):
        rl_train.make("dqn", "CartPole-v1", demonstrations=str(tmp_path / "halved"))
    agent = trained("dqn", "CartPole-v1", 60, demonstrations=str(tmp_path / "halved"), **halved)
    storage = cast("HasTrajectories[Any]", trainer_of(agent).storage)
    rewards = torch.cat([each.reward for each in storage.trajectories()])
    assert rewards.tolist() == [0.5] * 120


def test_rewards_that_were_scaled_by_statistics_are_no_demonstrations(tmp_path: Path) -> None:
    trained("dqn", "CartPole-v1", 60, tmp_path / "run", scale_rewards=True)
    with pytest.raises(ConfigError, match="rewards that scale_rewards divided"):
        trained("dqn", "CartPole-v1", 60, demonstrations=str(tmp_path / "run"))


def test_observations_that_are_scaled_otherwise_are_noticed(tmp_path: Path) -> None:
    run = tmp_path / "rescaled"
    trained("sac", "Pendulum-v1", 60, run, rescale_observation=True, start_steps=20)
    with pytest.raises(ConfigError, match=r"env.rescale_observation=True, but this run has False"):
        rl_train.make("sac", "Pendulum-v1", demonstrations=str(run))
    with pytest.raises(CheckpointError, match=r"rescaled.*its observation space is Box\(-1.0"):
        trained("bc", "Pendulum-v1", 60, expert=str(run))
    with pytest.warns(UserWarning, match="of Pendulum-v1 with rescale_observation=True, and this"):
        rl_train.make("sac", "Pendulum-v1", restart_model=run, **SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rl_train.make(
            "sac", "Pendulum-v1", restart_model=run, rescale_observation=True, **SMALL
        ).close()


def test_options_that_a_built_environment_does_not_get_are_told(tmp_path: Path) -> None:
    options = {"rescale_action": True, "training_reward_scale": 0.1, "start_steps": 20}
    trained("sac", lambda: gymnasium.make("Pendulum-v1"), 60, tmp_path / "run", **options)
    with pytest.warns(
        UserWarning, match=r"env.rescale_action, env.training_reward_scale: not applied to an"
    ):
        rl_train.load(tmp_path / "run", env=gymnasium.make("Pendulum-v1"))


@pytest.mark.parametrize("evaluate", [Agent.evaluate, evaluate_policy])
def test_training_goes_on_with_new_episodes_after_an_evaluation_in_its_environment(
    evaluate: Callable[..., Any],
) -> None:
    env = Counting()
    agent = trained("dqn", env, 25, n_step=1)
    if evaluate is evaluate_policy:
        assert evaluate_policy(agent, env, 2).returns == (10.0, 10.0)
    else:
        assert agent.evaluate(2, envs=env).returns == (10.0, 10.0)
    agent.train(total_steps=50, progress=False)
    (batch,) = trainer_of(agent).storage.generate_batches(1, 500)
    assert torch.equal(batch.observation[:, 0], batch.next_observation[:, 0])
    assert torch.equal(batch.observation[:, 1] + 1, batch.next_observation[:, 1])
    assert set(batch.observation[:, 0].tolist()) == {1.0, 2.0, 3.0, 7.0, 8.0, 9.0}


def test_no_evaluation_breaks_off_episodes_in_the_middle_of_training() -> None:
    class Evaluating(Callback):
        def on_update_end(self, trainer: Trainer) -> None:
            agent.evaluate(2, envs=env)

    env = Counting()
    agent = rl_train.make("dqn", env, seed=0, **SMALL)
    with pytest.raises(ConfigError, match="would break off their episodes; make others for it"):
        agent.train(total_steps=50, callbacks=[Evaluating()], progress=False)


def test_what_an_agent_saves_in_the_middle_of_training_is_of_that_moment(tmp_path: Path) -> None:
    class Saving(Callback):
        def on_update_end(self, trainer: Trainer) -> None:
            agent.save(tmp_path / f"at-{trainer.total_steps}")

    agent = rl_train.make("dqn", "CartPole-v1", seed=0, num_envs=1, **SMALL)
    agent.train(total_steps=60, callbacks=[Saving()], progress=False)
    saved = sorted(tmp_path.iterdir(), key=lambda path: int(path.name.removeprefix("at-")))
    assert len(saved) > 1
    for path in saved:
        assert [each.name for each in (path / "checkpoints").iterdir()] == [f"step-{path.name[3:]}"]


def _trainer(run_dir: Path, *, scale: bool = False, n_step: int = 1, **options: Any) -> Trainer:
    envs = make_vec("CartPole-v1", 1, seed=0)
    config = OffPolicyActorConfig(policy="greedy", hidden_sizes=(8,))
    actor = OffPolicyActor(envs.single_observation_space, envs.single_action_space, config)
    return Trainer(
        envs,
        DQN(actor, DQNConfig(update_after=10, minibatch_size=8, **options)),
        ReplayBuffer(200, n_step=n_step),
        config=TrainerConfig(scale_rewards=scale),
        seed=0,
        run_dir=run_dir,
    )


def test_a_run_is_resumed_with_the_options_that_it_began_with(tmp_path: Path) -> None:
    _trainer(tmp_path, scale=True, gamma=0.9).train(total_steps=30, progress=False)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"scale": True, "gamma": 0.5}, r"algorithm.gamma is 0.5, but 0.9 in .*step-30"),
        ({"scale": True, "gamma": 0.9, "n_step": 3}, "storage.n_step is 3, but 1 in"),
        ({"gamma": 0.9}, "has scale_rewards=True, but this one has False"),
    ]
    for options, message in cases:
        expected = ConfigError if options.get("scale") else CheckpointError
        with pytest.raises(expected, match=message):
            _trainer(tmp_path, **options).resume()
    resumed = _trainer(tmp_path, scale=True, gamma=0.9)
    resumed.resume()
    assert resumed.train(total_steps=60, progress=False).total_steps == 60


@pytest.mark.parametrize("checkpoint_replay", [True, False])
def test_demonstrations_count_once_in_statistics(
    demo: Path, tmp_path: Path, checkpoint_replay: bool
) -> None:
    options = {"normalize_observations": True, "checkpoint_replay": checkpoint_replay}
    trained(
        "dqn", "CartPole-v1", 40, tmp_path / "run", num_envs=1, demonstrations=str(demo), **options
    )
    agent = rl_train.load(tmp_path / "run")
    agent.train(total_steps=80, run_dir=tmp_path / "run", progress=False)
    (count,) = (
        float(value) for name, value in agent.actor.state_dict().items() if name.endswith("count")
    )
    assert count == 60 + 80


def test_live_parameters_of_a_storage_outlive_it(tmp_path: Path) -> None:
    agent = rl_train.make(
        "dqn",
        "CartPole-v1",
        checkpoint_replay=False,
        options={"storage": {"prioritized": {}, "recent": {"cmin": 10}}},
        **SMALL,
    )
    agent.train(total_steps=40, run_dir=tmp_path / "run", progress=False)
    storage = trainer_of(agent).storage
    storage.update_storage_parameter("alpha", 0.2)
    storage.update_storage_parameter("eta", 0.5)
    agent.train(total_steps=60, progress=False)
    loaded = rl_train.load(tmp_path / "run")
    loaded.train(total_steps=80, run_dir=tmp_path / "run", progress=False)
    parameters = trainer_of(loaded).storage.live_parameters()
    assert (parameters["alpha"], parameters["eta"]) == (0.2, 0.5)


def test_a_cloned_policy_does_not_explore_like_its_expert(demo: Path) -> None:
    with pytest.raises(ConfigError, match=r"expert acts; leave trainer.explore_in_tests"):
        trained("bc", "CartPole-v1", 40, expert=str(demo), explore_in_tests=True)


class Ending(nn.Sequential):
    """An encoder that ends with a layer."""

    def __init__(self, layer: nn.Module, space: gymnasium.Space[Any]) -> None:
        super().__init__(nn.Linear(4, 8), layer)
        self.out_features = 8


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.Dropout(0.1), "is Dropout, which draws from torch's global"),
        (nn.BatchNorm1d(8), "is BatchNorm1d, whose statistics change with every batch"),
    ],
)
def test_layers_that_surprise_in_training_are_told(layer: nn.Module, message: str) -> None:
    envs = make_vec("CartPole-v1", 1, seed=0)
    spaces_ = envs.single_observation_space, envs.single_action_space
    config = OffPolicyActorConfig(policy="greedy", hidden_sizes=(8,))
    actor = OffPolicyActor(*spaces_, config, observation_extractor=partial(Ending, layer))
    with pytest.warns(RuntimeWarning, match=message):
        Trainer(envs, DQN(actor), ReplayBuffer(200), seed=0)
