"""The tests that every `Algorithm` must pass."""

from rl_core.testing.algorithms.suite import AlgorithmSuite as AlgorithmSuite
