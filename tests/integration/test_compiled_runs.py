"""Compiled runs: the compiler works beside them, and stopping and resuming leaves no trace."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_algos_offpolicy import TD3, OffPolicyActor, OffPolicyActorConfig, TD3Config
from rl_algos_onpolicy import PPO, OnPolicyActor, OnPolicyActorConfig, PPOConfig
from rl_core.compile import has_cpp_compiler
from rl_core.compile.compiler import InProcess
from rl_core.compile.library import Compilation, CompileError, is_supported
from rl_core.env import EnvStep
from rl_core.errors import ConfigError
from rl_core.types import ArrayLike
from rl_storages import ReplayBuffer, RolloutStorage
from rl_testing.scripted import WalkVecEnv
from rl_testing.stateful import check_same_state
from rl_train import Callback, Trainer, TrainerConfig
from rl_train.checkpoint import latest_checkpoint
from support.signals import interrupted

BACKEND = Compilation if is_supported() else InProcess
pytestmark = pytest.mark.skipif(not has_cpp_compiler(), reason="no C++ compiler")


class PushedWalks(WalkVecEnv):
    """Walks whose steps are told by a number's sign."""

    @property
    def single_action_space(self) -> spaces.Box:  # type: ignore[override]  # another kind of walk
        return spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action: ArrayLike) -> EnvStep:
        return super().step((np.asarray(action)[:, 0] > 0.0).astype(np.int64))


def _trainer(name: str, run_dir: Path | None = None, *callbacks: Callback) -> Trainer:
    torch.manual_seed(0)
    envs = WalkVecEnv(2) if name == "ppo" else PushedWalks(2)
    both = envs.single_observation_space, envs.single_action_space
    config = TrainerConfig(compile="on", num_threads=1)
    if name == "ppo":
        actor = OnPolicyActor(*both, OnPolicyActorConfig(hidden_sizes=(4,)))
        ppo = PPO(actor, PPOConfig(num_epochs=2, num_minibatches=2))
        return Trainer(
            envs,
            ppo,
            RolloutStorage(4),
            config=config,
            seed=0,
            run_dir=run_dir,
            callbacks=callbacks,
        )
    policy = OffPolicyActorConfig(hidden_sizes=(4,), policy="deterministic", num_critics=2)
    td3 = TD3(OffPolicyActor(*both, policy), TD3Config(start_steps=4, update_after=4))
    return Trainer(
        envs, td3, ReplayBuffer(100), config=config, seed=0, run_dir=run_dir, callbacks=callbacks
    )


class Stop(Callback):
    """Stops a run in the middle of an update."""

    def __init__(self, update: int) -> None:
        self.update = update

    def on_minibatch_start(self, trainer: Trainer, index: int) -> None:
        if trainer.updates == self.update:
            trainer.stop()


@pytest.mark.parametrize("name", ["ppo", "td3"])
def test_a_stop_at_any_update_leaves_no_trace(name: str, tmp_path: Path) -> None:
    """Updates that ran uncompiled while the compiler worked, and only they, stay so."""
    whole = _trainer(name)
    whole.train(total_updates=8)
    compiled = whole.algorithm.gradients.compiled
    assert len(compiled) == len(compiled.adopted) == (2 if name == "td3" else 1)
    for update in range(5):
        run_dir = tmp_path / str(update)
        first = _trainer(name, run_dir, Stop(update))
        first.train(total_updates=8)
        assert first.updates == update + 1
        resumed = _trainer(name, run_dir)
        resumed.resume()
        resumed.train(total_updates=8)
        check_same_state(resumed.state_dict(), whole.state_dict())


def test_a_stop_while_waiting_for_the_compiler_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _trainer("ppo")
    whole.train(total_updates=5)
    first = _trainer("ppo", tmp_path)

    def interrupted(self: object, seconds: float | None = None) -> None:
        first.stop()

    with monkeypatch.context() as patch:
        patch.setattr(BACKEND, "finish", interrupted)
        first.train(total_updates=5)
    assert first.updates == 1
    resumed = _trainer("ppo", tmp_path)
    resumed.resume()
    resumed.train(total_updates=5)
    check_same_state(resumed.state_dict(), whole.state_dict())


def test_a_run_is_not_saved_while_it_waits_for_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Save(Callback):
        def on_tick(self, trainer: Trainer, activity: str) -> None:
            if activity == "compiling":
                with pytest.raises(ConfigError, match="while it waits for the compiler"):
                    trainer.save_checkpoint()
                refused.append(trainer.updates)

    def finish_later(self: object, seconds: float | None) -> object:
        calls.append(seconds)
        return None if len(calls) == 1 else finish(self, None)

    refused: list[int] = []
    calls: list[float | None] = []
    finish: Callable[..., object] = BACKEND.finish
    monkeypatch.setattr(BACKEND, "finish", finish_later)
    _trainer("ppo", tmp_path, Save()).train(total_updates=2)
    assert refused == [1]


def test_what_came_before_a_failure_of_the_compiler_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object, seconds: float | None = None) -> None:
        raise CompileError("it was killed")

    trainer = _trainer("ppo", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(BACKEND, "finish", fail)
        with pytest.raises(
            ConfigError, match=r"it was killed.*; the state before it is in .*step-"
        ):
            trainer.train(total_updates=3)
    whole = _trainer("ppo")
    whole.train(total_updates=3)
    resumed = _trainer("ppo", tmp_path)
    resumed.resume()
    resumed.train(total_updates=3)
    check_same_state(resumed.state_dict(), whole.state_dict())


@pytest.mark.skipif(not is_supported(), reason="this torch compiles in the process itself")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_compilation_ends_the_run_with_a_checkpoint(
    tmp_path: Path, number: signal.Signals
) -> None:
    words = ["train", "ppo", "CartPole-v1", "--total-steps=100_000", "--run-dir=run"]
    options = ["--actor.hidden-sizes=7", "--trainer.compile=on", "--storage.num-steps=32"]
    cache = tmp_path / "cache"

    def is_ready() -> bool:
        if len(list(cache.glob("graphs/new-*"))) < 2:  # acting and the gradient step
            return False
        time.sleep(0.5)
        return True

    env = {**os.environ, "OMP_NUM_THREADS": "1", "RL_CACHE_DIR": str(cache)}
    done = interrupted([*words, *options], number, is_ready, cwd=tmp_path, env=env)
    assert done.returncode == 128 + number, done.stderr
    checkpoint = latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert checkpoint is not None
    assert checkpoint.skipped == ()
    assert not list(cache.glob("graphs/new-*"))
