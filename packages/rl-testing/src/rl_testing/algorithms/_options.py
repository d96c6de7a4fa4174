"""Tests of hyper-parameters and of the default recipe."""

import pytest
import torch

from rl_core import plugins
from rl_core.algorithm import EnvSpec
from rl_core.config import Linear, decode, options_of
from rl_core.errors import ConfigError, PluginError
from rl_testing.algorithms._case import AlgorithmCase
from rl_testing.algorithms._probes import learned, period
from rl_testing.stateful import check_same_state, copy_state


class OptionTests(AlgorithmCase):
    """What can be set while running, and what a recipe starts from."""

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
        assert "num_envs" in recipe.env
