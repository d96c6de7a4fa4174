"""Whatever runs on the CPU runs on a GPU: it learns, compiles, stops, resumes and is saved."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from torch import Tensor

import rl_train
from rl_core.algorithm import AnyAlgorithm
from rl_core.batch import Transition
from rl_core.compile.trace import tensors_of
from rl_core.types import Json
from rl_envs import as_vec_env
from rl_storages import RolloutStorage
from rl_testing.algorithms import AlgorithmSuite
from rl_testing.replay import LIVES
from rl_testing.stateful import check_same_state
from rl_testing.storages import seeded
from rl_testing.transitions import TransitionScript
from rl_train import Agent
from rl_train.builder import build, compose
from support.envs import AsTensors

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

Options = dict[str, Any]

SMALL: Options = {"hidden_sizes": [6], "num_envs": 2}
ROLLOUTS: Options = {**SMALL, "num_steps": 32}
REPLAYED: Options = {**SMALL, "start_steps": 20, "update_after": 20, "minibatch_size": 8}

RUNS: dict[str, tuple[str, str, Options]] = {
    "ppo": ("ppo", "CartPole-v1", {**ROLLOUTS, "normalize_observations": True}),
    "ppo lstm": ("ppo", "CartPole-v1", {**ROLLOUTS, "recurrent_net": "lstm"}),
    "a2c": ("a2c", "Pendulum-v1", ROLLOUTS),
    "vpg": ("vpg", "CartPole-v1", ROLLOUTS),
    "trpo": ("trpo", "Pendulum-v1", {**ROLLOUTS, "minibatch_size": 32}),
    "rnd-ppo": ("rnd-ppo", "CartPole-v1", ROLLOUTS),
    "dqn": ("dqn", "CartPole-v1", {**REPLAYED, "prioritized": {}, "n_step": 3, "epsilon": 0.1}),
    "dqn gru": ("dqn", "CartPole-v1", {**REPLAYED, "recurrent_net": "gru"}),
    "rainbow": ("rainbow", "CartPole-v1", REPLAYED),
    "ddpg": ("ddpg", "Pendulum-v1", REPLAYED),
    "td3": ("td3", "Pendulum-v1", REPLAYED),
    "sac": ("sac", "Pendulum-v1", {**REPLAYED, "data_device": "cpu"}),
    "redq": ("redq", "Pendulum-v1", {**REPLAYED, "num_minibatches": 2}),
    "droq": ("droq", "Pendulum-v1", {**REPLAYED, "num_minibatches": 2}),
    "maml-vpg": ("maml-vpg", "PointNavigation-v0", {"num_envs": 4, "meta_batch_size": 2}),
    "maml-trpo": ("maml-trpo", "PointNavigation-v0", {"num_envs": 4, "meta_batch_size": 2}),
    "pearl": (
        "pearl",
        "PointNavigation-v0",
        {"num_envs": 4, "options": {"algorithm": {"num_sampled_tasks": 4, "num_train_tasks": 4}}},
    ),
}
"""By name: algorithm, environment, options."""

COMPILED = ("ppo", "trpo", "dqn", "td3", "sac")


def _agent(name: str, **more: Any) -> Agent:
    algorithm, env, options = RUNS[name]
    return rl_train.make(algorithm, env, device="cuda", seed=1, **options, **more)


class OnGPUSuite(AlgorithmSuite):
    """The conformance suite of an algorithm whose networks are on a GPU."""

    name: ClassVar[str]
    is_smooth: ClassVar[bool] = False
    unweighted_groups: ClassVar[frozenset[str]] = frozenset({"temperature"})

    def make_algorithm(self, seed: int) -> AnyAlgorithm:
        algorithm, env, options = RUNS[self.name]
        sections: dict[str, dict[str, Json]] = {
            "env": {"num_envs": 1},
            "actor": {"hidden_sizes": options["hidden_sizes"]},
        }
        parts = build(compose(algorithm, env, sections, seed=seed, device="cuda"))
        parts.envs.close()
        return parts.algorithm


class TestPPO(OnGPUSuite):
    name = "ppo"


class TestTRPO(OnGPUSuite):
    name = "trpo"


class TestDQN(OnGPUSuite):
    name = "dqn"


class TestTD3(OnGPUSuite):
    name = "td3"


class TestSAC(OnGPUSuite):
    name = "sac"


@pytest.mark.parametrize("name", RUNS)
def test_a_run_ends_on_the_gpu_with_other_weights(name: str) -> None:
    agent = _agent(name, compile="off")
    before = {key: tensor.clone() for key, tensor in agent.actor.named_parameters()}
    agent.train(total_updates=6, progress=False)
    now = dict(agent.actor.named_parameters())
    assert {tensor.device.type for tensor in now.values()} == {"cuda"}
    assert all(bool(tensor.isfinite().all()) for tensor in now.values())
    assert any(not torch.equal(tensor, before[key]) for key, tensor in now.items())
    agent.close()


@pytest.mark.parametrize("compile_mode", ["off", "on"])
@pytest.mark.parametrize("name", COMPILED)
def test_a_resumed_run_equals_one_that_was_never_stopped(
    name: str, compile_mode: str, tmp_path: Path
) -> None:
    whole, first = (_agent(name, compile=compile_mode) for _ in range(2))
    whole.train(300, progress=False)
    first.train(200, progress=False)
    first.save(tmp_path)
    second = rl_train.load(tmp_path)
    second.train(300, progress=False)
    check_same_state(second.algorithm.state_dict(), whole.algorithm.state_dict())
    for agent in (whole, first, second):
        agent.close()


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_and_uncompiled_runs_learn_the_same(name: str) -> None:
    compiled, plain = (_agent(name, compile=mode) for mode in ("on", "off"))
    for agent in (compiled, plain):
        agent.train(130, progress=False)
    expected = dict(plain.actor.named_parameters())
    for key, tensor in compiled.actor.named_parameters():
        torch.testing.assert_close(tensor, expected[key], rtol=2e-3, atol=2e-4)
    compiled.close()
    plain.close()


def _on(device: str, transition: Transition) -> Transition:
    """Move all of a row to a device."""
    moved: dict[str, Any] = {
        field.name: (
            {key: torch.as_tensor(part).to(device) for key, part in value.items()}
            if isinstance(value, Mapping)
            else torch.as_tensor(value).to(device)
        )
        for field in fields(transition)
        if (value := getattr(transition, field.name)) is not None
    }
    return replace(transition, **moved)


@pytest.mark.parametrize("is_there", [lambda row: False, lambda row: True, lambda row: row % 3])
@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
def test_a_rollout_on_a_gpu_holds_the_same_rows(
    life: TransitionScript, is_there: Callable[[int], bool]
) -> None:
    found: list[Mapping[str, Tensor]] = []
    for device in ("cpu", "cuda"):
        storage = RolloutStorage(40)
        storage.allocate(life.spec(device), seeded())
        for number, transition in enumerate(life.transitions(40)):
            there = device if is_there(number) else "cpu"
            storage.insert_transition(_on(there, transition))
            if number == 20:  # rows are read before they are complete
                copied = storage.get_data_slice(5, 15)
                assert {column.device.type for column in copied.values()} <= {"cpu", device}
        rollout = storage.rollout()
        assert rollout.reward.device.type == device
        found.append({str(n): tensor.cpu() for n, tensor in enumerate(tensors_of(rollout))})
    check_same_state(found[1], found[0])


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_environments_may_be_on_the_gpu_too(name: str) -> None:
    results = []
    for is_there in (True, False):
        bare = CartPoleVectorEnv(2)
        envs = as_vec_env(AsTensors(bare, "cuda") if is_there else bare)
        algorithm, _, options = RUNS[name]
        agent = rl_train.make(algorithm, envs, device="cuda", seed=1, **{**options, "num_envs": 2})
        agent.train(150, progress=False)
        results.append({n: p.detach().clone() for n, p in agent.actor.named_parameters()})
        agent.close()
    check_same_state(results[0], results[1])


@pytest.mark.filterwarnings("ignore:a generator that was saved on cuda continues")
def test_what_was_saved_on_a_gpu_acts_the_same_on_the_cpu(tmp_path: Path) -> None:
    agent = _agent("ppo")
    agent.train(200, progress=False)
    agent.save(tmp_path)
    loaded = rl_train.load(tmp_path, device="cpu")
    observation = np.array([[0.1, -0.2, 0.03, 0.4]], np.float32)
    assert np.array_equal(agent.predict(observation)[0], loaded.predict(observation)[0])
    loaded.train(300, progress=False)
    agent.close()
    loaded.close()
