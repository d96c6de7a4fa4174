"""All tests of an `Algorithm` in one class."""

from typing import cast

from rl_core.algorithm import AnyAlgorithm
from rl_core.stateful import Stateful
from rl_core.types import StateValue
from rl_testing.algorithms._acting import ActingTests
from rl_testing.algorithms._compilation import CompilationTests
from rl_testing.algorithms._gradient_steps import GradientStepTests
from rl_testing.algorithms._importance import ImportanceTests
from rl_testing.algorithms._losses import LossTests
from rl_testing.algorithms._options import OptionTests
from rl_testing.algorithms._probes import act
from rl_testing.algorithms._weights import WeightTests


class AlgorithmSuite(
    GradientStepTests,
    LossTests,
    ImportanceTests,
    OptionTests,
    WeightTests,
    ActingTests,
    CompilationTests,
):
    """Conformance tests of an `Algorithm`: subclass, supply `make_algorithm`, inherit the tests.

    An algorithm with batches of its own supplies `make_batch` as well.

    Attributes:
        is_smooth: set it to False where the loss holds something constant that depends on the
            parameters, such as a target, or where it cannot be computed in float64; its second
            derivative is then not compared with finite differences.
        has_compile_test: set it to False in all but one of several subclasses with the same
            graph; the test takes about ten seconds and is skipped without a C++ compiler.
        unweighted_groups: parameter groups whose part of the loss leaves importance weights out,
            such as a temperature's; all others' must be proportional to them.
    """

    def make_part(self) -> Stateful:
        """Return an algorithm to save and restore."""
        return self._algorithm()

    def use_part(self, part: Stateful) -> StateValue:
        """Take two gradient steps and choose an action."""
        algorithm = cast("AnyAlgorithm", part)
        samples = [dict(self._step(algorithm, seed)) for seed in (1, 2)]
        return [*samples, act(algorithm).action]
