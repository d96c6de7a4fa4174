"""The tests that every `Actor` must pass."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn.functional import one_hot

from rl_core.actor import ActionEvaluation, ActionOutput, Actor
from rl_core.errors import ConfigError, SpaceError
from rl_core.spaces import ACTION_MASK_KEY, Space, event_shape
from rl_core.types import Observation, State, map_observation
from rl_testing._generators import global_generators_untouched
from rl_testing.rollouts import random_observation, random_state
from rl_testing.stateful import check_same_state

OBSERVATION_SPACES: Mapping[str, Space] = {
    "vector": spaces.Box(-2.0, 2.0, (3,), np.float32),
    "category": spaces.Discrete(4, start=1),
    "dict": spaces.Dict(
        {"position": spaces.Box(-1.0, 1.0, (2, 2), np.float32), "lamps": spaces.MultiBinary(3)}
    ),
    "image": spaces.Box(0, 255, (36, 36, 1), np.uint8),
}
"""One observation space of each kind."""

ACTION_SPACES: Mapping[str, Space] = {
    "discrete": spaces.Discrete(3, start=-1),
    "box": spaces.Box(np.array([-1, 0], np.float32), np.array([2, 0.5], np.float32)),
    "multi_discrete": spaces.MultiDiscrete([3, 2]),
    "multi_binary": spaces.MultiBinary(2),
}
"""One action space of each kind."""

_NUM_STEPS, _NUM_ENVS = 5, 4


class ActorSuite:
    """Conformance tests of an `Actor`: subclass, supply `make_actor`, inherit the tests.

    Every action space is tried with the first observation space, and every observation space
    with the first action space.

    Attributes:
        observation_spaces: what the actor can see, by name.
        action_spaces: how it can act, by name.
        is_stochastic: set it to False where noise makes no difference and actions have no
            probability.
    """

    observation_spaces: ClassVar[Mapping[str, Space]] = OBSERVATION_SPACES
    action_spaces: ClassVar[Mapping[str, Space]] = ACTION_SPACES
    is_stochastic: ClassVar[bool] = True

    def make_actor(self, observation_space: Space, action_space: Space) -> Actor:
        """Return a new actor; its weights are drawn from torch's global generator."""
        raise NotImplementedError

    @classmethod
    def pytest_generate_tests(cls, metafunc: pytest.Metafunc) -> None:
        """Run each test for each pair of spaces."""
        if "case" in metafunc.fixturenames:
            first, *others = cls.observation_spaces
            pairs = [(first, acting) for acting in cls.action_spaces]
            pairs += [(seen, pairs[0][1]) for seen in others]
            metafunc.parametrize("case", pairs, ids=["-".join(pair) for pair in pairs])

    def test_one_step_has_the_declared_shapes(self, case: tuple[str, str]) -> None:
        """Action, environment's action and state are what collector and storage allocate."""
        actor = self._actor(case)
        output, spec = _act(actor, _noise(actor)), actor.action_spec
        assert output.action.shape == (_NUM_ENVS, *spec.shape)
        assert output.action.dtype == spec.dtype
        sizes = {name: (_NUM_ENVS, size) for name, size in actor.state_sizes.items()}
        for states in (actor.actor_initial_states(_NUM_ENVS), output.state):
            assert {name: state.shape for name, state in states.items()} == sizes

    def test_states_start_at_zero_and_are_counted(self, case: tuple[str, str]) -> None:
        """An actor is recurrent exactly if it has a state."""
        actor = self._actor(case)
        assert not any(state.any() for state in actor.actor_initial_states(3).values())
        assert actor.is_recurrent == bool(actor.state_sizes)
        assert actor.recurrent_hidden_state_size == sum(actor.state_sizes.values())

    def test_env_actions_lie_in_the_space(self, case: tuple[str, str]) -> None:
        """Every sampled action is valid in the environment."""
        actor = self._actor(case)
        for seed in range(8):
            for action in _act(actor, 5.0 * _noise(actor, seed=seed)).env_action.numpy():
                assert actor.action_space.contains(action), f"{action} of {actor.action_space}"

    def test_env_actions_come_back(self, case: tuple[str, str]) -> None:
        """An environment's action becomes one of the actor, and the same one again."""
        actor = self._actor(case)
        if type(actor).from_env_action is Actor.from_env_action:
            pytest.skip("the actor takes no actions of data sets")
        output = _act(actor, _noise(actor))
        own = actor.from_env_action(output.env_action)
        assert (own.shape, own.dtype) == (output.action.shape, output.action.dtype)
        torch.testing.assert_close(actor.to_env_action(own), output.env_action)

    def test_forbidden_actions_are_not_taken(self) -> None:
        """An action mask in the observation is heeded, or refused when the actor is built."""
        first = next(iter(self.observation_spaces.values()))
        maskable = [(one, _choices(one)) for one in self.action_spaces.values()]
        maskable = [(space, choices) for space, choices in maskable if choices]
        for space, choices in maskable:
            mask = spaces.Box(0, 1, (sum(choices),), np.int8)
            torch.manual_seed(1)
            try:
                actor = self.make_actor(spaces.Dict({"seen": first, ACTION_MASK_KEY: mask}), space)
            except (ConfigError, SpaceError):
                pytest.skip("the actor refuses action masks")
            row = _row(actor, 0)
            assert isinstance(row, Mapping)
            allowed = [torch.arange(_NUM_ENVS) % size for size in choices]  # one of each choice
            flags = [one_hot(one, size) for one, size in zip(allowed, choices, strict=True)]
            row = {**row, ACTION_MASK_KEY: torch.cat(flags, -1).to(torch.int8)}
            own = torch.stack(allowed, -1).reshape(_NUM_ENVS, *event_shape(space)).numpy()
            expected = own + getattr(space, "start", 0)
            state, start = actor.actor_initial_states(_NUM_ENVS), _starts()[0]
            for noise in (None, _noise(actor)):
                is_mode = noise is None
                taken = actor.get_action(row, state, noise, is_mode, start).env_action.numpy()
                assert np.array_equal(taken, expected), f"{taken} of {space}, allowed: {expected}"
        if not maskable:
            pytest.skip("these actions cannot be masked")

    def test_the_mode_is_always_the_same(self, case: tuple[str, str]) -> None:
        """A deterministic action needs no noise and is not changed by any."""
        actor = self._actor(case)
        first, other = (_act(actor, noise, deterministic=True) for noise in (None, _noise(actor)))
        assert torch.equal(first.action, other.action)

    def test_noise_alone_decides_what_is_sampled(self, case: tuple[str, str]) -> None:
        """One generator state, one action; nothing is drawn from a global generator."""
        actor = self._actor(case)
        actions: list[Tensor] = []
        for seed in (1, 1, 2, 3, 4):
            torch.manual_seed(len(actions))
            with global_generators_untouched("acting", "the generator of draw_noise()"):
                actions.append(_act(actor, _noise(actor, seed=seed)).action)
        assert torch.equal(actions[0], actions[1])
        if self.is_stochastic:
            assert any(not torch.equal(actions[0], action) for action in actions[2:])

    def test_noise_has_the_batch_axes_asked_for(self, case: tuple[str, str]) -> None:
        """A collector draws for many steps at once and takes them row by row."""
        actor = self._actor(case)
        one = actor.draw_noise((_NUM_ENVS,), torch.Generator())
        many = actor.draw_noise((_NUM_STEPS, _NUM_ENVS), torch.Generator())
        assert many.shape == (_NUM_STEPS, *one.shape)
        assert one.shape[0] == _NUM_ENVS

    def test_a_batch_is_evaluated_row_by_row(self, case: tuple[str, str]) -> None:
        """With axes `(N,)`, every row gets the result it gets alone."""
        actor = self._evaluated(case)
        row, action, start = _row(actor, 0), _actions(actor)[0], _starts()[0]
        state = _some_state(actor)
        whole = actor.evaluate_actions(row, action, state, start)
        _check_shapes(actor, whole, (_NUM_ENVS,))
        for env in range(_NUM_ENVS):
            only = slice(env, env + 1)
            alone = actor.evaluate_actions(
                map_observation(lambda part, only=only: part[only], row),  # type: ignore[misc]  # bound now
                action[only],
                {name: tensor[only] for name, tensor in state.items()},
                start[only],
            )
            _check_close(alone.log_prob, whole.log_prob[only])
            _check_close(alone.entropy, whole.entropy[only])
            _check_close(alone.value, None if whole.value is None else whole.value[only])

    def test_log_probs_are_the_distributions(self, case: tuple[str, str]) -> None:
        """`evaluate_actions` and `distribution` describe the same policy."""
        actor = self._evaluated(case)
        sequence, actions, starts = _sequence(actor), _actions(actor), _starts()
        state = _some_state(actor)
        evaluation = actor.evaluate_actions(sequence, actions, state, starts)
        distribution, _ = actor.distribution(sequence, state, starts)
        _check_shapes(actor, evaluation, (_NUM_STEPS, _NUM_ENVS))
        for policy in (distribution, evaluation.distribution):
            _check_close(evaluation.log_prob, policy.log_prob(actions))
            _check_close(evaluation.entropy, policy.entropy())

    def test_a_sequence_is_its_steps_one_by_one(self, case: tuple[str, str]) -> None:
        """Acting step by step and evaluating `(T, N)` at once give the same numbers.

        Where episodes start inside the sequence, the state before has no influence.
        """
        actor = self._evaluated(case)
        actions, starts = _actions(actor), _starts()
        first_state = _some_state(actor)
        whole = actor.evaluate_actions(_sequence(actor), actions, first_state, starts)
        state: State = first_state
        for step in range(_NUM_STEPS):
            row = _row(actor, step)
            one = actor.evaluate_actions(row, actions[step], state, starts[step])
            _check_close(one.log_prob, whole.log_prob[step])
            if whole.value is not None:
                _check_close(one.value, whole.value[step])
                alone, after_value = actor.value(row, state, starts[step])
                _check_close(alone, whole.value[step])
                for name, tensor in after_value.items():
                    _check_close(tensor, whole.state[name][step])
            output = actor.get_action(
                row, state, None, deterministic=True, episode_start=starts[step]
            )
            # Memories may see actions: those that were taken, not the modes.
            state = actor.remember_action(row, actions[step], state, output.state, starts[step])
            assert set(state) == set(actor.state_sizes)
            for name, tensor in state.items():
                _check_close(tensor, whole.state[name][step])

    def test_the_state_is_forgotten_exactly_at_episode_starts(self, case: tuple[str, str]) -> None:
        """Another state before the sequence changes all steps of an episode, and none after it."""
        actor = self._evaluated(case)
        if not actor.is_recurrent:
            pytest.skip("a feed-forward actor has no state")
        sequence, actions, starts = _sequence(actor), _actions(actor), _starts()
        starts[0] = False
        empty = actor.actor_initial_states(_NUM_ENVS)
        one = actor.evaluate_actions(sequence, actions, empty, starts)
        other = actor.evaluate_actions(sequence, actions, _some_state(actor), starts)
        has_started = starts.cumsum(0) > 0
        for name, states in one.state.items():
            differs = (states != other.state[name]).any(-1)
            assert torch.equal(differs, ~has_started), f"state {name}: {differs}"

    def test_weights_carry_the_whole_actor(self, case: tuple[str, str]) -> None:
        """Another actor with the same weights, statistics included, acts the same."""
        actor = self._actor(case)
        actor.update_normalization(_sequence(actor))
        torch.manual_seed(99)
        seen, acting = case
        other = self.make_actor(self.observation_spaces[seen], self.action_spaces[acting])
        other.load_state_dict(actor.state_dict())
        check_same_state(dict(other.state_dict()), dict(actor.state_dict()))
        state, noise = _some_state(actor), _noise(actor)
        expected, got = (_act(each, noise, state) for each in (actor, other))
        assert torch.equal(got.action, expected.action)

    def test_only_the_normalization_learns_from_observations(self, case: tuple[str, str]) -> None:
        """Acting and evaluating change nothing in the actor."""
        actor = self._actor(case)
        before = {name: tensor.clone() for name, tensor in actor.state_dict().items()}
        _act(actor, _noise(actor))
        if self.is_stochastic:
            state = actor.actor_initial_states(_NUM_ENVS)
            actor.evaluate_actions(_row(actor, 0), _actions(actor)[0], state, _starts()[0])
        check_same_state(dict(actor.state_dict()), dict(before))

    def test_the_modules_it_names_are_there(self, case: tuple[str, str]) -> None:
        """An algorithm with two optimizers finds both sets of parameters by these names."""
        actor = self._actor(case)
        assert not set(actor.policy_modules) & set(actor.value_modules)
        for name in (*actor.policy_modules, *actor.value_modules):
            assert any(True for _ in actor.get_submodule(name).parameters()), name

    def _actor(self, case: tuple[str, str]) -> Actor:
        torch.manual_seed(1)
        seen, acting = case
        actor = self.make_actor(self.observation_spaces[seen], self.action_spaces[acting])
        actor.requires_grad_(False)
        # A fresh policy is nearly uniform, whatever it sees: nothing could be told apart.
        for parameter in actor.parameters():
            inputs = parameter[0].numel() if parameter.dim() > 1 else 4
            parameter.normal_(std=inputs**-0.5)
        return actor

    def _evaluated(self, case: tuple[str, str]) -> Actor:
        if not self.is_stochastic:
            pytest.skip("actions have no probability here")
        return self._actor(case)


def _choices(space: Space) -> list[int]:
    """Return how many actions each choice of a space has that can be masked; none of others."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    return space.nvec.reshape(-1).tolist() if isinstance(space, spaces.MultiDiscrete) else []


def _act(
    actor: Actor, noise: Tensor | None, state: State | None = None, *, deterministic: bool = False
) -> ActionOutput:
    """Act in the first row of `_sequence`, by default from the initial states."""
    if state is None:
        state = actor.actor_initial_states(_NUM_ENVS)
    row, start = _row(actor, 0), _starts()[0]
    return actor.get_action(row, state, noise, deterministic=deterministic, episode_start=start)


def _sequence(actor: Actor) -> Observation:
    generator = np.random.default_rng(3)
    return random_observation(actor.observation_space, (_NUM_STEPS, _NUM_ENVS), generator)


def _row(actor: Actor, step: int) -> Observation:
    return map_observation(lambda part: part[step], _sequence(actor))


def _starts() -> Tensor:
    """Start all rows at once, then two of them again, each at a step of its own."""
    starts = torch.zeros(_NUM_STEPS, _NUM_ENVS, dtype=torch.bool)
    starts[0] = True
    starts[2, 1] = starts[4, 1] = starts[3, 3] = True
    return starts


def _noise(actor: Actor, seed: int = 5) -> Tensor:
    return actor.draw_noise((_NUM_ENVS,), torch.Generator().manual_seed(seed))


def _actions(actor: Actor) -> Tensor:
    """Sample `(T, N, ...)` actions from the actor itself."""
    noise = actor.draw_noise((_NUM_STEPS, _NUM_ENVS), torch.Generator().manual_seed(6))
    state = actor.actor_initial_states(_NUM_ENVS)
    distribution, _ = actor.distribution(_sequence(actor), state, _starts())
    return distribution.sample(noise)


def _some_state(actor: Actor) -> State:
    return random_state(actor, _NUM_ENVS, torch.Generator().manual_seed(7))


def _check_shapes(actor: Actor, evaluation: ActionEvaluation, batch: tuple[int, ...]) -> None:
    assert evaluation.log_prob.shape == batch
    assert evaluation.entropy.shape == batch
    assert evaluation.value is None or evaluation.value.shape == batch
    assert {name: tensor.shape for name, tensor in evaluation.state.items()} == {
        name: (*batch, size) for name, size in actor.state_sizes.items()
    }


def _check_close(actual: Tensor | None, expected: Tensor | None) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
