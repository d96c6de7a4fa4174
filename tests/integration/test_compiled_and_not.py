"""Whatever an algorithm is given, its compiled form does what its uncompiled form does."""

import copy
import gc
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from rl_core.algorithm import AnyAlgorithm
from rl_core.batch import ReplayBatch, RolloutBatch
from rl_core.compile import has_cpp_compiler
from rl_core.config import Recipe
from rl_core.errors import ConfigError
from rl_core.types import Json
from rl_testing.algorithms._case import tensors_of
from rl_testing.rollouts import make_batch, make_replay_batch, make_rollout
from rl_train.builder import build, compose

pytestmark = pytest.mark.skipif(not has_cpp_compiler(), reason="no C++ compiler")

ENVS = {
    "ppo": "CartPole-v1",
    "a2c": "Pendulum-v1",
    "vpg": "CartPole-v1",
    "trpo": "Pendulum-v1",
    "rnd-ppo": "CartPole-v1",
    "dqn": "CartPole-v1",
    "ddpg": "Pendulum-v1",
    "td3": "Pendulum-v1",
    "sac": "Pendulum-v1",
    "bc": "Pendulum-v1",
}


def _algorithm(name: str, seed: int = 1, compile_mode: str = "off") -> AnyAlgorithm:
    sections: dict[str, dict[str, Json]] = {
        "actor": {"hidden_sizes": [6]},
        "env": {"num_envs": 1},
    }
    recipe: Recipe = compose(name, ENVS[name], sections, seed=seed, device="cpu")
    parts = build(recipe)
    parts.envs.close()
    parts.algorithm.compiled.set_mode(compile_mode)  # type: ignore[arg-type]  # one of three
    return parts.algorithm


def _batch(algorithm: AnyAlgorithm, seed: int) -> Any:
    if algorithm.batch_type is ReplayBatch:
        return make_replay_batch(algorithm, seed)
    return make_batch(algorithm, make_rollout(algorithm, seed))


def _alias(batch: Any, rng: np.random.Generator) -> Any:
    """Let two fields of floating-point numbers be one tensor."""
    names = ["weight", "mask"] if isinstance(batch, ReplayBatch) else ["advantage", "value_target"]
    assert getattr(batch, names[0]).shape == getattr(batch, names[1]).shape
    return replace(batch, **{names[0]: getattr(batch, names[1])})


def _stride(batch: Any, rng: np.random.Generator) -> Any:
    """Lay every tensor out otherwise: in the other order, with gaps, or from an offset."""

    def laid_out(tensor: Tensor) -> Tensor:
        kind = rng.integers(3)
        if kind == 0 and tensor.dim() > 1:
            return tensor.transpose(0, -1).contiguous().transpose(0, -1)
        if kind == 1 and tensor.dim() > 0:
            return torch.stack([tensor, tensor], -1)[..., 0]
        return torch.cat([tensor.reshape(-1)[:1], tensor.reshape(-1)])[1:].view(tensor.shape)

    return tree_map_only(Tensor, laid_out, batch)


def _expand(batch: Any, rng: np.random.Generator) -> Any:
    """Let all samples have the first one's observation, kept once."""
    first: Tensor = batch.observation[:1]
    return replace(batch, observation=first.expand(batch.observation.shape))


CHANGES: dict[str, Callable[[Any, np.random.Generator], Any]] = {
    "plain": lambda batch, rng: batch,
    "aliased": _alias,
    "strided": _stride,
    "expanded": _expand,
}


def _freeze(both: tuple[AnyAlgorithm, AnyAlgorithm], rng: np.random.Generator) -> None:
    """Freeze or release a layer of what is learned."""
    for algorithm in both:
        group = algorithm.parameter_groups()[0].name
        names = list(algorithm.gradients.vectors[group].shapes)
        for name in names[:2]:
            parameter = algorithm.named_parameters()[name]
            parameter.requires_grad_(not parameter.requires_grad)


def _replace_buffers(both: tuple[AnyAlgorithm, AnyAlgorithm], rng: np.random.Generator) -> None:
    for algorithm in both:
        for module in (algorithm.hyper, *algorithm.actor.modules()):
            for name, buffer in list(module._buffers.items()):
                if buffer is not None:
                    module._buffers[name] = buffer.clone()


MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "usual": nullcontext,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference": torch.inference_mode,
    "no gradients": torch.no_grad,
}


def _in_a_thread(function: Callable[[], object]) -> object:
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    (result,) = results
    return result


def _check_same(eager: AnyAlgorithm, compiled: AnyAlgorithm, what: str) -> None:
    expected, got = tensors_of(eager), tensors_of(compiled)
    for name, tensor in expected.items():
        difference = (got[name] - tensor).abs() - 2e-3 * tensor.abs()
        assert float(difference.max()) < 2e-5, (what, name, tensor, got[name])


@pytest.mark.parametrize("name", ENVS)
def test_both_forms_learn_the_same_whatever_comes(name: str) -> None:
    rng = np.random.default_rng(7)
    eager, compiled = _algorithm(name), _algorithm(name, compile_mode="on")
    _check_same(eager, compiled, "built")
    events = [
        *CHANGES,
        "frozen",
        *MODES,
        "strided",
        "thread",
        "buffers",
        "copied",
        "frozen",
        "aliased",
        "plain",
    ]
    for number, event in enumerate(events):
        both = eager, compiled
        if event == "frozen":
            _freeze(both, rng)
        if event == "buffers":
            _replace_buffers(both, rng)
        if event == "copied":
            eager, compiled = copy.deepcopy(both)
        if event == "autocast":  # whose coarse numbers would magnify what rounding left
            compiled.load_state_dict(eager.state_dict())
        seed = int(rng.integers(1000))
        with MODES.get(event, nullcontext)():
            change = CHANGES.get(event, CHANGES["plain"])
            batch = change(_batch(eager, number), np.random.default_rng(seed))
            torch.clear_autocast_cache()  # of casts without gradients, made with the batch
            for algorithm in (eager, compiled):
                if event == "thread":
                    _in_a_thread(partial(algorithm.gradient_step, batch))
                else:
                    algorithm.gradient_step(batch)
        _check_same(eager, compiled, f"{number} {event}")
    assert len(compiled.gradients.compiled) > 0
    expected, got = eager.read_metrics(), compiled.read_metrics()
    assert got == pytest.approx(expected, rel=2e-2, abs=1e-3)


def test_a_graph_is_not_fooled_by_fields_that_were_one_tensor_at_first() -> None:
    eager, compiled = _algorithm("ppo"), _algorithm("ppo", compile_mode="on")
    for seed in range(5):
        batch = _batch(eager, seed)
        assert isinstance(batch, RolloutBatch)
        if seed == 0:
            batch = replace(batch, value_target=batch.advantage)
        for algorithm in (eager, compiled):
            algorithm.gradient_step(batch)
    _check_same(eager, compiled, "after five steps")


@pytest.mark.parametrize("compile_mode", ["off", "on"])
def test_parameters_that_are_frozen_stay_put_and_go_on_when_released(compile_mode: str) -> None:
    algorithm = _algorithm("sac", compile_mode=compile_mode)
    for seed in range(2):  # Adam has moments by now
        algorithm.gradient_step(_batch(algorithm, seed))
    critics = [n for n in algorithm.gradients.vectors["critic"].shapes if "critics" in n]
    frozen = critics[0]
    parameters = algorithm.named_parameters()
    parameters[frozen].requires_grad_(False)
    before = {name: parameters[name].clone() for name in critics}
    algorithm.gradient_step(_batch(algorithm, 3))
    moved = {name for name in critics if not torch.equal(parameters[name], before[name])}
    assert moved == {*critics} - {frozen}
    parameters[frozen].requires_grad_(True)
    algorithm.gradient_step(_batch(algorithm, 4))
    assert not torch.equal(parameters[frozen], before[frozen])


@pytest.mark.parametrize("compile_mode", ["off", "on"])
def test_a_step_with_everything_frozen_moves_nothing(compile_mode: str) -> None:
    algorithm = _algorithm("ppo", compile_mode=compile_mode)
    for parameter in algorithm.actor.parameters():
        parameter.requires_grad_(False)
    before = tensors_of(algorithm)
    algorithm.gradient_step(_batch(algorithm, 1))
    assert all(torch.equal(value, before[name]) for name, value in tensors_of(algorithm).items())
    assert algorithm.gradients.count == 1
    assert np.isfinite(list(algorithm.read_metrics().values())).all()


def _replace_a_parameter(actor: nn.Module) -> None:
    owner = next(m for m in actor.modules() if isinstance(m, nn.Linear))
    owner.weight = nn.Parameter(owner.weight.detach() + 1.0)


def _replace_a_module(actor: nn.Module) -> None:
    owner = next(m for m in actor.modules() if any(isinstance(p, nn.Linear) for p in m.children()))
    name, linear = next((n, p) for n, p in owner.named_children() if isinstance(p, nn.Linear))
    other = nn.Linear(linear.in_features, linear.out_features)
    setattr(owner, name, other.requires_grad_(False))


@pytest.mark.parametrize("replaces", [_replace_a_parameter, _replace_a_module])
@pytest.mark.parametrize("compile_mode", ["off", "on"])
def test_replaced_parameters_are_refused_by_learning_and_seen_by_acting(
    compile_mode: str, replaces: Callable[[nn.Module], None]
) -> None:
    algorithm = _algorithm("sac", compile_mode=compile_mode)
    observation = torch.linspace(-1.0, 1.0, 6).view(2, 3)
    noise = torch.zeros(2, 1)
    with torch.no_grad():
        algorithm.acting_step(observation, {}, noise)
        replaces(algorithm.actor)
        action = algorithm.acting_step(observation, {}, noise).action
        expected = algorithm.explore(observation, {}, noise).action
    torch.testing.assert_close(action, expected)
    for _ in range(2):
        with pytest.raises(ConfigError, match="parameters were moved or replaced"):
            algorithm.gradient_step(_batch(algorithm, 1))


def test_observations_of_any_layout_go_in() -> None:
    algorithm = _algorithm("ppo", compile_mode="on")
    plain = torch.linspace(-1.0, 1.0, 16).view(4, 4)
    noise = algorithm.draw_noise((4,), torch.Generator().manual_seed(0))
    for observation in (
        plain,
        plain.t(),
        torch.from_numpy(np.asfortranarray(plain.numpy())),
        plain[:1].expand(4, 4),
        torch.linspace(-1.0, 1.0, 32).view(4, 8)[:, ::2],
    ):
        with torch.no_grad():
            action = algorithm.acting_step(observation, {}, noise).action
            expected = algorithm.explore(observation, {}, noise).action
        assert torch.equal(action, expected)


def test_three_algorithms_compile_in_threads() -> None:
    algorithms = [_algorithm(name, compile_mode="on") for name in ("ppo", "dqn", "sac")]
    failures: list[BaseException] = []

    def learn(algorithm: AnyAlgorithm) -> None:
        try:
            for seed in range(3):
                algorithm.gradient_step(_batch(algorithm, seed))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=learn, args=(algorithm,)) for algorithm in algorithms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for algorithm, name in zip(algorithms, ("ppo", "dqn", "sac"), strict=True):
        eager = _algorithm(name)
        for seed in range(3):
            eager.gradient_step(_batch(eager, seed))
        _check_same(eager, algorithm, name)


def _resident_kilobytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux")
def test_agents_of_one_recipe_share_their_graphs() -> None:
    """And leave nothing behind: graphs of their own took 3.5 MB each."""
    sizes = []
    for seed in range(30):
        algorithm = _algorithm("ppo", seed=seed, compile_mode="on")
        algorithm.gradient_step(_batch(algorithm, 0))
        del algorithm
        gc.collect()
        sizes.append(_resident_kilobytes())
    first, last = np.median(sizes[10:15]), np.median(sizes[25:30])
    assert (last - first) / 15 < 10.0, sizes[10:]


def test_parts_of_other_seeds_draw_other_noise() -> None:
    states = [_algorithm("sac", seed=seed).generator.get_state() for seed in (1, 2, 1)]
    assert torch.equal(states[0], states[2])
    assert not torch.equal(states[0], states[1])


def test_hyper_parameters_can_be_asked_for_by_name() -> None:
    hyper = _algorithm("sac").hyper
    assert "gamma" in hyper
    assert "gama" not in hyper
    assert "gamma" in list(hyper)
