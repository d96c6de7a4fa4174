"""The test of the compiled gradient step."""

import pytest
import torch

from rl_core.compile import has_cpp_compiler
from rl_core.errors import NonFiniteError
from rl_testing.algorithms._case import AlgorithmCase
from rl_testing.algorithms._probes import learned, period, poisoned, tensors_of
from rl_testing.stateful import check_same_state, copy_state


class CompilationTests(AlgorithmCase):
    """Whether compiling changes nothing but the speed."""

    def test_the_compiled_step_agrees_with_the_eager_one(self) -> None:
        """Within rounding, also where the step is masked; new numbers need no new graph."""
        if not self.has_compile_test:
            pytest.skip("another subclass compiles the same graph")
        if not has_cpp_compiler():
            pytest.skip("no C++ compiler")
        eager, compiled = self._algorithm(), self._algorithm()
        compiled.compiled.mode = "on"
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
