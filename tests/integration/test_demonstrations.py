"""Demonstrations from real data sets and runs, through the trainer and the command line."""

import itertools
import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_algos_offpolicy import DQN, SAC, DQNConfig, OffPolicyActor, OffPolicyActorConfig, SACConfig
from rl_algos_onpolicy import PPO, OnPolicyActor
from rl_command.main import main
from rl_core.batch import Trajectory
from rl_core.env import VecEnv
from rl_core.errors import CheckpointError, ConfigError, DataError, MissingExtraError, SpaceError
from rl_core.types import Json
from rl_envs import make_gym_vec, make_vec
from rl_storages import HindsightConfig, ReplayBuffer, RolloutStorage
from rl_train import Agent, Trainer, TrainerConfig, load_actor, make
from rl_train.demonstrations import insert_trajectories, load_minari, read_demonstrations
from rl_train.storage_files import save_storage

ID = "toolbox/swing-v0"
SMALL: Mapping[str, Mapping[str, Json]] = {
    "actor": {"hidden_sizes": [8]},
    "storage": {"size": 500},
    "algorithm": {"start_steps": 20, "update_after": 50, "update_every": 10},
}


@pytest.fixture
def minari_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a Minari data set of Pendulum: 3 episodes of 5 steps with torques 0.4, 0.8 ..."""
    minari = pytest.importorskip("minari")
    pytest.importorskip("h5py")
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    episodes = [
        EpisodeBuffer(
            id=i,
            observations=[np.array([i, t, 0.0], np.float32) for t in range(6)],
            actions=[np.array([0.4 * (t + 1)], np.float32) for t in range(5)],
            rewards=[float(t) for t in range(5)],
            terminations=[False] * 5,
            truncations=[False] * 4 + [True],
            infos={},
        )
        for i in range(3)
    ]
    envs = _envs()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what is not told of the data set
        minari.create_dataset_from_buffers(
            ID,
            episodes,
            observation_space=envs.single_observation_space,
            action_space=envs.single_action_space,
        )
    return ID


def _envs(num_envs: int = 1) -> VecEnv:
    return make_gym_vec("Pendulum-v1", num_envs=num_envs, seed=0)


def _actor(envs: VecEnv) -> OffPolicyActor:
    config = OffPolicyActorConfig(hidden_sizes=(8,))
    return OffPolicyActor(envs.single_observation_space, envs.single_action_space, config)


def _trainer(
    source: str,
    run_dir: Path | None = None,
    *,
    num_envs: int = 1,
    size: int = 500,
    checkpoint_replay: bool = True,
) -> Trainer:
    envs = _envs(num_envs)
    algorithm = SAC(_actor(envs), SACConfig(start_steps=20, update_after=50, update_every=10))
    config = TrainerConfig(
        demonstrations=source,
        compile="off",
        num_threads=1,
        checkpoint_replay=checkpoint_replay,
    )
    return Trainer(envs, algorithm, ReplayBuffer(size), config=config, seed=0, run_dir=run_dir)


@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_minari_data_set_fills_the_storage_before_the_first_step(
    minari_id: str, tmp_path: Path, num_envs: int
) -> None:
    trainer = _trainer(minari_id, tmp_path / "run", num_envs=num_envs)
    trainer.train(total_steps=20)
    assert trainer.state.num_demonstrations == 15
    assert (trainer.total_steps, trainer.collector.total_episodes) == (20, 0)
    storage = trainer.storage
    assert isinstance(storage, ReplayBuffer)
    assert storage.num_transitions == 35
    (batch,) = storage.generate_batches(1, 2000)
    assert isinstance(batch.observation, torch.Tensor)
    first = (batch.observation[:, 2] == 0.0) & (batch.observation[:, 1] == 4.0)
    # Torques reach from -2 to 2, and the actor's actions from -1 to 1.
    torch.testing.assert_close(batch.action[first], torch.ones(int(first.sum()), 1))
    assert not batch.terminated[first].any()
    assert isinstance(batch.next_observation, torch.Tensor)
    assert bool((batch.next_observation[first][:, 1] == 5.0).all())


def _episode() -> Trajectory:
    observation = torch.arange(12.0).reshape(4, 3) / 12.0
    return Trajectory(observation, torch.zeros(3, 1), torch.ones(3), terminated=False)


def test_an_agent_by_name_learns_from_trajectories(minari_id: str) -> None:
    agent = make("bc", "Pendulum-v1", minibatch_size=3, demonstrations=[_episode()])
    with pytest.raises(ConfigError, match="give exactly one of total_steps"):
        agent.train(total_steps=1, total_updates=1)
    agent.train(total_updates=2)
    (batch,) = agent.parts.storage.generate_batches(1, 100)
    assert sorted(set(batch.observation[:, 0].tolist())) == [0.0, 0.25, 0.5]
    named = make("bc", "Pendulum-v1", demonstrations=minari_id)
    assert named.recipe.trainer["demonstrations"] == minari_id


def test_a_resumed_run_is_not_filled_again(minari_id: str, tmp_path: Path) -> None:
    _trainer(minari_id, tmp_path / "run").train(total_steps=20)
    resumed = _trainer("there is no such data any more", tmp_path / "run")
    resumed.resume()
    resumed.train(total_steps=40)
    assert resumed.state.num_demonstrations == 15
    assert isinstance(resumed.storage, ReplayBuffer)
    assert resumed.storage.num_transitions == 55


def test_a_resumed_run_without_its_replay_buffer_is_filled_again(
    minari_id: str, tmp_path: Path
) -> None:
    _trainer(minari_id, tmp_path / "run", checkpoint_replay=False).train(total_steps=20)
    resumed = _trainer(minari_id, tmp_path / "run", checkpoint_replay=False)
    resumed.resume()
    resumed.train(total_steps=30)
    assert isinstance(resumed.storage, ReplayBuffer)
    assert resumed.storage.num_transitions == 15 + 10


def test_a_data_set_directory_is_a_source_too(minari_id: str, tmp_path: Path) -> None:
    path = tmp_path / "minari" / minari_id
    trajectories = list(read_demonstrations(str(path), _actor(_envs())))
    assert [len(trajectory) for trajectory in trajectories] == [5, 5, 5]


def test_what_cannot_be_read_is_told(
    minari_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"file 'toolbox/swing-v3'.* minari download toolbox"):
        load_minari("toolbox/swing-v3")
    for name in ("no such thing", "runs/nothing"):
        with pytest.raises(ConfigError, match=f"there is no folder or file '{name}'; expected a r"):
            load_minari(name)
    with pytest.raises(ConfigError, match="is neither a directory of demonstrations nor"):
        load_minari(str(tmp_path))
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'packages/rl-train\[minari\]'"):
        load_minari(minari_id)


def test_a_data_set_of_another_environment_is_refused(minari_id: str) -> None:
    envs = make_gym_vec("CartPole-v1", num_envs=1)
    actor = OnPolicyActor(envs.single_observation_space, envs.single_action_space)
    with pytest.raises(SpaceError, match="toolbox/swing-v0 does not fit the environment: its obs"):
        read_demonstrations(minari_id, actor)


def test_a_new_run_does_not_drop_what_a_storage_holds(minari_id: str) -> None:
    first = _trainer(minari_id)
    first.train(total_steps=20)
    with pytest.raises(ConfigError, match=r"holds \d+ steps, which a new run would drop"):
        Trainer(_envs(), first.algorithm, first.storage, seed=0)
    first.storage.reset()
    Trainer(_envs(), first.algorithm, first.storage, seed=0)


def test_a_source_without_end_is_refused(minari_id: str) -> None:
    trainer = _trainer(minari_id, size=500)
    (trajectory, *_) = read_demonstrations(minari_id, trainer.algorithm.actor)
    assert isinstance(trainer.storage, ReplayBuffer)
    with pytest.raises(ConfigError, match=r"storage.size is too small: \d+ demonstrated"):
        insert_trajectories(trainer.storage, itertools.repeat(trajectory))


def test_wrong_options_are_refused(minari_id: str) -> None:
    with pytest.raises(ConfigError, match=r"scale_rewards .* demonstrations"):
        TrainerConfig(demonstrations=minari_id, scale_rewards=True)
    with pytest.raises(ConfigError, match=r"storage.size is too small: 15 demonstrated"):
        _trainer(minari_id, size=10).train(total_steps=20)
    envs = _envs()
    learner = PPO(OnPolicyActor(envs.single_observation_space, envs.single_action_space))
    config = TrainerConfig(demonstrations=minari_id)
    with pytest.raises(ConfigError, match="need a replay storage; RolloutStorage keeps rollouts"):
        Trainer(envs, learner, RolloutStorage(), config=config, seed=0).train(total_steps=2000)


def test_another_run_is_a_source_and_its_actions_are_converted(tmp_path: Path) -> None:
    agent = make("sac", "Pendulum-v1", seed=0, options=SMALL)
    agent.train(60, run_dir=tmp_path / "sac")
    envs = _envs()
    kinds = {
        "scaled": _actor(envs),
        "plain": OnPolicyActor(envs.single_observation_space, envs.single_action_space),
    }
    actions = {}
    for name, actor in kinds.items():
        trajectories = list(read_demonstrations(tmp_path / "sac", actor))
        assert sum(map(len, trajectories)) == 60
        actions[name] = torch.cat([trajectory.action for trajectory in trajectories])
    torch.testing.assert_close(actions["plain"], 2.0 * actions["scaled"])
    assert bool((actions["scaled"].abs() <= 1.0).all())


@pytest.mark.parametrize("hindsight", [None, HindsightConfig()])
def test_a_run_with_hindsight_is_a_source(
    hindsight: HindsightConfig | None, tmp_path: Path
) -> None:
    def trainer(own: HindsightConfig | None, **options: object) -> Trainer:
        envs = make_vec("BitFlipping-v0", num_envs=2, seed=0, env_kwargs={"num_bits": 4})
        config = OffPolicyActorConfig(policy="greedy", hidden_sizes=(8,), num_critics=1)
        actor = OffPolicyActor(envs.single_observation_space, envs.single_action_space, config)
        algorithm = DQN(actor, DQNConfig(update_after=50, update_every=20))
        return Trainer(envs, algorithm, ReplayBuffer(500, hindsight=own), seed=0, **options)  # type: ignore[arg-type]  # of two types

    first = trainer(HindsightConfig(), run_dir=tmp_path / "first")
    first.train(total_steps=100)
    settings = TrainerConfig(demonstrations=str(tmp_path / "first"))
    second = trainer(hindsight, config=settings)
    second.train(total_steps=20)
    assert isinstance(second.storage, ReplayBuffer)
    assert second.storage.num_transitions == 120


def test_a_run_without_data_is_refused(tmp_path: Path) -> None:
    actor = _actor(_envs())
    bare = {**SMALL, "trainer": {**SMALL.get("trainer", {}), "checkpoint_replay": False}}
    make("sac", "Pendulum-v1", seed=0, options=bare).train(60, run_dir=tmp_path / "bare")
    with pytest.raises(CheckpointError, match=r"holds no transitions; .*checkpoint_replay=True"):
        read_demonstrations(tmp_path / "bare", actor)
    rollouts = {"env": {"num_envs": 2}, "storage": {"num_steps": 32}}
    make("ppo", "Pendulum-v1", options=rollouts).train(64, run_dir=tmp_path / "ppo")
    with pytest.raises(
        ConfigError,
        match=r"ppo cannot be learned from: RolloutStorage gives no .*: rl train bc Pendulum-v1 "
        r"--algorithm.expert .*ppo",
    ):
        read_demonstrations(tmp_path / "ppo", actor)
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        read_demonstrations(tmp_path / "empty", actor)


@pytest.fixture
def rescaled(tmp_path: Path) -> Path:
    """Make a run of Pendulum whose environment's actions are in [-1, 1] instead of [-2, 2]."""
    agent = make("sac", "Pendulum-v1", seed=0, options={**SMALL, "env": {"rescale_action": True}})
    agent.train(60, run_dir=tmp_path / "rescaled")
    save_storage(agent.parts.storage, tmp_path / "told", recipe=agent.recipe)
    save_storage(agent.parts.storage, tmp_path / "untold")
    return tmp_path / "rescaled"


def test_a_run_of_other_spaces_is_refused(rescaled: Path, tmp_path: Path) -> None:
    problem = r"trained on Pendulum-v1, does not fit .* action space is Box\(-1.* expected Box\(-2"
    for source in (rescaled, tmp_path / "told"):
        with pytest.raises(SpaceError, match=problem):
            read_demonstrations(source, _actor(_envs()))
    seen, torques = spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Box(-2.0, 2.0, (1,), np.float32)
    with pytest.raises(SpaceError, match=r"its observation space is .*\(3,\).*expected Box"):
        read_demonstrations(rescaled, OffPolicyActor(seen, torques))
    # Without a recipe nobody knows the spaces, and values in [-1, 1] are any scaling actor's.
    assert len(list(read_demonstrations(tmp_path / "untold", _actor(_envs())))) == 1
    with pytest.raises(CheckpointError, match=f"rescaled, {problem}"):
        _begun("bc", "Pendulum-v1", options={"algorithm": {"expert": str(rescaled)}})


def test_a_run_whose_environment_is_not_here_is_checked_by_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("sac", "Pendulum-v1", seed=0, options=SMALL).train(60, run_dir=tmp_path / "sac")
    actor = _actor(_envs())
    monkeypatch.delitem(gymnasium.registry, "Pendulum-v1")
    assert sum(map(len, read_demonstrations(tmp_path / "sac", actor))) == 60
    other = OffPolicyActor(spaces.Box(-1.0, 1.0, (4,), np.float32), actor.action_space)
    with pytest.raises(DataError, match=r"trajectory 0: the observation has shape \(61, 3\); exp"):
        list(read_demonstrations(tmp_path / "sac", other))


def test_an_environment_of_another_name_and_the_same_spaces_is_warned_of(tmp_path: Path) -> None:
    run = tmp_path / "sac"
    make("sac", "Pendulum-v1", seed=0, options=SMALL).train(60, run_dir=run)
    demonstrated = {**SMALL, "trainer": {"demonstrations": str(run)}}
    imitating = {"algorithm": {"expert": str(run), "update_every": 20}}
    for algorithm, more in (
        ("sac", {"options": demonstrated}),
        ("bc", {"options": imitating}),
        ("sac", {"options": SMALL, "restart_model": run}),
    ):
        with pytest.warns(UserWarning, match="sac is of Pendulum-v1, and this run is on Pendulu"):
            _begun(algorithm, "PendulumPhysics-v0", **more)
        _begun(algorithm, "Pendulum-v1", **more)
    _begun("sac", "PendulumPhysics-v0", options=SMALL, restart_model={"policy": run})  # is meant


def _begun(algorithm: str, env: str, **more: Any) -> Agent:
    agent = make(algorithm, env, **more)
    agent.train(20, progress=False)
    return agent


def test_the_actor_of_a_run_is_loaded_without_environments(tmp_path: Path) -> None:
    agent = make("sac", "Pendulum-v1", seed=0, options=SMALL)
    agent.train(60, run_dir=tmp_path / "sac")
    envs = _envs()
    before = torch.random.get_rng_state()
    actor = load_actor(tmp_path / "sac", envs.single_observation_space, envs.single_action_space)
    assert torch.equal(torch.random.get_rng_state(), before)
    seen = torch.rand(4, 3)
    theirs, own = (each.get_action(seen, {}, None, True).action for each in (agent.actor, actor))
    assert torch.equal(theirs, own)
    with pytest.raises(CheckpointError, match="trained on Pendulum-v1, does not fit the spaces"):
        load_actor(
            tmp_path / "sac", spaces.Box(-1.0, 1.0, (4,), np.float32), envs.single_action_space
        )
    with pytest.raises(CheckpointError, match="is not a run"):
        load_actor(tmp_path, envs.single_observation_space, envs.single_action_space)


def _run(words: str) -> int:
    return main(words.split())


def test_the_command_line_clones_runs_and_data_sets(
    minari_id: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = "--actor.hidden-sizes 8 --trainer.num-test-episodes 2"
    train = f"train bc Pendulum-v1 {small}"
    agent = make("sac", "Pendulum-v1", seed=0, options=SMALL)
    agent.train(60, run_dir=tmp_path / "sac")
    clone = f"--algorithm.expert {tmp_path}/sac --algorithm.update-every 100"
    assert _run(f"{train} --total-steps 200 --run-dir {tmp_path}/a {clone}") == 0
    data = f"--trainer.demonstrations {minari_id}"
    assert _run(f"{train} --total-steps 160 --run-dir {tmp_path}/b {data}") == 0
    for name, steps in (("a", 200), ("b", 160)):
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        assert summary["total_steps"] == steps
        assert isinstance(summary["final_return_mean"], float)
    assert _run(f"resume {tmp_path}/b --total-steps 320") == 0
    assert _run(f"eval {tmp_path}/a --episodes 2") == 0
    capsys.readouterr()
    assert _run(f"{train} --total-steps 160 --run-dir {tmp_path}/c") == 2
    assert "BC has nobody to imitate" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()
    assert _run(f"{train} --run-dir {tmp_path}/c --trainer.demonstrations no/such-v0") == 2
    assert "minari download no/such-v0" in capsys.readouterr().err
    assert (
        _run(f"train bc CartPole-v1 --run-dir {tmp_path}/c --algorithm.expert {tmp_path}/sac") == 2
    )
    assert "trained on Pendulum-v1" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()
