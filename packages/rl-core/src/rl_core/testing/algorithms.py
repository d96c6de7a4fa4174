"""The tests that every `Algorithm` must pass."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, ClassVar, TypeVar, cast

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from rl_core import plugins
from rl_core.algorithm import AnyAlgorithm, EnvSpec, Weights
from rl_core.batch import PREPARED_COLUMNS, RolloutBatch
from rl_core.codec import decode, options_of
from rl_core.errors import ConfigError, NonFiniteError, PluginError
from rl_core.gradients import Noise
from rl_core.schedules import Linear
from rl_core.stateful import Stateful
from rl_core.testing.rollouts import make_batch, make_rollout, random_observation, random_state
from rl_core.testing.stateful import StatefulSuite, check_same_state, copy_state
from rl_core.trainer import TrainerConfig
from rl_core.types import StateValue, map_observation

TreeT = TypeVar("TreeT")

_NUM_ENVS = 4


class AlgorithmSuite(StatefulSuite):
    """Conformance tests of an `Algorithm`: subclass, supply `make_algorithm`, inherit the tests.

    An algorithm that does not learn from rollouts supplies `make_batch` as well.

    Attributes:
        is_smooth: set it to False where the loss holds something constant that depends on the
            parameters, such as a target, or where it cannot be computed in float64; its second
            derivative is then not compared with finite differences.
        has_compile_test: set it to False in all but one of several subclasses with the same
            graph; the test takes about ten seconds and is skipped without a C++ compiler.
    """

    is_smooth: ClassVar[bool] = True
    has_compile_test: ClassVar[bool] = True

    def make_algorithm(self, seed: int) -> AnyAlgorithm:
        """Return a new algorithm with a new actor, whose weights depend on the seed alone."""
        raise NotImplementedError

    def make_batch(self, algorithm: AnyAlgorithm, seed: int) -> object:
        """Return a batch to learn from; by default out of a made-up rollout."""
        return make_batch(algorithm, make_rollout(algorithm, seed))

    def make_part(self) -> Stateful:
        """Return an algorithm to save and restore."""
        return self._algorithm()

    def use_part(self, part: Stateful) -> StateValue:
        """Take two gradient steps and choose an action."""
        algorithm = cast("AnyAlgorithm", part)
        samples = [dict(self._step(algorithm, seed)) for seed in (1, 2)]
        return [*samples, _act(algorithm).action]

    # Gradient steps

    def test_a_step_changes_what_is_learned_and_nothing_else(self) -> None:
        """Every parameter in a group or target moves; frozen ones and buffers stay."""
        algorithm = self._algorithm()
        groups, targets = algorithm.parameter_groups(), algorithm.target_networks()
        before = _by_name(algorithm)
        for seed in range(_period(algorithm)):
            self._step(algorithm, seed)
        moving = {
            name
            for key in (*(group.name for group in groups), *(target.module for target in targets))
            for name in algorithm.gradients.vectors[key].shapes
        }
        assert moving
        for name, tensor in _by_name(algorithm).items():
            assert torch.equal(tensor, before[name]) == (name not in moving), name

    def test_a_step_cut_in_two_is_the_same_step(self) -> None:
        """Gradients computed here and applied here, or elsewhere, move as the fused step does."""
        fused, cut, learner = (self._algorithm() for _ in range(3))
        if not fused.exchanges_gradients:
            pytest.skip("exchanges no gradients")
        for seed in range(3):
            samples = self._step(fused, seed)
            gradients = cut.compute_gradients(self.make_batch(cut, seed))
            assert gradients.version == seed
            assert gradients.num_samples > 0
            check_same_state(dict(gradients.samples), dict(samples))
            cut.apply_gradients()
            learner.apply_gradients(gradients)
        check_same_state(cut.state_dict(), fused.state_dict())
        check_same_state(learner.gradients.state_dict(), fused.gradients.state_dict())
        check_same_state(dict(_tensors(learner)), dict(_tensors(fused)))
        expected = fused.read_metrics()
        assert cut.read_metrics() == expected
        assert learner.read_metrics() == expected

    def test_computing_gradients_changes_nothing(self) -> None:
        """A gradient worker's weights move only when it is told to move them."""
        algorithm = self._algorithm()
        if not algorithm.exchanges_gradients:
            pytest.skip("exchanges no gradients")
        batch = self.make_batch(algorithm, 1)
        before = copy_state({**algorithm.state_dict(), "generator": None})
        algorithm.compute_gradients(batch)
        check_same_state({**algorithm.state_dict(), "generator": None}, before)

    def test_gradients_of_another_shape_are_refused(self) -> None:
        """Workers built otherwise are found out before anything moves."""
        algorithm = self._algorithm()
        if not algorithm.exchanges_gradients:
            pytest.skip("exchanges no gradients")
        with pytest.raises(ConfigError, match="none were computed"):
            algorithm.apply_gradients()
        gradients = algorithm.compute_gradients(self.make_batch(algorithm, 1))
        before = copy_state(algorithm.state_dict())
        *_, last = gradients.tensors
        with pytest.raises(ConfigError, match=last):
            algorithm.apply_gradients(
                replace(gradients, tensors={**gradients.tensors, last: torch.zeros(0)})
            )
        check_same_state(algorithm.state_dict(), before)

    def test_samples_and_metrics_have_their_shapes_and_no_graph(self) -> None:
        """Storages take per-sample results by their first axis and keep them."""
        algorithm = self._algorithm()
        for name, sample in self._step(algorithm, 1).items():
            assert sample.dim() >= 1, name
            assert not sample.requires_grad, name
        metrics = algorithm.read_metrics()
        assert any(name.startswith("loss/") for name in metrics), sorted(metrics)
        assert all(np.isfinite(value) for value in metrics.values()), metrics
        assert algorithm.read_metrics() == {}

    def test_the_same_seed_twice_is_the_same_run(self) -> None:
        """Nothing is drawn from a global generator, nothing depends on the order of a set."""
        one, other = self._algorithm(seed=3), self._algorithm(seed=3)
        check_same_state(other.state_dict(), one.state_dict())
        expected = copy_state(self.use_part(one))
        torch.manual_seed(12345)
        check_same_state(self.use_part(other), expected)
        check_same_state(other.state_dict(), one.state_dict())

    def test_a_loss_that_is_not_finite_changes_nothing_and_is_reported(self) -> None:
        """One bad batch costs one step, in either form, and the log says so."""
        algorithm = self._algorithm()
        self._step(algorithm, 1)
        batch = _poisoned(self.make_batch(algorithm, 2))
        before = copy_state(_learned(algorithm))
        algorithm.gradient_step(batch)
        if algorithm.exchanges_gradients:
            gradients = algorithm.compute_gradients(batch)
            assert not gradients.finite
            algorithm.apply_gradients(gradients)
        check_same_state(_learned(algorithm), before)
        with pytest.raises(NonFiniteError):
            algorithm.read_metrics()
        self._step(algorithm, 3)
        assert algorithm.read_metrics()

    # The loss as a function of its parameters

    def test_the_loss_at_explicit_parameters_is_the_same_function(self) -> None:
        """At the algorithm's own parameters it has the same value, at others another one."""
        algorithm = self._algorithm()
        batch = self.make_batch(algorithm, 1)
        noise = algorithm.draw_update_noise(batch)
        own = algorithm.named_parameters()
        expected = algorithm.compute_loss(batch, noise).loss
        torch.testing.assert_close(algorithm.compute_loss(batch, noise, own).loss, expected)
        moved = {name: parameter + 0.1 for name, parameter in own.items()}
        assert algorithm.compute_loss(batch, noise, moved).loss != expected
        torch.testing.assert_close(algorithm.compute_loss(batch, noise).loss, expected)

    def test_the_loss_is_differentiable_twice(self) -> None:
        """The gradient passes through an inner gradient step, as in MAML."""
        algorithm = self._algorithm()
        batch = self.make_batch(algorithm, 1)
        noise = algorithm.draw_update_noise(batch)
        number = torch.float64 if self.is_smooth else torch.float32
        batch, noise = _cast(batch, number), _cast(noise, number)
        start = {
            name: parameter.detach().to(number).requires_grad_()
            for name, parameter in algorithm.named_parameters().items()
        }
        outer = _loss_after_inner_step(algorithm, batch, noise, start)
        gradients = torch.autograd.grad(
            outer, list(start.values()), allow_unused=True, materialize_grads=True
        )
        assert all(bool(gradient.isfinite().all()) for gradient in gradients)
        assert any(bool(gradient.any()) for gradient in gradients)
        if not self.is_smooth:
            return
        generator = torch.Generator().manual_seed(0)
        direction = {
            name: torch.randn(parameter.shape, generator=generator, dtype=number)
            for name, parameter in start.items()
        }
        slope = sum(
            (gradient * direction[name]).sum()
            for name, gradient in zip(start, gradients, strict=True)
        )
        width = 1e-6
        ahead, behind = (
            _loss_after_inner_step(
                algorithm,
                batch,
                noise,
                {
                    name: (parameter + sign * width * direction[name]).detach().requires_grad_()
                    for name, parameter in start.items()
                },
            )
            for sign in (1.0, -1.0)
        )
        torch.testing.assert_close((ahead - behind) / (2.0 * width), slope, rtol=1e-4, atol=1e-6)

    # Hyper-parameters

    def test_a_known_parameter_changes_at_once(self) -> None:
        """Every scheduled field of the config can be set while running."""
        algorithm = self._algorithm()
        for name in algorithm.schedules:
            value = 0.5 * float(algorithm.hyper[name])
            algorithm.update_algorithm_parameter(name, value)
            assert float(algorithm.hyper[name]) == pytest.approx(value)

    def test_an_unknown_parameter_is_refused_with_the_nearest_name(self) -> None:
        """A typo must not pass for a change."""
        algorithm = self._algorithm()
        name = next(iter(algorithm.schedules))
        with pytest.raises(ConfigError, match=f"did you mean '{name}'"):
            algorithm.update_algorithm_parameter(f"{name}x", 0.1)

    def test_learning_rates_reach_the_optimiser_and_zero_skips_learning(self) -> None:
        """A rate of 0 leaves weights and optimiser state alone; a new rate counts at once."""
        frozen, fast = self._algorithm(), self._algorithm()
        self._step(frozen, 1)
        self._step(fast, 1)
        rates = {group.learning_rate for group in frozen.parameter_groups()}
        for name in rates:
            frozen.update_algorithm_parameter(name, 0.0)
            fast.update_algorithm_parameter(name, 2.0 * float(fast.hyper[name]))
        assert not frozen.gradients.learns
        before = copy_state(_learned(frozen))
        usual = self._algorithm()
        self._step(usual, 1)
        for seed in range(2, 2 + _period(usual)):
            for algorithm in (frozen, fast, usual):
                self._step(algorithm, seed)
        check_same_state(_learned(frozen), before)
        assert frozen.read_metrics()
        for group in usual.parameter_groups():
            ours, theirs = (a.gradients.vectors[group.name].values for a in (usual, fast))
            assert not torch.equal(ours, theirs), group.name

    def test_schedules_move_with_the_progress(self) -> None:
        """What is scheduled follows its schedule, what is constant stays."""
        algorithm = self._algorithm()
        constants = {name: float(algorithm.hyper[name]) for name in algorithm.schedules}
        name = next(name for name, value in constants.items() if value > 0.0)
        schedule = Linear(constants.pop(name), 0.5 * float(algorithm.hyper[name]))
        algorithm.update_algorithm_parameter(name, schedule)
        for progress in (0.0, 0.5, 1.0):
            algorithm.set_progress(progress)
            assert float(algorithm.hyper[name]) == pytest.approx(schedule.value(progress))
            for other, value in constants.items():
                assert float(algorithm.hyper[other]) == pytest.approx(value)
        restored = self._algorithm()
        restored.load_state_dict(algorithm.state_dict())
        restored.set_progress(0.5)
        assert float(restored.hyper[name]) == pytest.approx(schedule.value(0.5))

    # Weights

    def test_weights_carry_over(self) -> None:
        """A worker that takes weights computes the same loss and chooses the same actions."""
        for acting_only in (False, True):
            learner, worker = self._algorithm(seed=1), self._algorithm(seed=2)
            self._step(learner, 1)
            weights = learner.get_weights(acting_only)
            assert weights.version == 1
            assert worker.set_weights(weights, acting_only)
            assert torch.equal(_act(worker).action, _act(learner).action)
            if not acting_only:
                check_same_state(dict(_tensors(worker)), dict(_tensors(learner)))
            held = copy_state(dict(weights.tensors))
            self._step(learner, 2)
            check_same_state(dict(weights.tensors), held)

    def test_older_weights_are_not_taken(self) -> None:
        """Weights that were overtaken on their way change nothing."""
        learner, worker = self._algorithm(seed=1), self._algorithm(seed=2)
        old = learner.get_weights()
        self._step(learner, 1)
        assert worker.set_weights(learner.get_weights())
        before = _tensors(worker)
        assert not worker.set_weights(old)
        check_same_state(dict(_tensors(worker)), dict(before))

    def test_weights_of_other_networks_are_refused(self) -> None:
        """A missing tensor is an error, not a weight left as it was."""
        algorithm = self._algorithm()
        name, *others = algorithm.get_weights().tensors
        tensors = {other: algorithm.get_weights().tensors[other] for other in others}
        with pytest.raises(ConfigError, match=name):
            algorithm.set_weights(Weights(9, tensors))

    # Acting

    def test_acting_answers_what_it_declares(self) -> None:
        """Actions and extras have the shapes that storages allocate by, and no graph."""
        algorithm = self._algorithm()
        output = _act(algorithm)
        spec = algorithm.actor.action_spec
        assert output.action.shape == (_NUM_ENVS, *spec.shape)
        assert output.action.dtype == spec.dtype
        assert set(output.extras) == set(algorithm.extras)
        for name, extra in algorithm.extras.items():
            assert output.extras[name].shape == (_NUM_ENVS, *extra.shape), name
            assert output.extras[name].dtype == extra.dtype, name
        for action in output.env_action.cpu().numpy():
            assert algorithm.actor.action_space.contains(action)

    def test_deterministic_acting_explores_nothing(self) -> None:
        """Without exploration the same observation gets the same action."""
        algorithm = self._algorithm()
        one, other = _act(algorithm, None), _act(algorithm, None)
        assert torch.equal(one.action, other.action)

    def test_preparing_a_rollout_gives_the_columns_of_a_batch(self) -> None:
        """Every transition gets its behaviour's view, an advantage and a target."""
        algorithm = self._algorithm()
        if algorithm.batch_type is not RolloutBatch:
            pytest.skip("does not learn from rollouts")
        rollout = make_rollout(algorithm, seed=1)
        before = copy_state(algorithm.state_dict())
        columns, metrics = algorithm.prepare(rollout)
        check_same_state(algorithm.state_dict(), before)
        assert set(columns) >= set(PREPARED_COLUMNS)
        for name, column in columns.items():
            assert column.shape[:2] == rollout.reward.shape, name
            assert not column.requires_grad, name
            assert column.isfinite().all(), name
        assert all(value.dim() == 0 for value in metrics.values())

    # Names and compilation

    def test_the_default_recipe_can_be_built(self) -> None:
        """What it names is registered, or ours; what is installed takes the options it gives."""
        algorithm = self._algorithm()
        actor = algorithm.actor
        spec = EnvSpec("Scripted-v0", actor.observation_space, actor.action_space)
        recipe = algorithm.default_recipe(spec)
        for component in (recipe.actor, recipe.storage):
            if component.name in plugins.available(component.kind):
                cls = plugins.load(component.kind, component.name)
                decode(options_of(cls), component.kwargs, component.kind)
            else:
                with pytest.raises(PluginError, match="pip install"):
                    plugins.load(component.kind, component.name)
        decode(options_of(type(algorithm)), recipe.algorithm, "algorithm")
        decode(TrainerConfig, recipe.trainer, "trainer")
        assert "num_envs" in recipe.env

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_the_compiled_step_agrees_with_the_eager_one(self) -> None:
        """Within rounding, also where the step is masked; new numbers need no new graph."""
        if not self.has_compile_test:
            pytest.skip("another subclass compiles the same graph")
        if not has_cpp_compiler():
            pytest.skip("no C++ compiler")
        eager, compiled = self._algorithm(), self._algorithm()
        compiled.compile_mode = "on"
        period = _period(eager)

        def check_both(batch: object) -> None:
            expected, got = (dict(a.gradient_step(batch)) for a in (eager, compiled))
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(
                _tensors(compiled), _tensors(eager), rtol=1e-3, atol=1e-5, equal_nan=True
            )

        for seed in range(2 * period):
            check_both(self.make_batch(eager, seed))
        expected = eager.read_metrics()
        assert compiled.read_metrics() == pytest.approx(expected, rel=1e-3, abs=1e-5)
        with torch.compiler.set_stance("fail_on_recompile"):
            name = eager.parameter_groups()[0].learning_rate
            for algorithm in (eager, compiled):
                algorithm.update_algorithm_parameter(name, 0.5 * float(algorithm.hyper[name]))
            for seed in range(period):
                check_both(self.make_batch(eager, seed))
            before = copy_state(_learned(compiled))
            for _ in range(period):
                compiled.gradient_step(_poisoned(self.make_batch(eager, 1)))
            check_same_state(_learned(compiled), before)
        with pytest.raises(NonFiniteError):
            compiled.read_metrics()

    def _algorithm(self, seed: int = 1) -> AnyAlgorithm:
        algorithm = self.make_algorithm(seed)
        algorithm.generator.manual_seed(seed)
        return algorithm

    def _step(self, algorithm: AnyAlgorithm, seed: int) -> Mapping[str, Tensor]:
        return algorithm.gradient_step(self.make_batch(algorithm, seed))


def has_cpp_compiler() -> bool:
    """Say whether `torch.compile` can make code for the CPU."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def _act(algorithm: AnyAlgorithm, noise_seed: int | None = 3) -> Any:
    actor = algorithm.actor
    space: gymnasium.Space[object] = actor.observation_space
    observation = map_observation(
        lambda part: part.to(algorithm.device),
        random_observation(space, (_NUM_ENVS,), np.random.default_rng(3)),
    )
    generator = torch.Generator(algorithm.device).manual_seed(noise_seed or 0)
    noise = None if noise_seed is None else algorithm.draw_noise((_NUM_ENVS,), generator)
    start = torch.zeros(_NUM_ENVS, dtype=torch.bool, device=algorithm.device)
    with torch.no_grad():
        return algorithm.acting_step(
            observation,
            random_state(algorithm.actor, _NUM_ENVS, generator),
            noise,
            deterministic=noise_seed is None,
            episode_start=start,
        )


def _period(algorithm: AnyAlgorithm) -> int:
    """Count the steps until everything has moved at least once."""
    periods = [group.every for group in algorithm.parameter_groups()]
    return max([*periods, *(target.every for target in algorithm.target_networks())])


def _tensors(algorithm: AnyAlgorithm) -> dict[str, Tensor]:
    """Copy all parameters and buffers of the algorithm's modules."""
    return dict(algorithm.get_weights().tensors)


def _by_name(algorithm: AnyAlgorithm) -> dict[str, Tensor]:
    """Copy the parameters, each under one name only, and the actor's buffers."""
    tensors = {**algorithm.named_parameters(), **dict(algorithm.actor.named_buffers())}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _learned(algorithm: AnyAlgorithm) -> StateValue:
    """Return what learning changes: weights, without hyper-parameters, and optimiser state."""
    weights = {n: t for n, t in _tensors(algorithm).items() if not n.startswith("hyper.")}
    return {"weights": weights, "optimizers": algorithm.gradients.state_dict()["optimizers"]}


def _loss_after_inner_step(
    algorithm: AnyAlgorithm, batch: object, noise: Noise, parameters: Mapping[str, Tensor]
) -> Tensor:
    inner = algorithm.compute_loss(batch, noise, parameters).loss
    gradients = torch.autograd.grad(
        inner,
        list(parameters.values()),
        create_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    adapted = {
        name: parameter - 0.1 * gradient
        for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True)
    }
    return algorithm.compute_loss(batch, noise, adapted).loss


def _poisoned(batch: TreeT) -> TreeT:
    """Make every floating-point number of a batch NaN, but for the mask, which counts samples."""

    def poison(tensor: Tensor) -> Tensor:
        return torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else tensor

    poisoned = _map_tree(poison, batch)
    if isinstance(batch, RolloutBatch):
        poisoned = cast("TreeT", replace(cast("RolloutBatch", poisoned), mask=batch.mask))
    return poisoned


def _cast(tree: TreeT, dtype: torch.dtype) -> TreeT:
    def convert(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return _map_tree(convert, tree)


def _map_tree(function: Any, tree: TreeT) -> TreeT:
    """Apply a function to every tensor of a dataclass or mapping of tensors."""
    result: Any = tree
    if isinstance(tree, Tensor):
        result = function(tree)
    elif isinstance(tree, Mapping):
        result = {key: _map_tree(function, value) for key, value in tree.items()}
    elif is_dataclass(tree) and not isinstance(tree, type):
        values = {field.name: getattr(tree, field.name) for field in fields(tree)}
        result = replace(tree, **_map_tree(function, values))
    return cast("TreeT", result)
