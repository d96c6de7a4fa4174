"""The tests that every `Algorithm` must pass."""

from rl_core.testing.algorithms.compiler import has_cpp_compiler as has_cpp_compiler
from rl_core.testing.algorithms.suite import AlgorithmSuite as AlgorithmSuite
