"""Agents: made by name, composed by hand, saved, loaded, and asked for actions."""

import copy
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from torch import Tensor, nn

import rl_train
from rl_algos_offpolicy import DQN, SAC, OffPolicyActor, OffPolicyActorConfig
from rl_algos_onpolicy import PPO, OnPolicyActor, OnPolicyActorConfig, PPOConfig
from rl_command.main import main
from rl_command.train_arguments import read_train_request
from rl_core.actor import Actor
from rl_core.config import ComponentSpec, Linear
from rl_core.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DeviceError,
    PluginError,
    RLError,
    SpaceError,
)
from rl_core.types import Json
from rl_envs import make_gym_vec, make_vec
from rl_storages import ReplayBuffer, RolloutStorage
from rl_testing.replay import ReferenceReplayStorage
from rl_testing.scripted import WalkVecEnv
from rl_testing.stateful import check_same_state, copy_state
from rl_train import Agent, Callback, Trainer, evaluate_policy
from rl_train.builder import Sections, build, build_trainer, compose, resolve_device
from rl_train.builder.recipes import _Given
from rl_train.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from rl_train.checkpoint.weights import actor_weights
from rl_train.loggers import read_metrics

SMALL: Sections = {
    "env": {"num_envs": 2},
    "storage": {"num_steps": 16},
    "actor": {"hidden_sizes": [8]},
    "algorithm": {"minibatch_size": 16, "num_epochs": 1},
}


def small_agent(**algorithm_options: Json) -> Agent:
    algorithm = {**SMALL["algorithm"], **algorithm_options}
    return rl_train.make("ppo", "CartPole-v1", seed=3, options={**SMALL, "algorithm": algorithm})


def small_recurrent_agent() -> Agent:
    actor = {**SMALL["actor"], "recurrent_net": "gru"}
    return rl_train.make("ppo", "CartPole-v1", seed=3, options={**SMALL, "actor": actor})


def test_frozen_layers_stay_frozen_in_a_loaded_agent_until_they_are_released(
    tmp_path: Path,
) -> None:
    def begin() -> Agent:
        agent = small_agent()
        cast("OnPolicyActor", agent.actor).policy_torso.requires_grad_(False)
        return agent

    def torso(agent: Agent) -> list[Tensor]:
        return [part.clone() for part in cast("Any", agent.actor).policy_torso.parameters()]

    whole, first = begin(), begin()
    whole.train(total_steps=64, progress=False)
    first.train(total_steps=32, progress=False)
    first.save(tmp_path / "a")
    loaded = rl_train.load(tmp_path / "a")
    loaded.save(tmp_path / "b")  # without any training in between
    again = rl_train.load(tmp_path / "b")
    again.train(total_steps=64, progress=False)
    check_same_state(again.algorithm.state_dict(), whole.algorithm.state_dict())
    before = torso(loaded)
    cast("Any", loaded.actor).policy_torso.requires_grad_(True)
    loaded.train(total_steps=64, progress=False)
    assert not torch.equal(before[0], torso(loaded)[0])


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_what_is_changed_of_a_loaded_agent_stays_changed(tmp_path: Path, algorithm: str) -> None:
    options: Sections = {"trainer": {"compile": "off"}}
    if algorithm == "ppo":
        options = {**SMALL, **options}
    first = rl_train.make(algorithm, "CartPole-v1", seed=3, options=options)
    first.train(total_steps=64)
    first.save(tmp_path / "first")
    loaded = rl_train.load(tmp_path / "first")
    with torch.no_grad():
        for parameter in loaded.actor.parameters():
            parameter.fill_(0.5)
    loaded.algorithm.update_algorithm_parameter("learning_rate", 0.0)
    for name in ("second", "third"):
        loaded.save(tmp_path / name)
    for agent in (loaded, rl_train.load(tmp_path / "third")):
        agent.train(total_steps=128)
        assert agent.algorithm.hyper["learning_rate"].item() == 0.0
        assert all(bool((parameter == 0.5).all()) for parameter in agent.actor.parameters())


def test_a_first_call_that_is_refused_may_be_mended(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    agent = small_agent()
    with pytest.raises(ConfigError, match="is not empty"):
        agent.train(total_steps=64, run_dir=tmp_path / "full")
    with pytest.raises(ConfigError, match="give exactly one of total_steps"):
        agent.train(run_dir=tmp_path / "run")
    assert agent.train(total_steps=64, run_dir=tmp_path / "run").total_steps == 64


def test_an_evaluation_where_a_trainer_learns_ends_its_episodes() -> None:
    envs = make_vec("CartPole-v1", seed=0)
    actor = OffPolicyActor(
        envs.single_observation_space,
        envs.single_action_space,
        OffPolicyActorConfig(policy="greedy", num_critics=1),
    )
    trainer = Trainer(envs, DQN(actor), ReplayBuffer(size=1000), seed=0)
    for total, policy in ((50, trainer.algorithm), (100, actor), (150, None)):
        trainer.train(total_steps=total, progress=False)
        if policy is not None:
            evaluate_policy(policy, envs, 1)
    batch = next(iter(trainer.storage.generate_batches(1, 1024)))
    position, velocity = batch.observation[:, 0], batch.observation[:, 1]
    torch.testing.assert_close(batch.next_observation[:, 0], position + 0.02 * velocity)


def test_an_agent_with_environments_of_ones_own_is_trained_and_evaluated(tmp_path: Path) -> None:
    envs = make_vec("CartPole-v1", num_envs=2, seed=0)
    actor = OnPolicyActor(envs.single_observation_space, envs.single_action_space)
    trainer = Trainer(envs, PPO(actor), RolloutStorage(32), seed=0, run_dir=tmp_path / "run")
    trainer.train(total_steps=64)
    own = make_vec("CartPole-v1", num_envs=1, seed=1)
    given = {"env": make_vec(lambda: gymnasium.make("CartPole-v1"), num_envs=2, seed=0)}
    recipe = trainer.recipe
    assert recipe is not None
    loaded = rl_train.load(tmp_path / "run", parts=given)
    assert loaded.train(total_steps=128).total_steps >= 128
    if recipe.env.is_custom:
        with pytest.raises(ConfigError, match="pass envs to evaluate"):
            loaded.evaluate(2)
    assert loaded.evaluate(2, envs=own).num_episodes == 2


def test_an_agent_is_shown_with_what_it_learns_and_how_far_it_is(tmp_path: Path) -> None:
    options = {"storage": {"num_steps": 64}, "env": {"num_envs": 1}}
    agent = rl_train.make("ppo", "CartPole-v1", seed=3, options=options)
    assert repr(agent) == "Agent(ppo on CartPole-v1, seed 3, 0 steps)"
    steps = agent.train(total_updates=1, progress=False).total_steps
    assert repr(agent) == f"Agent(ppo on CartPole-v1, seed 3, {steps} steps)"
    agent.save(tmp_path / "kept")
    assert repr(rl_train.load(tmp_path / "kept")) == repr(agent)


def test_a_section_given_as_an_option_is_pointed_to_its_place() -> None:
    with pytest.raises(ConfigError, match=r"storage is a section, .*options=\{'storage': \{'size'"):
        rl_train.make("dqn", "CartPole-v1", storage={"size": 3})


def test_options_are_found_without_their_section() -> None:
    agent = rl_train.make(
        "ppo",
        "CartPole-v1",
        num_envs=2,
        num_steps=16,
        hidden_sizes=(8,),
        log_every=np.int64(100),
        learning_rate=Linear(3e-4, 0.0),
        clip_range=np.float32(0.5),
    )
    recipe = agent.recipe
    assert (recipe.env["num_envs"], recipe.storage["num_steps"]) == (2, 16)
    assert (recipe.actor["hidden_sizes"], recipe.trainer["log_every"]) == ([8], 100)
    assert recipe.algorithm["learning_rate"] == "linear(0.0003, 0.0)"
    assert recipe.algorithm["clip_range"] == 0.5


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "vpg", "trpo", "rnd-ppo", "bc", "rainbow"])
def test_no_two_sections_share_an_option(algorithm: str) -> None:
    """So that `make` finds the section by the name."""
    recipe = compose(algorithm, "CartPole-v1")
    tables = [recipe.env, recipe.actor, recipe.algorithm, recipe.storage]
    names = [name for table in tables for name in table.kwargs] + list(recipe.trainer)
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": math.nan}, "learning_rate: got nan; expected a finite number"),
        ({"n_steps": 128}, r"unknown option 'n_steps'; did you mean 'num_steps'\?"),
        ({"tau": 0.1}, "unknown option 'tau'; it is an option of other parts: ddpg, dqn, droq"),
        (
            {"options": {"storage": {"size": 9}}},
            "storage.size: rollout has no such option; others have it: replay",
        ),
        ({"net_arch": [64]}, r"unknown option 'net_arch'; did you mean 'hidden_sizes'\?"),
        ({"frobnicate": 1}, r"unknown option 'frobnicate'; make\(\.\.\.\)\.recipe shows all"),
        ({"verbose": 1}, "'verbose'; progress is an argument of train"),
        ({"total_timesteps": 100}, "'total_timesteps'; total_steps is an argument of train"),
        (
            {"policy": "MlpPolicy"},
            "leave it out: the networks follow from the observation",
        ),
        ({"run_dir": "runs"}, "'run_dir'; run_dir is an argument of train"),
        ({"max_episode_steps": 9}, r"give env_kwargs=\{'max_episode_steps': \.\.\.\}"),
        ({"test_envs": None}, "an argument of rl_train.Trainer"),
        ({"activation": nn.ReLU}, "the class ReLU.*; a class is given by its name, such as 'relu'"),
    ],
)
def test_options_that_no_section_has_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rl_train.make("ppo", "CartPole-v1", **options)


def test_an_option_that_is_none_is_not_turned_on_while_a_run_goes_on() -> None:
    algorithm = rl_train.make("ppo", "CartPole-v1", seed=0).algorithm
    with pytest.raises(ConfigError, match="target_kl is none in this run"):
        algorithm.update_algorithm_parameter("target_kl", 0.02)


def own_env() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", max_episode_steps=20)


ENV_KINDS: dict[str, Callable[[], Any]] = {
    "id": lambda: "CartPole-v1",
    "class": lambda: CartPoleEnv,
    "function": lambda: own_env,
    "environment": own_env,
    "class of vectors": lambda: WalkVecEnv,
    "vector": lambda: gymnasium.vector.SyncVectorEnv([own_env] * 2),
    "VecEnv": lambda: make_vec(own_env, num_envs=2),
}


@pytest.mark.parametrize("kind", ENV_KINDS)
def test_every_kind_of_environment_is_trained_evaluated_and_loaded(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = ENV_KINDS[kind]
    is_built = kind in ("environment", "vector", "VecEnv")
    num_envs = 1 if kind == "environment" else 2
    options: dict[str, Any] = {} if is_built else {"num_envs": 2}
    agent = rl_train.make(
        "ppo", env(), num_steps=16, hidden_sizes=[8], minibatch_size=16, seed=3, **options
    )
    assert agent.parts.envs.num_envs == num_envs
    result = agent.train(total_steps=64, run_dir=tmp_path)
    assert (result.evaluation is None) == is_built
    assert evaluate_policy(agent, env(), 2).num_episodes == 2
    if is_built:
        with pytest.raises(ConfigError, match="pass envs to evaluate"):
            agent.evaluate(2)
    else:
        assert agent.evaluate(2).num_episodes == 2
    given = {}
    if kind != "id":
        with pytest.raises(ConfigError, match=r"env was built from Python objects.* or env=\.\.\."):
            rl_train.load(tmp_path)
        assert main(["resume", str(tmp_path), "--total-steps", "128"]) == 2
        assert "rl_train.load(directory, parts=...)" in capsys.readouterr().err
        given = {"env": env()}
    loaded = rl_train.load(tmp_path, **given)
    assert loaded.parts.envs.num_envs == num_envs
    assert loaded.train(total_steps=128).total_steps >= 128


def test_the_trainer_takes_ids_functions_and_classes() -> None:
    envs = make_vec("CartPole-v1")
    actor = OnPolicyActor(envs.single_observation_space, envs.single_action_space)
    for env in ("CartPole-v1", own_env, CartPoleEnv):
        trainer = Trainer(env, PPO(actor), RolloutStorage(num_steps=64), test_envs=env)
        assert trainer.envs.num_envs == 1
        assert trainer.evaluate(2).num_episodes == 2


def test_a_custom_environment_may_become_one_with_a_name(tmp_path: Path) -> None:
    agent = rl_train.make("ppo", own_env, options=SMALL)
    agent.train(total_steps=64, run_dir=tmp_path)
    loaded = rl_train.load(tmp_path, env="CartPole-v1")
    assert (loaded.recipe.env.name, loaded.recipe.env["num_envs"]) == ("CartPole-v1", 2)
    assert loaded.evaluate(2).num_episodes == 2


def _heavy() -> gymnasium.Env[Any, Any]:
    env = gymnasium.make("CartPole-v1", max_episode_steps=15)
    cast("CartPoleEnv", env.unwrapped).gravity = 100.0
    return env


def test_an_agent_goes_on_in_another_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = rl_train.make("ppo", own_env, options=SMALL)
    agent.train(total_steps=64, run_dir=tmp_path / "run", progress=False)
    other = rl_train.load(tmp_path / "run", env=_heavy)
    other.save(tmp_path / "other")
    for loaded in (other, rl_train.load(tmp_path / "other", env=_heavy)):
        loaded.train(total_steps=128)
        assert "new episodes begin, because load was given an env" in capsys.readouterr().err
        for env in cast("Any", loaded.parts.envs).envs:
            assert env.unwrapped.gravity == 100.0
            assert env.get_wrapper_attr("_max_episode_steps") == 15
        assert loaded.total_steps == 128


def test_an_agent_goes_on_in_the_same_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = rl_train.make("ppo", own_env, options=SMALL)
    agent.train(total_steps=64, run_dir=tmp_path / "run", progress=False)
    loaded = rl_train.load(tmp_path / "run", parts={"env": own_env})
    for one in (agent, loaded):
        one.train(total_steps=128)
        assert "new episodes begin" not in capsys.readouterr().err
    check_same_state(dict(loaded.actor.state_dict()), dict(agent.actor.state_dict()))
    with pytest.raises(ConfigError, match="got an env, and another one in parts; leave one"):
        rl_train.load(tmp_path / "run", env=_heavy, parts={"env": own_env})


def test_a_run_on_an_own_environment_is_recorded_as_such(tmp_path: Path) -> None:
    small_agent().train(64, run_dir=tmp_path / "run", progress=False)
    agent = rl_train.load(tmp_path / "run", env=_heavy)
    agent.train(128, run_dir=tmp_path / "other", progress=False)
    assert agent.recipe.env.is_custom
    with pytest.raises(ConfigError, match=r"parts={'env': ...}\), or env=... for new episodes"):
        rl_train.load(tmp_path / "other")


def test_one_environment_cannot_be_several() -> None:
    with pytest.raises(ConfigError, match=r"num_envs=4, but a built .* is one environment"):
        rl_train.make("ppo", own_env(), num_envs=4)
    with pytest.raises(ConfigError, match=r"env\.env_kwargs: has no effect on an environment that"):
        rl_train.make("ppo", own_env(), env_kwargs={"gravity": 1.0})


def test_a_damaged_newest_checkpoint_is_told(tmp_path: Path) -> None:
    agent = small_agent()
    agent.train(64, run_dir=tmp_path)
    agent.train(128)
    (tmp_path / "checkpoints" / "step-128" / "state.json").write_text("{}")
    with pytest.warns(UserWarning, match="step-128 is damaged, so step-64 is used"):
        loaded = rl_train.load(tmp_path)
    assert loaded.train(128).total_steps == 128


def test_options_reach_every_part() -> None:
    agent = rl_train.make("ppo", "CartPole-v1", options=SMALL, learning_rate=0.5)
    assert agent.recipe.algorithm["learning_rate"] == 0.5
    assert agent.recipe.algorithm["num_epochs"] == 1
    assert agent.recipe.actor["hidden_sizes"] == [8]
    assert agent.parts.envs.num_envs == 2
    assert isinstance(agent.parts.storage, RolloutStorage)
    assert agent.parts.storage.num_steps == 16


def test_same_seed_same_weights_and_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    first, second = small_agent(), small_agent()
    assert torch.equal(torch.rand(3), expected)
    for one, other in zip(first.actor.parameters(), second.actor.parameters(), strict=True):
        assert torch.equal(one, other)


def test_building_leaves_the_generators_of_devices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    small_agent()
    assert seeded == []


def test_training_twice_from_one_seed_gives_identical_weights() -> None:
    weights = []
    for _ in range(2):
        agent = small_agent()
        agent.train(128)
        weights.append(torch.cat([p.detach().flatten() for p in agent.actor.parameters()]))
    assert torch.equal(weights[0], weights[1])


@pytest.mark.parametrize(
    "observation",
    [
        [0.1, 0.2, 0.3, 0.4],
        np.full(4, 0.1),
        torch.zeros(4),
        np.arange(4.0)[::-1],
        np.arange(4.0).astype(">f4"),
        np.broadcast_to(np.float32(0.1), 4),
    ],
)
@pytest.mark.filterwarnings("error")
def test_predict_takes_lists_arrays_and_tensors(observation: object) -> None:
    action, state = small_agent().predict(observation)
    assert action.shape == ()
    assert action in (0, 1)
    assert state == {}


def test_an_agent_says_how_far_it_has_trained_and_can_be_stopped(tmp_path: Path) -> None:
    class Stop(Callback):
        def on_update_end(self, trainer: Trainer) -> None:
            agent.stop()

    agent = small_agent()
    assert agent.total_steps == 0
    agent.stop()  # nothing to stop
    result = agent.train(total_steps=10_000, callbacks=[Stop()], run_dir=tmp_path / "run")
    assert result.stopped
    assert 0 < agent.total_steps == result.total_steps < 10_000
    loaded = rl_train.load(tmp_path / "run")
    assert loaded.total_steps == agent.total_steps
    assert loaded.train(agent.total_steps + 64).total_steps == loaded.total_steps


def test_an_allocated_storage_is_not_copied() -> None:
    agent = small_agent()
    assert copy.deepcopy(agent.parts.storage).spec is None
    agent.train(total_steps=64)
    with pytest.raises(ConfigError, match=r"RolloutStorage that is allocated .* save it"):
        copy.deepcopy(agent)


def test_numbers_of_numpy_are_numbers() -> None:
    options: dict[str, Any] = {"seed": np.int64(3), "num_envs": np.int32(2)}
    agent = rl_train.make("ppo", "CartPole-v1", learning_rate=np.float32(0.5), **options)
    assert agent.recipe.seed == 3
    assert agent.recipe.algorithm.kwargs["learning_rate"] == 0.5
    length = cast("int", np.int64(512))
    assert agent.train(length, progress=False).total_steps == 512
    assert agent.evaluate(cast("int", np.int64(2))).num_episodes == 2
    rate = cast("float", np.float32(0.25))
    agent.algorithm.update_algorithm_parameter("learning_rate", rate)
    assert agent.algorithm.hyper["learning_rate"].item() == 0.25
    config = PPOConfig(learning_rate=rate)
    assert type(config.learning_rate) is float
    assert RolloutStorage(num_steps=cast("int", np.int64(64))).num_steps == 64


def test_predict_answers_a_batch_row_by_row() -> None:
    agent = small_agent()
    batch = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    actions, _ = agent.predict(batch)
    assert actions.tolist() == [int(agent.predict(row)[0]) for row in batch]


class NestedEnv(gymnasium.Env[Any, Any]):
    observation_space = spaces.Tuple(
        (
            spaces.Discrete(2),
            spaces.Dict({"a": spaces.Box(-1.0, 1.0, (2,)), "task": spaces.Text(9)}),
        )
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return (1, {"a": np.full(2, 0.5, np.float32), "task": "go"}), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.reset()[0], 1.0, True, False, {}


@pytest.mark.filterwarnings("ignore:.*texts:RuntimeWarning")
def test_predict_takes_nested_observations_as_environments_and_as_vectors_return_them() -> None:
    agent = rl_train.make("ppo", NestedEnv, seed=0, num_envs=2)
    assert agent.parts.test_envs is not None
    (nested, _), flat = NestedEnv().reset(), agent.parts.test_envs(num_episodes=2).reset(seed=1)
    assert isinstance(flat, dict)
    assert set(flat) == {"0", "1/a"}
    actions, _ = agent.predict(flat)
    assert actions.tolist() == [int(agent.predict(nested)[0])] * 2
    with pytest.raises(DataError, match="expects a tuple of 2"):
        agent.predict({"0": 1})
    for first, sizes in (
        (flat["0"][:1], "0 has 1, 1/a has 2"),
        (flat["0"][0], "0 is a single one"),
    ):
        with pytest.raises(DataError, match=f"not equally many: {sizes}"):
            agent.predict({**flat, "0": first})


def test_agents_of_one_seed_are_equal_in_whatever_thread_they_are_made() -> None:
    def add() -> None:
        made.append(rl_train.make("ppo", "CartPole-v1", seed=1, hidden_sizes=[64]).actor)

    made: list[Actor] = []
    before = torch.initial_seed()
    for _ in range(3):
        threads = [threading.Thread(target=add) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    first, *others = (torch.nn.utils.parameters_to_vector(one.parameters()) for one in made)
    assert len(others) == 8
    assert all(torch.equal(first, other) for other in others)
    assert torch.initial_seed() == before


def test_predict_refuses_another_shape() -> None:
    with pytest.raises(DataError, match=r"expected shape \(4,\).*got \(3,\)"):
        small_agent().predict(np.zeros(3))


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (["a"] * 4, "dtype <U1; expected float32"),
        (np.zeros(4, complex), "dtype complex128; expected float32"),
        ([[0.0], [0.0, 1.0]], "is not an array"),
        ((np.zeros(4), {}), "of what reset returns, give the first part"),
        ([0.0, np.nan, 0.0, 0.0], "holds nan; expected finite numbers"),
        (torch.full((2, 4), np.inf), "holds inf; expected finite numbers"),
        ([0.0, 1e300, 0.0, 0.0], r"holds 1e\+300; expected finite numbers in torch.float32"),
        ({"obs": np.zeros(4)}, "is a mapping; expected an array of Box"),
    ],
)
def test_predict_refuses_what_is_no_number(observation: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        small_agent().predict(observation)


class Masked(gymnasium.Env[Any, Any]):
    """Ends at once; what is allowed is up to who asks."""

    def __init__(self) -> None:
        mask, position = spaces.MultiBinary(3), spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = spaces.Dict({"action_mask": mask, "position": position})
        self.action_space = spaces.Discrete(3)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return _observation([1, 1, 1]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return _observation([1, 1, 1]), 0.0, True, False, {}


def _observation(mask: list[int]) -> dict[str, Any]:
    return {"action_mask": np.array(mask, np.int8), "position": np.zeros(2, np.float32)}


def test_predict_looks_at_action_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = gymnasium.envs.registration.EnvSpec("Masked-v0", entry_point=lambda **_: Masked())
    monkeypatch.setitem(gymnasium.registry, "Masked-v0", spec)
    agent = rl_train.make("ppo", "Masked-v0", seed=3, options=SMALL)
    for action in range(3):
        allowed = [int(action == other) for other in range(3)]
        assert agent.predict(_observation(allowed))[0] == action
    with pytest.raises(DataError, match=r"action mask of observation \[0\] forbids every action"):
        agent.predict(_observation([0, 0, 0]))


def test_predict_refuses_categories_that_do_not_exist() -> None:
    agent = rl_train.make("ppo", "FrozenLake-v1", options=SMALL)
    assert agent.predict(15)[0].shape == ()
    assert agent.predict([0, 1])[0].shape == (2,)
    with pytest.raises(DataError, match=r"holds 16 to 16; expected a value of Discrete\(16\)"):
        agent.predict(16)
    with pytest.raises(DataError, match="dtype float64; expected int64"):
        agent.predict(1.5)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"episode_start": np.array([0, 1])},
            r"episode_start: got int64 of shape \(2,\); expected b",
        ),
        ({"episode_start": np.array([0.0, 1.0])}, "got float64"),
        ({"episode_start": np.array([True])}, r"shape \(1,\); expected bool of shape \(2,\)"),
        ({"state": {}}, r"state: got none; expected tensors \{'policy': \(2, 64\)"),
        ({"state": {"policy": torch.zeros(1, 64), "value": torch.zeros(1, 64)}}, r"\(1, 64\)"),
        ({"state": {"policy": 0.0}}, "float"),
        ({"state": (torch.zeros(2, 64),)}, "state: got tuple; expected tensors"),
    ],
)
def test_predict_refuses_states_and_starts_of_another_kind(
    more: dict[str, Any], message: str
) -> None:
    agent = small_recurrent_agent()
    with pytest.raises(DataError, match=message):
        agent.predict(np.zeros((2, 4)), **more)


@pytest.mark.parametrize(
    ("algorithm", "env"),
    [
        ("ppo", "CartPole-v1"),
        ("ppo", "Pendulum-v1"),
        ("sac", "Pendulum-v1"),
        ("dqn", "CartPole-v1"),
    ],
)
def test_actions_become_arrays_also_where_gradients_are_tracked(algorithm: str, env: str) -> None:
    agent = rl_train.make(algorithm, env, options={"actor": {"hidden_sizes": [8]}})
    (size,) = agent.actor.observation_space.shape or ()
    observation = torch.zeros(1, size)
    noise = agent.algorithm.draw_noise((1,), torch.Generator())
    for deterministic in (True, False):
        output = agent.algorithm.acting_step(observation, {}, noise, deterministic)
        assert len(output.env_action.numpy()) == 1
        assert len(output.action.numpy()) == 1
    assert len(agent.actor.get_action(observation, {}, None, True).env_action.numpy()) == 1


def test_predict_forgets_where_an_episode_starts() -> None:
    agent = small_recurrent_agent()
    rows = np.ones((2, 4), np.float32)
    _, fresh = agent.predict(rows)
    _, later = agent.predict(rows, fresh)
    _, mixed = agent.predict(rows, fresh, episode_start=np.array([True, False]))
    for name in fresh:
        assert torch.equal(mixed[name][0], fresh[name][0])
        assert torch.equal(mixed[name][1], later[name][1])
        assert not torch.equal(later[name], fresh[name])
    _, started = agent.predict(rows[0], fresh_of_one := agent.predict(rows[0])[1], True)
    assert all(torch.equal(started[name], fresh_of_one[name]) for name in started)


def test_predict_samples_when_asked() -> None:
    agent = small_agent()
    rows = np.zeros((200, 4), dtype=np.float32)
    actions, _ = agent.predict(rows, deterministic=False)
    assert 20 < int(actions.sum()) < 180  # a fresh policy is close to a fair coin


def test_predict_refuses_what_is_neither_true_nor_false() -> None:
    with pytest.raises(ConfigError, match=r"^deterministic must be True or False, got 'no'"):
        small_agent().predict(np.zeros(4), deterministic="no")  # type: ignore[arg-type]  # wrong


def test_predict_refuses_to_sample_from_a_policy_of_one_action() -> None:
    agent = rl_train.make("dqn", "CartPole-v1", seed=3)
    with pytest.raises(
        ConfigError, match="OffPolicyActor is deterministic: it takes one action for"
    ):
        agent.predict(np.zeros(4), deterministic=False)


def test_a_saved_agent_comes_back_and_trains_on(tmp_path: Path) -> None:
    agent = small_agent()
    agent.train(64)
    agent.save(tmp_path)
    loaded = rl_train.load(tmp_path)
    rows = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    assert np.array_equal(agent.predict(rows)[0], loaded.predict(rows)[0])
    assert loaded.train(160).total_steps >= 160


def test_agents_are_not_saved_where_another_one_would_be_loaded(tmp_path: Path) -> None:
    first, second = small_agent(), small_agent()
    first.train(128)
    first.save(tmp_path)
    second.train(64)
    with pytest.raises(CheckpointError, match=r"step-128 is of another agent or another time"):
        second.save(tmp_path)
    first.train(256)
    first.save(tmp_path)
    loaded = rl_train.load(tmp_path)
    loaded.train(384)
    loaded.save(tmp_path)
    assert [path.name for path in list_checkpoints(tmp_path / "checkpoints")] == [
        *("step-128", "step-256", "step-384"),
    ]


def test_an_agent_is_saved_again_over_itself(tmp_path: Path) -> None:
    agent = small_agent()
    agent.train(64)
    agent.save(tmp_path)
    for one in (agent, rl_train.load(tmp_path)):
        parameter = next(one.actor.parameters())
        parameter.data.add_(1.0)
        one.save(tmp_path)
        assert torch.equal(next(rl_train.load(tmp_path).actor.parameters()), parameter)


def test_agents_are_not_saved_over_a_recipe(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"  # such as one that was written for --config, or of a group
    recipe.write_text("[algorithm]\n")
    with pytest.raises(CheckpointError, match=r"recipe\.toml is of another agent or another time"):
        small_agent().save(tmp_path)
    assert recipe.read_text() == "[algorithm]\n"
    assert list(tmp_path.iterdir()) == [recipe]


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_an_agent_that_was_only_loaded_is_saved_whole(tmp_path: Path, algorithm: str) -> None:
    """With counters, generators, replayed transitions, and what was settled when it trained."""
    agent = rl_train.make(
        algorithm, "CartPole-v1", seed=3, options={"trainer": {"compile": "auto"}}
    )
    agent.train(3000 if algorithm == "ppo" else 150)
    first = agent.save(tmp_path / "first")
    second = rl_train.load(tmp_path / "first").save(tmp_path / "second")
    saved, again = load_checkpoint(first), load_checkpoint(second)
    assert saved.step == again.step > 0
    check_same_state(again.state, saved.state)
    assert saved.recipe_text == again.recipe_text
    assert saved.recipe_text is not None
    assert 'compile = "off"' in saved.recipe_text


@pytest.mark.parametrize(
    ("algorithm", "env", "draws"),
    [
        ("dqn", "CartPole-v1", False),
        ("rainbow", "CartPole-v1", False),
        ("ddpg", "Pendulum-v1", False),
        ("td3", "Pendulum-v1", False),
        ("sac", "Pendulum-v1", True),
        ("sac", "CartPole-v1", True),
        ("a2c", "CartPole-v1", True),
    ],
)
def test_only_policies_that_draw_actions_are_evaluated_so(
    algorithm: str,
    env: str,
    draws: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options: Sections = {"env": {"num_envs": 2}, "actor": {"hidden_sizes": [8]}}
    agent = rl_train.make(algorithm, env, options={**options, "trainer": {"compile": "off"}})
    agent.train(16, run_dir=tmp_path / "run")
    words = ["eval", str(tmp_path / "run"), "--episodes=2"]
    assert main(words) == 0
    capsys.readouterr()
    status = main([*words, "--stochastic"])
    printed = capsys.readouterr()
    if draws:
        assert status == 0
        assert ", stochastic: " in printed.out
        assert " over 2 episodes " in printed.out
        assert agent.evaluate(2, deterministic=False).num_episodes == 2
        return
    assert status == 2
    assert f"--stochastic: the policy of {algorithm} takes one action for each" in printed.err
    with pytest.raises(ConfigError, match="deterministic=False, but the policy of OffPolicyActor"):
        agent.evaluate(2, deterministic=False)


def test_an_agent_that_was_trained_on_another_kind_of_device_is_loaded(tmp_path: Path) -> None:
    """Of its generators, which cannot go on here, nothing is needed to act."""
    agent = small_agent()
    agent.train(64)
    state = copy_state(agent.parts.algorithm.state_dict())
    assert isinstance(state, dict)
    state["generator"] = torch.arange(16, dtype=torch.uint8)  # as CUDA has it
    directory = tmp_path / "checkpoints"
    save_checkpoint(directory, 64, {"algorithm": state}, recipe=agent.recipe, metadata={})
    loaded = rl_train.load(tmp_path)
    rows = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    assert np.array_equal(agent.predict(rows)[0], loaded.predict(rows)[0])


def test_a_loaded_agent_goes_on_in_its_own_run_directory(tmp_path: Path) -> None:
    small_agent().train(64, run_dir=tmp_path / "run")
    loaded = rl_train.load(tmp_path / "run")
    loaded.train(96, run_dir=tmp_path / "run")
    steps = [line["step"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert len(steps) == len(set(steps))
    assert steps[-1] == 96
    names = [path.name for path in list_checkpoints(tmp_path / "run" / "checkpoints")]
    assert names == ["step-64", "step-96"]
    again = rl_train.load(tmp_path / "run" / "checkpoints" / "step-64")
    with pytest.raises(ConfigError, match="was continued elsewhere: its step-96 is newer"):
        again.train(128, run_dir=tmp_path / "run")
    assert again.train(128, run_dir=tmp_path / "other").total_steps >= 128


def test_a_run_does_not_go_on_with_a_recipe_that_was_edited(tmp_path: Path) -> None:
    small_agent().train(64, run_dir=tmp_path)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("gamma = 0.99", "gamma = 0.5"))
    loaded = rl_train.load(tmp_path)  # acts as it learned to
    with pytest.raises(
        ConfigError, match=r"was edited: its algorithm\.gamma is not that of step-64"
    ):
        loaded.train(96, run_dir=tmp_path)
    assert "gamma = 0.5" in recipe.read_text()


def test_the_best_weights_act_and_are_no_run(tmp_path: Path) -> None:
    agent = rl_train.make(
        "ppo",
        "CartPole-v1",
        seed=3,
        options={**SMALL, "trainer": {"test_every": 1, "num_test_episodes": 2}},
    )
    agent.train(128, run_dir=tmp_path)
    best = rl_train.load(tmp_path / "best")
    (path,) = list_checkpoints(tmp_path / "best")
    weights = actor_weights(load_checkpoint(path))
    check_same_state(dict(best.actor.state_dict()), dict(weights))
    envs = make_vec("CartPole-v1", 1)
    spaces_of = envs.single_observation_space, envs.single_action_space
    for source in (tmp_path / "best", path):
        actor = rl_train.load_actor(source, *spaces_of)
        check_same_state(dict(actor.state_dict()), dict(weights))
        again = rl_train.make("ppo", "CartPole-v1", options=SMALL, restart_model=source)
        check_same_state(dict(again.actor.state_dict()), dict(weights))
    with pytest.raises(CheckpointError, match="holds only what acts, and not the run; load the"):
        best.train(256)
    best.save(tmp_path / "copy")
    trainer = build_trainer(build(best.recipe), run_dir=tmp_path / "copy")
    with pytest.raises(CheckpointError, match="holds only what acts, and not the run; load the"):
        trainer.resume()


def test_an_environment_that_does_not_fit_is_named(tmp_path: Path) -> None:
    small_agent().train(64, run_dir=tmp_path)
    for env in ("Acrobot-v1", "Pendulum-v1"):
        with pytest.raises(CheckpointError, match="trained on CartPole-v1, does not fit the env"):
            rl_train.load(tmp_path, env=env)


@pytest.mark.parametrize("algorithm", ["ppo", "sac", "dqn"])
def test_an_exported_policy_acts_alike(algorithm: str) -> None:
    env = "Pendulum-v1" if algorithm == "sac" else "CartPole-v1"
    agent = rl_train.make(algorithm, env, seed=3)
    size = agent.actor.observation_space.shape
    assert size is not None
    rows = torch.from_numpy(np.random.default_rng(1).normal(size=(50, *size)).astype(np.float32))
    count = torch.export.Dim("count")
    exported = torch.export.export(agent.actor, (rows[:2],), dynamic_shapes=({0: count},))
    assert np.array_equal(exported.module()(rows).numpy(), agent.predict(rows.numpy())[0])


def test_recurrent_actors_do_not_act_without_their_state() -> None:
    with pytest.raises(ConfigError, match="is recurrent: call get_action, which takes and returns"):
        small_recurrent_agent().actor(torch.zeros(1, 4))


def test_loading_from_nowhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a run: it has no folder"):
        rl_train.load(tmp_path)


def test_parts_composed_by_hand_are_described_by_name(tmp_path: Path) -> None:
    envs = make_vec("CartPole-v1", num_envs=2, seed=0)
    actor = OnPolicyActor(
        envs.single_observation_space,
        envs.single_action_space,
        OnPolicyActorConfig(hidden_sizes=(8,)),
    )
    algorithm = PPO(actor, PPOConfig(minibatch_size=16, num_epochs=1))
    trainer = Trainer(envs, algorithm, RolloutStorage(num_steps=16), seed=0, run_dir=tmp_path)
    trainer.train(total_steps=64)
    loaded = rl_train.load(tmp_path)
    assert loaded.recipe.env.name == "CartPole-v1"
    assert loaded.recipe.storage["num_steps"] == 16
    for one, other in zip(actor.parameters(), loaded.actor.parameters(), strict=True):
        assert torch.equal(one, other)


class Doubled(nn.Module):
    """A user's own extractor."""

    out_features = 8

    def forward(self, observation: Tensor) -> Tensor:
        return torch.cat([observation, observation], -1)


def test_a_custom_part_must_be_given_again(tmp_path: Path) -> None:
    envs = make_vec("CartPole-v1", num_envs=2, seed=0)

    def new_actor() -> OnPolicyActor:
        return OnPolicyActor(
            envs.single_observation_space, envs.single_action_space, feature_extractor=Doubled()
        )

    actor = new_actor()
    algorithm = PPO(actor, PPOConfig(minibatch_size=16, num_epochs=1))
    trainer = Trainer(envs, algorithm, RolloutStorage(num_steps=16), seed=0, run_dir=tmp_path)
    trainer.train(total_steps=32)
    with pytest.raises(ConfigError, match="actor was built from Python objects"):
        rl_train.load(tmp_path)
    with pytest.raises(ConfigError, match="expected Actor"):
        rl_train.load(tmp_path, parts={"actor": Doubled()})
    loaded = rl_train.load(tmp_path, parts={"actor": new_actor()})
    for one, other in zip(actor.parameters(), loaded.actor.parameters(), strict=True):
        assert torch.equal(one, other)


def test_an_agent_by_name_takes_an_actor_that_is_built(tmp_path: Path) -> None:
    envs = make_vec("CartPole-v1", num_envs=1)
    spaces = envs.single_observation_space, envs.single_action_space
    actors = [OnPolicyActor(*spaces, feature_extractor=Doubled()) for _ in range(2)]
    options = {section: SMALL[section] for section in ("env", "storage", "algorithm")}
    agent = rl_train.make("ppo", "CartPole-v1", options=options, parts={"actor": actors[0]})
    assert agent.actor is actors[0]
    assert agent.recipe.actor.is_custom
    assert agent.recipe.storage["num_steps"] == 16
    agent.train(32, run_dir=tmp_path)
    loaded = rl_train.load(tmp_path, parts={"actor": actors[1]})
    check_same_state(dict(loaded.actor.state_dict()), dict(agent.actor.state_dict()))
    assert loaded.train(64, run_dir=tmp_path).total_steps == 64


def test_an_agent_by_name_takes_a_storage_that_is_built() -> None:
    storage = ReplayBuffer(size=500)
    agent = rl_train.make("dqn", "CartPole-v1", parts={"storage": storage})
    agent.train(20)
    assert agent.parts.storage is storage
    assert storage.num_transitions == 20
    assert agent.recipe.storage["size"] == 500


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parts": 3}, "parts=3; expected a mapping of objects"),
        ({"parts": {"algorithm": 3}}, "'algorithm' is no part that make takes; give actor or"),
        ({"parts": {"actor": 3}}, r"parts\['actor'\] is a int; expected Actor"),
        ({"parts": {"actor": 3}, "options": SMALL}, r"leave out options\['actor'\]"),
        ({"parts": {"actor": 3}, "hidden_sizes": [8]}, "unknown option 'hidden_sizes'; it is an"),
        ({"feature_extractor": 3}, r"give an actor that is built, parts=\{'actor': OnPolicyActor"),
    ],
)
def test_parts_that_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rl_train.make("ppo", "CartPole-v1", **arguments)  # type: ignore[arg-type]


def test_names_in_the_wrong_place_are_told() -> None:
    with pytest.raises(ConfigError, match="'CartPole-v1' stands where the algorithm is expected"):
        rl_train.make("CartPole-v1", "ppo")
    with pytest.raises(ConfigError, match=r"the class PPO; give its registered name.*'ppo'"):
        rl_train.make(PPO, "CartPole-v1")  # type: ignore[arg-type]


def test_another_librarys_word_for_training_leads_to_ours() -> None:
    agent = rl_train.make("ppo", "CartPole-v1")
    with pytest.raises(AttributeError, match=r"Agent has no 'learn'; use train\(total_steps"):
        agent.learn(1000)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"Agent has no 'lern'$"):
        agent.lern  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"Agent has no 'replay_buffer'; use parts\.storage$"):
        agent.replay_buffer  # type: ignore[attr-defined]  # noqa: B018


def test_setting_what_an_agent_does_not_have_is_refused() -> None:
    agent = rl_train.make("ppo", "CartPole-v1")
    message = (
        r"no 'learning_rate' to set; use algorithm.update_algorithm_parameter\('learning_rate'"
    )
    with pytest.raises(AttributeError, match=message):
        agent.learning_rate = 1e-5  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"no 'policy' to set$"):
        agent.policy = None  # type: ignore[attr-defined]


def test_a_run_without_an_evaluation_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with gymnasium.make("CartPole-v1") as env:
        agent = rl_train.make("ppo", env, num_steps=8, minibatch_size=8)
        for total in (8, 16):
            assert agent.train(total).evaluation is None
    assert capsys.readouterr().err.count("the policy is not evaluated at the end") == 1


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(PluginError, match="did you mean 'ppo'"):
        rl_train.make("pppo", "CartPole-v1")
    with pytest.raises(ConfigError, match="learning_rate"):
        small_agent(learning_rat=0.1)
    with pytest.raises(ConfigError, match="did you mean 'actor'"):
        rl_train.make("ppo", "CartPole-v1", options={"actr": {}})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"algorithm": None}, "name of the algorithm is None; expected text"),
        ({"env": None}, "env is NoneType; expected an id such as"),
        ({"options": 5}, "options=5; expected a mapping of sections"),
        ({"options": {"actor": 5}}, "section 'actor' is 5; expected a mapping"),
        (
            {"learning_rate": 1.0, "options": {"algorithm": {"learning_rate": 2.0}}},
            r"learning_rate is 1\.0, but options\['algorithm'\] says 2\.0",
        ),
        (
            {"optimizer": {"name": "sgd", "momentum": 0.5, "alpha": 0.5}},
            "alpha has no effect",
        ),
        ({"device": "mps"}, "device 'mps' is unknown"),
        ({"device": "meta"}, "device 'meta' is unknown"),
        ({"device": "cpu:3"}, "device 'cpu:3' is unknown"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: Json, message: str) -> None:
    given = {"algorithm": "ppo", "env": "CartPole-v1", **cast("dict[str, Json]", arguments)}
    with pytest.raises(RLError, match=message):
        rl_train.make(**given)  # type: ignore[arg-type]  # what is tested


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(DeviceError, match="device 'cuda:2' is not available: torch sees 2"):
        resolve_device("cuda:2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"directory": None}, "directory is None; expected the path"),
        ({"directory": 5}, "directory is 5; expected the path"),
        ({"parts": 5}, "parts=5; expected a mapping"),
    ],
)
def test_loading_refuses_arguments_of_another_kind(
    tmp_path: Path, arguments: dict[str, object], message: str
) -> None:
    small_agent().save(tmp_path)
    with pytest.raises(ConfigError, match=message):
        rl_train.load(**{"directory": tmp_path, **arguments})  # type: ignore[arg-type]  # what is tested


def test_of_two_options_that_say_the_same_the_given_one_counts() -> None:
    def algorithm(**options: Json) -> ComponentSpec:
        sections = {**SMALL, "algorithm": options}
        return rl_train.make("ppo", "CartPole-v1", options=sections).recipe.algorithm

    given = algorithm(num_minibatches=4)
    assert (given["num_minibatches"], given["minibatch_size"]) == (4, "none")
    given = algorithm(minibatch_size=16)
    assert (given["num_minibatches"], given["minibatch_size"]) == ("none", 16)
    with pytest.raises(ConfigError, match=r"has no effect with .*minibatch_size; leave one"):
        algorithm(num_minibatches=4, minibatch_size=64)


def test_options_that_only_look_alike_are_both_kept(tmp_path: Path) -> None:
    options: dict[str, dict[str, Json]] = {"algorithm": {"num_minibatches": 4}}
    given = compose("sac", "Pendulum-v1", options).algorithm
    assert (given["num_minibatches"], given["minibatch_size"]) == (4, 256)
    path = tmp_path / "sac.toml"
    path.write_text("[algorithm]\nminibatch_size = 32\n")
    words = ("sac", "Pendulum-v1", "--config", str(path), "--algorithm.num-minibatches", "4")
    algorithm = read_train_request(words).recipe.algorithm
    assert (algorithm["num_minibatches"], algorithm["minibatch_size"]) == (4, 32)


def test_options_below_one_that_is_none_by_default_can_be_given() -> None:
    words = ("dqn", "CartPole-v1", "--storage.prioritized.alpha", "0.7")
    storage = read_train_request(words).recipe.storage
    prioritized = storage["prioritized"]
    assert isinstance(prioritized, dict)
    assert (prioritized["alpha"], prioritized["beta"]) == (0.7, 0.4)
    assert read_train_request(words[:2]).recipe.storage["prioritized"] == "none"


def test_another_optimizer_takes_over_the_defaults_that_it_uses() -> None:
    def optimizer(**options: Json) -> Json:
        agent = small_agent(optimizer=options)
        return agent.recipe.algorithm["optimizer"]

    adamw, sgd = optimizer(name="adamw"), optimizer(name="sgd", momentum=0.5)
    assert isinstance(adamw, dict)
    assert isinstance(sgd, dict)
    assert (adamw["name"], adamw["eps"]) == ("adamw", 1e-5)
    assert (sgd["name"], sgd["eps"], sgd["momentum"]) == ("sgd", 1e-8, 0.5)


def test_tables_of_a_preset_can_be_given_in_part() -> None:
    options: dict[str, dict[str, Json]] = {
        "storage": {"prioritized": {"alpha": 0.7}},
        "algorithm": {"optimizer": {"beta1": 0.8}},
    }
    recipe = compose("rainbow", "CartPole-v1", options)
    prioritized, optimizer = recipe.storage["prioritized"], recipe.algorithm["optimizer"]
    assert isinstance(prioritized, dict)
    assert isinstance(optimizer, dict)
    assert (prioritized["alpha"], prioritized["beta"]) == (0.7, "linear(0.4, 1.0)")
    assert (optimizer["beta1"], optimizer["eps"]) == (0.8, 1.5e-4)
    sgd: dict[str, dict[str, Json]] = {"algorithm": {"optimizer": {"name": "sgd"}}}
    optimizer = compose("rainbow", "CartPole-v1", sgd).algorithm["optimizer"]
    assert isinstance(optimizer, dict)
    assert (optimizer["name"], optimizer["eps"]) == ("sgd", 1e-8)
    uniform: dict[str, dict[str, Json]] = {"storage": {"prioritized": "none"}}
    assert compose("rainbow", "CartPole-v1", uniform).storage["prioritized"] == "none"


def test_the_action_space_is_the_environments() -> None:
    agent = rl_train.make("ppo", "Pendulum-v1", seed=0, options=SMALL)
    assert isinstance(agent.actor.action_space, spaces.Box)
    action, _ = agent.predict(np.zeros(3))
    assert agent.actor.action_space.contains(action)


def test_gymnasiums_own_environments_go_straight_in() -> None:
    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
    actor = OnPolicyActor(envs.single_observation_space, envs.single_action_space)
    algorithm = PPO(actor, PPOConfig(minibatch_size=16, num_epochs=1))
    test_env = gymnasium.make("CartPole-v1")
    trainer = Trainer(envs, algorithm, RolloutStorage(num_steps=16), seed=0, test_envs=test_env)
    result = trainer.train(total_steps=64)
    assert result.evaluation is not None
    assert evaluate_policy(algorithm, test_env, num_episodes=2).num_episodes == 2


def test_an_actor_for_other_spaces_is_refused() -> None:
    envs = make_vec("CartPole-v1", num_envs=2)
    other = make_vec("Acrobot-v1")
    actor = OnPolicyActor(other.single_observation_space, other.single_action_space)
    with pytest.raises(SpaceError, match="observation space of the environments"):
        Trainer(envs, PPO(actor), RolloutStorage(num_steps=32))


def test_an_agent_starts_with_the_weights_of_an_earlier_run(tmp_path: Path) -> None:
    first = small_agent()
    first.train(64, run_dir=tmp_path / "first")
    again = rl_train.make("ppo", "CartPole-v1", options=SMALL, restart_model=tmp_path / "first")
    assert again.recipe.resolved["restart_model"] == str(tmp_path / "first")
    for name, tensor in again.actor.state_dict().items():
        assert torch.equal(tensor, first.actor.state_dict()[name]), name
    parts = {"policy_torso": tmp_path / "first"}
    partly = rl_train.make("ppo", "CartPole-v1", seed=9, options=SMALL, restart_model=parts)
    same = {
        name.split(".")[0]
        for name, tensor in partly.actor.state_dict().items()
        if tensor.any() and torch.equal(tensor, first.actor.state_dict()[name])
    }
    assert same == {"policy_torso"}
    for agent in (first, again, partly):
        agent.close()


def test_target_networks_start_with_the_weights_of_an_earlier_run(tmp_path: Path) -> None:
    options: Sections = {"actor": {"hidden_sizes": [8]}, "algorithm": {"update_after": 50}}
    first = rl_train.make("dqn", "CartPole-v1", options=options)
    first.train(60, run_dir=tmp_path / "first")
    again = rl_train.make(
        "dqn", "CartPole-v1", seed=9, options=options, restart_model=tmp_path / "first"
    )
    tensors = again.parts.algorithm.get_weights().tensors
    for name, tensor in first.actor.critics.state_dict().items():  # type: ignore[union-attr]  # a module
        assert torch.equal(tensors[f"actor.critics.{name}"], tensor)
        assert torch.equal(tensors[f"target_critics.{name}"], tensor)
    first.close()
    again.close()


def test_weights_cannot_be_given_to_an_algorithm_that_is_built(tmp_path: Path) -> None:
    agent = small_agent()
    with pytest.raises(ConfigError, match="call load_weights before"):
        build(agent.recipe, {"algorithm": agent.parts.algorithm}, restart_model=tmp_path / "first")
    agent.close()


class Observations(nn.Module):
    """Five features of an observation."""

    def __init__(self, space: gymnasium.Space[object]) -> None:
        super().__init__()
        assert space.shape is not None
        self.linear = nn.Linear(space.shape[0], 5)
        self.out_features = 5

    def forward(self, observation: Tensor) -> Tensor:
        features: Tensor = self.linear(observation)
        return features


def test_the_recipe_calls_such_an_actor_custom() -> None:
    envs = make_gym_vec("Pendulum-v1", 1, seed=0)
    observations, actions = envs.single_observation_space, envs.single_action_space
    own = OffPolicyActor(observations, actions, observation_extractor=Observations)
    storage = ReferenceReplayStorage(size=10)
    assert own.uses_objects
    assert Trainer(envs, SAC(own), storage).recipe.actor.is_custom
    usual = OffPolicyActor(observations, actions)
    assert Trainer(envs, SAC(usual), storage).recipe.actor.name == "off-policy"
    envs.close()


def test_what_is_given_in_the_wrong_place_is_told_its_right_one() -> None:
    agent = small_agent()
    with pytest.raises(ConfigError, match=r"num_episodes is an environment; give that as envs="):
        agent.evaluate(gymnasium.make("CartPole-v1"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="num_episodes must be a whole number of at least 1"):
        agent.evaluate(0)
    with pytest.raises(ConfigError, match=r"learning_rate: .*of type function.*from_function"):
        rl_train.make("ppo", "CartPole-v1", learning_rate=lambda progress: progress)


def test_evaluations_have_no_environments_that_would_play_no_episode() -> None:
    agent = rl_train.make(
        "ppo", "CartPole-v1", num_envs=6, num_test_episodes=2, final_test_episodes=3
    )
    assert agent.parts.test_envs is not None
    for episodes, count in ((None, 3), (5, 5), (100, 6)):
        with agent.parts.test_envs(num_episodes=episodes) as envs:
            assert envs.num_envs == count
    agent.close()


def test_a_preset_may_name_its_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = {"storage": {"name": "replay", "size": 500}, "actor": {"name": "off-policy"}}
    monkeypatch.setattr("rl_train.builder.recipes.read_preset", lambda *_: ({}, tuned))
    recipe = compose("dqn", "CartPole-v1", {"actor": {"hidden_sizes": [4]}}, preset=True)
    assert (recipe.storage.name, recipe.storage["size"]) == ("replay", 500)
    assert recipe.actor["hidden_sizes"] == [4]


def test_an_option_of_two_sections_needs_its_section() -> None:
    def part(hidden_sizes: tuple[int, ...] = (8,)) -> None:
        """Stands in for a component of a plug-in."""

    given = _Given({}, {"hidden_sizes": [4]})
    given.place("actor", OnPolicyActor)
    with pytest.raises(ConfigError, match="hidden_sizes is an option of actor and of storage; say"):
        given.place("storage", part)


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        ("replay", r"give options={'storage': {'name': 'replay'}}"),
        ({"size": 9}, r"give options={'storage': {'size': 9}}"),
        (RolloutStorage(8), r"storage: got RolloutStorage; make builds its parts by name, and rl_"),
    ],
)
def test_a_section_given_as_an_option_is_answered_with_what_to_write(
    storage: object, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        rl_train.make("ppo", "CartPole-v1", storage=storage)
