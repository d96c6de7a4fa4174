"""Checkpoints that are saved at unusual moments: what goes on from them is the same run."""

import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import rl_train
from rl_core.compile import has_cpp_compiler
from rl_core.env import VecEnv
from rl_core.errors import CheckpointError, ConfigError, EnvironmentFaultError
from rl_core.types import StateDict
from rl_envs import ProcessVecEnv
from rl_train import Agent, Callback, Trainer
from rl_train.evaluation import EvaluationResult, evaluate_policy


def ppo(**options: Any) -> Agent:
    return rl_train.make(
        "ppo", "CartPole-v1", seed=1, num_envs=2, num_steps=64, num_epochs=1, compile="off",
        vectorization="sync", **options,
    )  # fmt: skip


def dqn(**options: Any) -> Agent:
    return rl_train.make(
        "dqn", "CartPole-v1", seed=1, num_envs=1, start_steps=50, update_after=100, update_every=50,
        hidden_sizes=[8], size=2000, compile="off", checkpoint_every="end", keep_checkpoints=9,
        **options,
    )  # fmt: skip


def trainer_of(agent: Agent) -> Trainer:
    trainer = agent._trainer
    assert trainer is not None
    return trainer


def parameters(agent: Agent) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in agent.algorithm.actor.parameters()])


def resumed_from(run: Path, steps: int) -> Agent:
    """Go on from one of a run's checkpoints, in a directory where it is the only one."""
    copy = run.with_name(f"{run.name}-again")
    shutil.copytree(run, copy)
    for checkpoint in (copy / "checkpoints").iterdir():
        if checkpoint.name != f"step-{steps}":
            shutil.rmtree(checkpoint)
    return rl_train.load(copy)


def test_a_run_saved_before_its_first_step_is_the_same(tmp_path: Path) -> None:
    whole, saved = ppo(), ppo()
    whole.train(256, progress=False)
    saved.save(tmp_path / "run")
    resumed = rl_train.load(tmp_path / "run")
    resumed.train(256, progress=False)
    assert torch.equal(parameters(resumed), parameters(whole))


def test_a_run_stopped_before_its_first_step_is_the_same(tmp_path: Path) -> None:
    class Stop(Callback):
        def on_training_start(self, trainer: Trainer, target: float, unit: str) -> None:
            trainer.stop()

    whole, stopped = ppo(), ppo()
    whole.train(256, progress=False)
    stopped.train(256, run_dir=tmp_path / "run", callbacks=[Stop()], progress=False)
    resumed = rl_train.load(tmp_path / "run")
    resumed.train(256, progress=False)
    assert torch.equal(parameters(resumed), parameters(whole))


@pytest.mark.skipif(not has_cpp_compiler(), reason="no C++ compiler")
def test_a_run_saved_before_its_graphs_are_in_use_is_the_same(tmp_path: Path) -> None:
    class Save(Callback):
        def on_update_end(self, trainer: Trainer) -> None:
            if trainer.updates == 1:  # uncompiled; the next one is compiled
                trainer.save_checkpoint()

    def make() -> Agent:
        return rl_train.make(
            "ppo", "CartPole-v1", seed=1, num_envs=2, num_steps=64, num_epochs=1, compile="on",
            vectorization="sync", checkpoint_every="end", keep_checkpoints=9,
        )  # fmt: skip

    whole = make()
    whole.train(512, run_dir=tmp_path / "run", callbacks=[Save()], progress=False)
    resumed = resumed_from(tmp_path / "run", 128)
    resumed.train(512, progress=False)
    assert torch.equal(parameters(resumed), parameters(whole))


def test_a_run_saved_between_two_updates_is_the_same(tmp_path: Path) -> None:
    class Save(Callback):
        def on_tick(self, trainer: Trainer, activity: str) -> None:
            if trainer.total_steps == 330 and activity == "collecting":
                trainer.save_checkpoint()

    whole = dqn()
    whole.train(600, run_dir=tmp_path / "run", callbacks=[Save()], progress=False)
    resumed = resumed_from(tmp_path / "run", 330)
    resumed.train(600, progress=False)
    assert torch.equal(parameters(resumed), parameters(whole))
    ours, theirs = trainer_of(resumed), trainer_of(whole)
    assert (ours.total_steps, ours.updates) == (theirs.total_steps, theirs.updates) == (600, 11)
    assert ours.state.recent.state_dict() == theirs.state.recent.state_dict()


def test_episodes_that_ended_before_a_fault_count(tmp_path: Path) -> None:
    class Faulty(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)
        steps = 0

        def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.steps += 1
            if self.steps == 150:
                raise RuntimeError("boom")
            return np.zeros(1, np.float32), 1.0, self.steps % 5 == 0, False, {}

    agent = rl_train.make(
        "dqn", Faulty, num_envs=1, update_after=50, update_every=100, hidden_sizes=[8], size=300,
        compile="off",
    )  # fmt: skip
    with pytest.raises(EnvironmentFaultError, match="boom"):
        agent.train(300, run_dir=tmp_path / "run", progress=False)
    trainer = trainer_of(agent)
    assert trainer.total_steps == 149
    assert trainer.state.iteration.transitions == 49
    assert trainer.collector.total_episodes == 29
    assert trainer.state.recent.metrics()["train/episode_return"] == 5.0
    assert trainer.state.recent.state_dict()["returns"] == [5.0] * 29


def test_nothing_is_saved_in_the_middle_of_an_update(tmp_path: Path) -> None:
    class Save(Callback):
        def on_minibatch_end(self, trainer: Trainer, index: int) -> None:
            trainer.save_checkpoint()

    with pytest.raises(ConfigError, match="in the middle of an update"):
        ppo().train(256, run_dir=tmp_path / "run", callbacks=[Save()], progress=False)
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


def test_an_agent_is_not_saved_in_the_middle_of_an_update(tmp_path: Path) -> None:
    class Save(Callback):
        def on_epoch_end(self, trainer: Trainer, index: int) -> None:
            agent.save(tmp_path / "saved")

    agent = ppo()
    with pytest.raises(ConfigError, match="in the middle of an update"):
        agent.train(256, callbacks=[Save()], progress=False)
    assert not (tmp_path / "saved").exists()


def test_an_evaluation_in_which_a_callback_saved_is_not_repeated(tmp_path: Path) -> None:
    class Count(Callback):
        def __init__(self) -> None:
            self.at: list[int] = []

        def on_evaluation(self, trainer: Trainer, result: EvaluationResult) -> None:
            self.at.append(trainer.total_steps)
            trainer.save_checkpoint()

        def state_dict(self) -> StateDict:
            return {"at": list(self.at)}

        def load_state_dict(self, state: Any) -> None:
            self.at = list(state["at"])

    options = {"test_every": 1, "num_test_episodes": 1, "keep_checkpoints": 9}
    ppo(**options).train(512, run_dir=tmp_path / "run", callbacks=[Count()], progress=False)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    resumed, count = resumed_from(tmp_path / "run", 256), Count()
    resumed.train(512, run_dir=tmp_path / "run-again", callbacks=[count], progress=False)
    assert count.at == [128, 256, 384, 512]
    again = (tmp_path / "run-again" / "metrics.jsonl").read_text().splitlines()
    assert [line.split(",")[0] for line in again] == [line.split(",")[0] for line in lines]


def test_a_checkpoint_has_what_was_changed_in_the_storage(tmp_path: Path) -> None:
    agent = dqn(prioritized={})
    agent.train(200, run_dir=tmp_path / "run", progress=False)
    trainer = trainer_of(agent)
    trainer.storage.update_storage_parameter("beta", 0.9)
    trainer.save_checkpoint()
    resumed = rl_train.load(tmp_path / "run")
    resumed.train(250, progress=False)
    assert trainer_of(resumed).storage.live_parameters()["beta"] == 0.9


def test_a_run_of_native_vectors_loads_with_any_environment(tmp_path: Path) -> None:
    agent = rl_train.make("ppo", "CartPole-v1", num_envs=8, vectorization="native", num_steps=16)
    agent.train(128, run_dir=tmp_path / "run", progress=False)
    loaded = rl_train.load(tmp_path / "run", env=lambda: gymnasium.make("CartPole-v1"))
    assert loaded.evaluate(num_episodes=2).num_episodes == 2
    assert loaded.recipe.env.kwargs["vectorization"] == "sync"
    with pytest.raises(CheckpointError, match="its observation space is Box"):
        rl_train.load(tmp_path / "run", env="Acrobot-v1")


def test_the_number_of_processes_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_envs.vectorize._fastest", lambda maker, count: ("async", 2))
    agent = rl_train.make("ppo", "CartPole-v1", num_envs=6, vectorization="auto")
    assert agent.recipe.env.kwargs["vectorization"] == "async"
    assert agent.recipe.env.kwargs["num_workers"] == 2
    make_test_envs = agent.parts.test_envs
    assert make_test_envs is not None
    test_envs: VecEnv = make_test_envs()
    assert isinstance(test_envs, ProcessVecEnv)
    assert len(test_envs.processes) == 2
    test_envs.close()
    agent.close()


@pytest.mark.parametrize(("noise", "is_process"), [("ou", True), ("gaussian", False)])
def test_evaluations_explore_like_training(noise: str, is_process: bool) -> None:
    actions: list[float] = []

    class Recorder(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

        def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
            self.steps = 0
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            actions.append(float(action[0]))
            self.steps += 1
            return np.zeros(2, np.float32), 0.0, False, self.steps == 200, {}

    agent = rl_train.make(
        "ddpg", Recorder, exploration_noise=noise, exploration_std=0.1, hidden_sizes=[8]
    )
    evaluate_policy(agent, Recorder, 1, explore=True)
    correlation = np.corrcoef(actions[:-1], actions[1:])[0, 1]
    assert correlation > 0.9 if is_process else abs(correlation) < 0.3
    first = list(actions)
    actions.clear()
    evaluate_policy(agent, Recorder, 1, explore=True)
    assert actions == first  # its process begins anew
