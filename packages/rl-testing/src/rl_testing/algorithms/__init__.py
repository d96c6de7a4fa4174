"""The tests that every `Algorithm` must pass."""

from rl_testing.algorithms.suite import AlgorithmSuite as AlgorithmSuite
