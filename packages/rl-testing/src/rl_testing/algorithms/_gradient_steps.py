"""Tests of gradient steps: whole, cut in two, and compiled."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_core.algorithm import AnyAlgorithm
from rl_core.compile import has_cpp_compiler
from rl_core.errors import ConfigError, NonFiniteError
from rl_testing.algorithms._case import AlgorithmCase, learned, period, poisoned, tensors_of
from rl_testing.stateful import check_same_state, copy_state


class GradientStepTests(AlgorithmCase):
    """What a gradient step changes, returns and refuses."""

    def test_a_step_changes_what_is_learned_and_nothing_else(self) -> None:
        """Every parameter in a group or target moves; frozen ones and buffers stay."""
        algorithm = self._algorithm()
        groups, targets = algorithm.parameter_groups(), algorithm.target_networks()
        before = _by_name(algorithm)
        for seed in range(period(algorithm)):
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
        fused, cut, learner = (self._exchanging() for _ in range(3))
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
        check_same_state(dict(tensors_of(learner)), dict(tensors_of(fused)))
        expected = fused.read_metrics()
        assert cut.read_metrics() == expected
        assert learner.read_metrics() == expected

    def test_computing_gradients_changes_nothing(self) -> None:
        """A gradient worker's weights move only when it is told to move them."""
        algorithm = self._exchanging()
        batch = self.make_batch(algorithm, 1)
        before = copy_state({**algorithm.state_dict(), "generator": None})
        algorithm.compute_gradients(batch)
        check_same_state({**algorithm.state_dict(), "generator": None}, before)

    def test_gradients_of_another_shape_are_refused(self) -> None:
        """Workers built otherwise are found out before anything moves."""
        algorithm = self._exchanging()
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
        """No step after it counts, whole or cut in two, until the metrics are read."""
        algorithm = self._algorithm()
        self._step(algorithm, 1)
        batch = poisoned(self.make_batch(algorithm, 2))
        before = copy_state(learned(algorithm))
        algorithm.gradient_step(batch)
        self._step(algorithm, 3)
        if algorithm.exchanges_gradients:
            gradients = algorithm.compute_gradients(batch)
            assert not gradients.finite
            algorithm.apply_gradients(gradients)
        check_same_state(learned(algorithm), before)
        with pytest.raises(NonFiniteError):
            algorithm.read_metrics()
        faulty = algorithm.gradients.guard.faulty
        assert faulty is not None
        assert faulty.batch is batch
        self._step(algorithm, 3)
        assert algorithm.read_metrics()

    def test_a_step_that_is_not_finite_can_be_skipped(self) -> None:
        """The run goes on as if there had been no such step, and the log counts it."""
        algorithm, other = self._algorithm(), self._algorithm()
        algorithm.gradients.guard.mode = "skip"
        bad = poisoned(self.make_batch(algorithm, 2))
        for seed in range(3):
            state = algorithm.generator.get_state()
            for _ in range(period(algorithm)):
                algorithm.gradient_step(bad)
            algorithm.generator.set_state(state)
            algorithm.gradients.count -= period(algorithm)
            self._step(algorithm, seed)
            self._step(other, seed)
        check_same_state(learned(algorithm), learned(other))
        metrics = algorithm.read_metrics()
        assert metrics.pop("gradients/skipped_steps") == 3 * period(algorithm)
        assert metrics == other.read_metrics()

    def test_the_compiled_step_agrees_with_the_eager_one(self) -> None:
        """Within rounding, also where the step is masked; new numbers need no new graph."""
        if not self.has_compile_test:
            pytest.skip("another subclass compiles the same graph")
        if not has_cpp_compiler():
            pytest.skip("no C++ compiler")
        eager, compiled = self._algorithm(), self._algorithm()
        compiled.compiled.set_mode("on")
        steps = period(eager)

        def check_both(batch: object) -> None:
            expected, got = (dict(a.gradient_step(batch)) for a in (eager, compiled))
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4, equal_nan=True)
            torch.testing.assert_close(
                tensors_of(compiled), tensors_of(eager), rtol=1e-3, atol=1e-5, equal_nan=True
            )

        for seed in range(2 * steps):
            check_both(self.make_batch(eager, seed))
        expected = eager.read_metrics()
        assert compiled.read_metrics() == pytest.approx(expected, rel=1e-3, abs=1e-5)
        graphs = len(compiled.gradients.compiled)
        name = eager.parameter_groups()[0].learning_rate
        for algorithm in (eager, compiled):
            algorithm.update_algorithm_parameter(name, 0.5 * float(algorithm.hyper[name]))
        for seed in range(steps):
            check_both(self.make_batch(eager, seed))
        for algorithm in (eager, compiled):
            algorithm.gradients.guard.mode = "skip"
        for _ in range(steps):
            check_both(poisoned(self.make_batch(eager, 1)))
        check_both(self.make_batch(eager, 0))
        assert compiled.read_metrics()["gradients/skipped_steps"] == steps
        compiled.gradients.guard.mode = "stop"
        before = copy_state(learned(compiled))
        compiled.gradient_step(poisoned(self.make_batch(eager, 1)))
        compiled.gradient_step(self.make_batch(eager, 1))
        check_same_state(learned(compiled), before)
        assert len(compiled.gradients.compiled) == graphs
        with pytest.raises(NonFiniteError):
            compiled.read_metrics()


def _by_name(algorithm: AnyAlgorithm) -> dict[str, Tensor]:
    """Copy the parameters, each under one name only, and the actor's buffers."""
    tensors = {**algorithm.named_parameters(), **dict(algorithm.actor.named_buffers())}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
