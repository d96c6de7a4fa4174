"""All tests of an `Algorithm` in one class."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only

from rl_core import plugins
from rl_core.algorithm import AnyAlgorithm, EnvSpec
from rl_core.batch import PREPARED_COLUMNS, ReplayBatch, RolloutBatch
from rl_core.config import Linear, decode, options_of
from rl_core.errors import ConfigError, PluginError
from rl_core.gradients import Noise, Weights
from rl_core.stateful import Stateful
from rl_core.types import StateValue
from rl_testing.algorithms._case import (
    NUM_ENVS,
    TreeT,
    act,
    gradients_of,
    learned,
    period,
    tensors_of,
)
from rl_testing.algorithms._gradient_steps import GradientStepTests
from rl_testing.algorithms._updates import UpdateTests
from rl_testing.rollouts import make_rollout
from rl_testing.stateful import check_same_state, copy_state

_CONTENTS = ("observation", "action", "reward", "num_steps", "terminated", "next_observation")
"""The fields of a `ReplayBatch` that say what happened."""

_ROW_CONTENTS = ("observation", "action", "log_prob", "value", "advantage", "value_target")
"""The fields of a `RolloutBatch` that say what was seen and done, and how good it was."""


class AlgorithmSuite(GradientStepTests, UpdateTests):
    """Conformance tests of an `Algorithm`: subclass, supply `make_algorithm`, inherit the tests.

    An algorithm with batches of its own supplies `make_batch` as well, and one with a storage of
    its own `make_storage`.

    Attributes:
        is_smooth: set it to False where the loss holds something constant that depends on the
            parameters, such as a target, or where it cannot be computed in float64; its second
            derivative is then not compared with finite differences.
        has_compile_test: set it to False in all but one of several subclasses with the same
            graph; the test takes about ten seconds and is skipped without a C++ compiler.
        unweighted_groups: parameter groups whose part of the loss leaves importance weights out,
            such as a temperature's; all others' must be proportional to them.
        looks_past_ends: set it to True where loss or `prepare` look at what follows a terminated
            step for something else than its value, such as how much actions differ, or intrinsic
            returns that go on.
    """

    def make_part(self) -> Stateful:
        """Return an algorithm to save and restore."""
        return self._algorithm()

    def use_part(self, part: Stateful) -> StateValue:
        """Take two gradient steps and choose an action."""
        algorithm = cast("AnyAlgorithm", part)
        samples = [dict(self._step(algorithm, seed)) for seed in (1, 2)]
        return [*samples, act(algorithm).action]

    def test_acting_returns_what_it_declares(self) -> None:
        """Actions and extras have the shapes that storages allocate by, and no graph."""
        algorithm = self._algorithm()
        output = act(algorithm)
        returned = {"action": output.action, "env_action": output.env_action}
        for name, tensor in {**returned, **output.state, **output.extras}.items():
            assert not tensor.requires_grad, (
                f"acting_step() returns '{name}' with its graph; decorate it with torch.no_grad()"
            )
        spec = algorithm.actor.action_spec
        assert output.action.shape == (NUM_ENVS, *spec.shape)
        assert output.action.dtype == spec.dtype
        assert set(output.extras) == set(algorithm.extras)
        for name, extra in algorithm.extras.items():
            assert output.extras[name].shape == (NUM_ENVS, *extra.shape), name
            assert output.extras[name].dtype == extra.dtype, name
        for action in output.env_action.cpu().numpy():
            assert algorithm.actor.action_space.contains(action)

    def test_deterministic_acting_explores_nothing(self) -> None:
        """Without exploration the same observation gets the same action."""
        algorithm = self._algorithm()
        one, other = act(algorithm, None), act(algorithm, None)
        assert torch.equal(one.action, other.action)

    def test_preparing_a_rollout_gives_the_columns_of_a_batch(self) -> None:
        """Every transition gets its behavior's view, an advantage and a target."""
        algorithm = self._algorithm()
        if algorithm.batch_type is not RolloutBatch:
            pytest.skip("does not learn from rollouts")
        fresh = make_rollout(algorithm, seed=1)
        rollout = algorithm.add_ons.prepare(fresh, algorithm.generator).rollout
        before = copy_state(algorithm.state_dict())
        collected = asdict(rollout)
        columns, metrics = algorithm.prepare(rollout)
        check_same_state(algorithm.state_dict(), before)
        check_same_state(asdict(rollout), collected, "the rollout after prepare()")
        assert set(columns) >= set(PREPARED_COLUMNS)
        for name, column in columns.items():
            assert column.shape[:2] == rollout.reward.shape, name
            assert not column.requires_grad, name
            assert column.isfinite().all(), name
        assert all(value.dim() == 0 for value in metrics.values())

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
        named = algorithm.named_parameters()
        values = {name: parameter.detach().to(number) for name, parameter in named.items()}
        start = {n: values[n].requires_grad_() for n, part in named.items() if part.requires_grad}

        def after_inner_step(parameters: Mapping[str, Tensor]) -> Tensor:
            inner = algorithm.compute_loss(batch, noise, {**values, **parameters}).loss
            gradients = gradients_of(inner, parameters, create_graph=True)
            adapted = {name: part - 0.1 * gradients[name] for name, part in parameters.items()}
            return algorithm.compute_loss(batch, noise, {**values, **adapted}).loss

        gradients = gradients_of(after_inner_step(start), start)
        assert all(bool(gradient.isfinite().all()) for gradient in gradients.values())
        assert any(bool(gradient.any()) for gradient in gradients.values())
        if not self.is_smooth:
            return
        generator = torch.Generator().manual_seed(0)
        direction = {
            name: torch.randn(parameter.shape, generator=generator, dtype=number)
            for name, parameter in start.items()
        }
        slope = sum((gradients[name] * direction[name]).sum() for name in start)
        ahead, behind = (
            after_inner_step(
                {n: (p + width * direction[n]).detach().requires_grad_() for n, p in start.items()}
            )
            for width in (1e-6, -1e-6)
        )
        torch.testing.assert_close((ahead - behind) / 2e-6, slope, rtol=1e-4, atol=1e-6)

    def test_gradients_are_proportional_to_importance_weights(self) -> None:
        """Weights that are twice as large make every gradient twice as large."""
        algorithm, batch, noise = self._replayed()
        once = self._gradients(algorithm, batch, noise)
        twice = self._gradients(algorithm, replace(batch, weight=2.0 * batch.weight), noise)
        assert all(gradient.any() for gradient in once.values())
        torch.testing.assert_close(twice, {name: 2.0 * part for name, part in once.items()})

    def test_a_sample_without_weight_teaches_nothing(self) -> None:
        """Whatever it is, the gradient is that of the other samples."""
        algorithm, batch, noise = self._replayed()
        axis = batch.mask.dim() - 1  # of samples, or of sequences
        batch = replace(batch, weight=_with_first(batch.weight, 0.0 * batch.weight, axis))
        other = self.make_batch(algorithm, 2)
        assert isinstance(other, ReplayBatch)
        changed = replace(
            batch,
            **{
                name: _with_first(getattr(batch, name), getattr(other, name), axis)
                for name in _CONTENTS
            },
        )
        expected = self._gradients(algorithm, batch, noise)
        torch.testing.assert_close(self._gradients(algorithm, changed, noise), expected)

    def test_nothing_of_value_follows_a_terminated_step(self) -> None:
        """Where an episode has terminated, it makes no difference what was observed last."""
        algorithm, batch, noise = self._replayed()
        if self.looks_past_ends:
            pytest.skip("looks at what follows a terminated step")
        other = self.make_batch(algorithm, 2)
        assert isinstance(other, ReplayBatch)
        batch = replace(batch, terminated=torch.ones_like(batch.terminated))
        changed = replace(batch, next_observation=other.next_observation)
        expected = self._gradients(algorithm, batch, noise)
        torch.testing.assert_close(
            self._gradients(algorithm, changed, noise),
            expected,
            msg=lambda text: f"{text}; bootstrap with rl_core.returns.n_step_target",
        )

    def test_a_row_that_does_not_count_teaches_nothing(self) -> None:
        """Where the mask is 0, it makes no difference what happened and how good it was."""
        algorithm = self._algorithm()
        batch, other = (self.make_batch(algorithm, seed) for seed in (1, 2))
        if not isinstance(batch, RolloutBatch):
            pytest.skip("does not learn from rollouts")
        assert not batch.mask.all(), "make_batch() of the suite masks no row"
        counts = batch.mask.bool()

        def mixed(column: Tensor, instead: Tensor) -> Tensor:
            rows = counts.view(counts.shape + (1,) * (column.dim() - counts.dim()))
            return torch.where(rows, column, instead)

        changed: dict[str, Any] = {
            name: tree_map(mixed, getattr(batch, name), getattr(other, name))
            for name in _ROW_CONTENTS
        }
        noise = algorithm.draw_update_noise(batch)
        expected = self._gradients(algorithm, batch, noise)
        got = self._gradients(algorithm, replace(batch, **changed), noise)
        torch.testing.assert_close(
            got,
            expected,
            msg=lambda text: f"{text}; average with masked_mean(..., batch.mask)",
        )

    def test_weights_carry_over(self) -> None:
        """A worker that takes weights computes the same loss and chooses the same actions."""
        for acting_only in (False, True):
            learner, worker = self._algorithm(seed=1), self._algorithm(seed=2)
            self._step(learner, 1)
            weights = learner.get_weights(acting_only)
            assert weights.version == 1, (
                f"get_weights() says version {weights.version} after one gradient step; expected 1"
            )
            assert worker.set_weights(weights, acting_only), (
                f"set_weights() did not take weights of version {weights.version}, which are newer"
            )
            assert torch.equal(act(worker).action, act(learner).action), (
                f"a worker acts otherwise after set_weights(acting_only={acting_only}); whatever "
                "acting depends on must be a parameter or buffer of the actor"
            )
            if not acting_only:
                check_same_state(dict(tensors_of(worker)), dict(tensors_of(learner)))
            held = copy_state(dict(weights.tensors))
            self._step(learner, 2)
            check_same_state(dict(weights.tensors), held)

    def test_older_weights_are_not_taken(self) -> None:
        """Weights that were overtaken on their way change nothing."""
        learner, worker = self._algorithm(seed=1), self._algorithm(seed=2)
        old = learner.get_weights()
        self._step(learner, 1)
        assert worker.set_weights(learner.get_weights())
        before = tensors_of(worker)
        assert not worker.set_weights(old)
        check_same_state(dict(tensors_of(worker)), dict(before))

    def test_weights_of_other_networks_are_refused(self) -> None:
        """A missing tensor is an error, not a weight left as it was."""
        algorithm = self._algorithm()
        name, *others = algorithm.get_weights().tensors
        tensors = {other: algorithm.get_weights().tensors[other] for other in others}
        with pytest.raises(ConfigError, match=name):
            algorithm.set_weights(Weights(9, tensors))

    def test_parameters_change_at_once_by_their_names(self) -> None:
        """Every scheduled field can be set while running; a typo must not pass for a change."""
        algorithm = self._algorithm()
        for name in algorithm.schedules:
            value = _changed(algorithm, name)
            assert float(algorithm.hyper[name]) == pytest.approx(value)
            with pytest.raises(ConfigError, match=f"did you mean '{name}'"):
                algorithm.update_algorithm_parameter(f"{name}x", 0.1)

    def test_learning_rates_reach_the_optimizer_and_zero_skips_learning(self) -> None:
        """A rate of 0 leaves weights and optimizer state alone; a new rate counts at once."""
        frozen, fast = self._algorithm(), self._algorithm()
        self._step(frozen, 1)
        self._step(fast, 1)
        rates = {group.learning_rate for group in frozen.parameter_groups()}
        for name in rates:
            frozen.update_algorithm_parameter(name, 0.0)
            fast.update_algorithm_parameter(name, 2.0 * float(fast.hyper[name]))
        assert not frozen.gradients.learns
        before = copy_state(learned(frozen))
        usual = self._algorithm()
        self._step(usual, 1)
        for seed in range(2, 2 + period(usual)):
            for algorithm in (frozen, fast, usual):
                self._step(algorithm, seed)
        check_same_state(learned(frozen), before)
        assert frozen.read_metrics()
        for group in usual.parameter_groups():
            ours, theirs = (a.gradients.vectors[group.name].values for a in (usual, fast))
            assert not torch.equal(ours, theirs), group.name

    def test_schedules_move_with_the_progress(self) -> None:
        """What is scheduled follows its schedule, what is constant stays."""
        algorithm = self._algorithm()
        constants = {
            name: float(algorithm.hyper[name])
            for name, schedule in algorithm.schedules.items()
            if schedule.is_constant
        }
        name = next((name for name, value in constants.items() if value > 0.0), None)
        if name is None:
            pytest.skip("every option above 0 moves by a schedule already")
        schedule = Linear(constants.pop(name), _changed(algorithm, name))
        algorithm.update_algorithm_parameter(name, schedule)
        for progress in (0.0, 0.5, 1.0):
            algorithm.schedules.set_progress(progress)
            assert float(algorithm.hyper[name]) == pytest.approx(schedule.value(progress))
            for other, value in constants.items():
                assert float(algorithm.hyper[other]) == pytest.approx(value)
        restored = self._algorithm()
        restored.load_state_dict(algorithm.state_dict())
        restored.schedules.set_progress(0.5)
        assert float(restored.hyper[name]) == pytest.approx(schedule.value(0.5))

    def test_the_default_recipe_can_be_built(self) -> None:
        """Its components are registered, or ours; installed ones take the options it gives."""
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
        assert "num_envs" in recipe.env

    def _replayed(self) -> tuple[AnyAlgorithm, ReplayBatch, Noise]:
        algorithm = self._algorithm()
        if algorithm.batch_type is not ReplayBatch:
            pytest.skip("does not learn from replayed transitions")
        if len(algorithm.add_ons):
            pytest.skip("add-ons have terms of their own")
        batch = self.make_batch(algorithm, 1)
        assert isinstance(batch, ReplayBatch)
        return algorithm, batch, algorithm.draw_update_noise(batch)

    def _gradients(
        self, algorithm: AnyAlgorithm, batch: object, noise: Noise
    ) -> Mapping[str, Tensor]:
        """Return the gradient of each parameter group that heeds importance weights."""
        loss, parameters = algorithm.compute_loss(batch, noise).loss, algorithm.named_parameters()
        gradients = {}
        for group in algorithm.parameter_groups():
            if group.name not in self.unweighted_groups:
                names = algorithm.gradients.vectors[group.name].shapes
                parts = gradients_of(loss, {name: parameters[name] for name in names})
                gradients[group.name] = torch.cat([part.flatten() for part in parts.values()])
        return gradients


def _changed(algorithm: AnyAlgorithm, name: str) -> float:
    """Halve a parameter, or double it where half is out of its range, and return what it is."""
    now = float(algorithm.hyper[name])
    try:
        algorithm.update_algorithm_parameter(name, 0.5 * now)
    except ConfigError:
        algorithm.update_algorithm_parameter(name, 2.0 * now)
        return 2.0 * now
    return 0.5 * now


def _cast(tree: TreeT, dtype: torch.dtype) -> TreeT:
    def convert(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    result: TreeT = tree_map_only(Tensor, convert, tree)
    return result


def _with_first(tree: Any, other: Any, axis: int) -> Any:
    """Put the first entry of another tensor, or of a dict of them, in the place of one's own."""
    if isinstance(tree, Mapping):
        return {key: _with_first(part, other[key], axis) for key, part in tree.items()}
    result = tree.clone()
    result.select(axis, 0).copy_(other.select(axis, 0))
    return result
