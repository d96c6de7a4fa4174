"""The tests that every `VecEnv` must pass."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import SupportsFloat, cast

import gymnasium
import numpy as np
import pytest
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from torch import Tensor

from rl_core.env import EnvStep, VecEnv, as_numpy, observation_problem
from rl_core.errors import DataError, EnvironmentFaultError
from rl_core.spaces import event_shape, leaf_spaces, named_leaves, tensor_dtype
from rl_core.types import Array, ArrayLike, ArrayObservation, StateDict, numpy_dtype
from rl_testing._generators import global_generators_untouched
from rl_testing.scripted import IDENTITY_SPACES, CountingEnv, IdentityEnv, Info
from rl_testing.stateful import copy_state

EnvFunctions = Sequence[Callable[[], gymnasium.Env]]
"""One function per environment, which builds it."""

_AFTER_LOADING = (
    "after loading, where resume_grade is 'exact'; does state_dict() hold all that a step changes, "
    "and the generators?"
)


class VecEnvSuite:
    """Conformance tests of a `VecEnv`: subclass, supply `make_env`, inherit the tests.

    The author of a vectorizer supplies `vectorize` as well, and gets the tests by value.

    Attributes:
        is_random: set it to False where seeds make no difference.
        num_steps: how many steps the tests play; a random policy must end an episode in them.
        may_end_both_ways: set it to True for a vectorizer of environments that may be terminated
            and truncated in the same step, as Gymnasium's are where both happen at once.
    """

    is_random = True
    may_end_both_ways = False
    num_steps = 300

    def make_env(self) -> VecEnv:
        """Return a new vectorized environment of at least two rows."""
        raise NotImplementedError

    def vectorize(self, env_functions: EnvFunctions) -> VecEnv | None:
        """Return a vector of the given environments; None skips the tests that need it."""
        return None

    def test_steps_are_of_the_declared_shape_and_dtype(self) -> None:
        """Nothing downstream casts, reshapes or repairs what an environment returns.

        The bounds of Box spaces are not compared: many environments exceed them slightly.
        """
        with self.make_env() as envs:
            assert envs.num_envs > 1, "make_env() must return two rows at least, to tell them apart"
            _check_observation(envs, envs.reset(seed=1), "the observation of reset()")
            for step, _ in self._play_with_ends(envs):
                _check_observation(envs, step.observation, "the observation of step()")
                if step.final_observation is not None:
                    _check_observation(envs, step.final_observation, "the final_observation")
                for name, value in _rows(step).items():
                    dtype = np.float32 if name == "reward" else np.bool_
                    _check_array(envs, f"the {name}", value, (), np.dtype(dtype))

    def test_an_episode_ends_in_one_way_and_within_its_limit(self) -> None:
        """Either nothing follows or it was cut; ``max_episode_steps`` is no mere hint."""
        with self.make_env() as envs:
            limit = envs.max_episode_steps
            length: NDArray[np.int64] = np.zeros(envs.num_envs, np.int64)
            for step, ended in self._play_with_ends(envs):
                both = np.logical_and(as_numpy(step.terminated), as_numpy(step.truncated))
                assert self.may_end_both_ways or not both.any(), (
                    f"rows {np.flatnonzero(both).tolist()} are terminated and truncated in the "
                    "same step; an episode that terminated was not cut: set "
                    "truncated &= ~terminated in step(), or may_end_both_ways in the suite if "
                    "the environments within do it"
                )
                length[np.flatnonzero(as_numpy(step.valid))] += 1
                assert limit is None or length.max() <= limit, (
                    f"an episode went on for {length.max()} steps, but max_episode_steps is "
                    f"{limit}; truncate it after {limit} steps, or declare the right number"
                )
                length[ended] = 0

    def test_it_can_be_saved_before_its_first_reset(self) -> None:
        """A run may be saved before its first step."""
        with self.make_env() as envs:
            try:
                envs.state_dict()
            except Exception as error:
                raise AssertionError(
                    f"state_dict() before the first reset() raised {error!r}; give the "
                    "constructor a value for each attribute that it saves"
                ) from error

    def test_the_same_seed_gives_the_same_steps(self) -> None:
        """A seeded reset fixes all that follows, in this object and in a new one."""
        runs = []
        for _ in range(2):
            with self.make_env() as envs:
                runs += [(envs.reset(seed=3), _play(envs, 20)) for _ in range(2)]
        shown, expected = runs[0]
        for first, steps in runs[1:]:
            for name, value in _flat(shown).items():
                np.testing.assert_array_equal(as_numpy(_flat(first)[name]), as_numpy(value), name)
            _check_same_steps(steps, expected, "after a reset with the same seed")

    def test_seeds_tell_runs_and_rows_apart(self) -> None:
        """Another seed, and another row under the same seed, give other episodes."""
        if not self.is_random:
            pytest.skip("seeds make no difference here")
        with self.make_env() as envs:
            first, second = (_record(envs, seed) for seed in (3, 4))
        assert not np.array_equal(first, second), "two seeds led to the same steps"
        for row in first[1:]:
            assert not np.array_equal(first[0], row), "two rows went through the same steps"

    def test_a_reset_without_a_seed_goes_on_with_the_generators(self) -> None:
        """Else every episode after such a reset would be the same one."""
        if not self.is_random:
            pytest.skip("seeds make no difference here")
        with self.make_env() as envs:
            seeded, second, third = (_record(envs, seed) for seed in (3, None, None))
        for earlier, later in ((seeded, second), (seeded, third), (second, third)):
            assert not np.array_equal(earlier, later), (
                "a reset() without a seed led to the same steps as the one before; seed only "
                "where a seed is given"
            )

    def test_it_leaves_the_global_generators_alone(self) -> None:
        """What else draws from them, such as initial weights, would depend on the steps before."""
        with self.make_env() as envs:
            instead = "a generator of the environments' own, which reset(seed) seeds"
            with global_generators_untouched("reset() or step()", instead):
                envs.reset(seed=1)
                _play(envs, 20)

    def test_arrays_are_never_written_to_again(self) -> None:
        """The caller may keep an array without copying it."""
        with self.make_env() as envs:
            held = [_flat(envs.reset(seed=1))]
            held += [{**_flat(step.observation), **_rows(step)} for step in _play(envs, 4)]
            copies = [
                {name: as_numpy(value).copy() for name, value in part.items()} for part in held
            ]
            _play(envs, 10, seed=7)
            envs.reset()
            for part, copy in zip(held, copies, strict=True):
                for name, expected in copy.items():
                    np.testing.assert_array_equal(as_numpy(part[name]), expected, err_msg=name)

    def test_an_ended_row_resets_at_once_or_in_one_invalid_step(self) -> None:
        """A row is invalid exactly where it resets in a step of its own."""
        with self.make_env() as envs:
            owes_reset: NDArray[np.bool_] = np.zeros(envs.num_envs, np.bool_)
            for step, ended in self._play_with_ends(envs):
                np.testing.assert_array_equal(as_numpy(step.valid), ~owes_reset)
                assert not ended[owes_reset].any(), "a row that only reset cannot end"
                assert not as_numpy(step.reward)[owes_reset].any(), "nor be rewarded"
                owes_reset = ended if step.final_observation is None else np.zeros_like(ended)
                assert envs.resets_in_steps or not owes_reset.any(), (
                    f"rows {np.flatnonzero(owes_reset).tolist()} ended, but final_observation is "
                    "None although resets_in_steps is False; return the last observations of "
                    "ended episodes as final_observation, or, if a row resets in a step of its "
                    "own, let resets_in_steps return True"
                )
                assert not (envs.resets_in_steps and step.final_observation is not None), (
                    "final_observation was returned although resets_in_steps is True; return None, "
                    "or let resets_in_steps return False"
                )

    def test_final_observations_differ_only_where_a_row_ended(self) -> None:
        """The other rows of a final observation hold the next observation."""
        with self.make_env() as envs:
            for step, ended in self._play_with_ends(envs):
                following, final = _flat(step.observation), _flat(step.final_observation)
                for name, value in final.items():
                    np.testing.assert_array_equal(
                        as_numpy(value)[~ended], as_numpy(following[name])[~ended], err_msg=name
                    )

    def test_final_observations_are_not_those_of_the_reset(self) -> None:
        """Else values of truncated episodes would follow from the next one's first state."""
        num_ended, has_moved, is_last = 0, False, False
        with self.make_env() as envs:
            shown: Mapping[str, ArrayLike] = {}
            for step, ended in self._play_with_ends(envs):
                following, final = _flat(step.observation), _flat(step.final_observation)
                if not ended.any():
                    has_moved |= any(_differ(shown[name], following[name]) for name in shown)
                elif final:
                    num_ended += int(ended.sum())
                    is_last |= any(
                        _differ(as_numpy(value)[ended], as_numpy(following[name])[ended])
                        for name, value in final.items()
                    )
                shown = following
        assert is_last or num_ended == 0 or not has_moved, (
            f"in all {num_ended} ended episodes final_observation is what the next one begins "
            "with; copy the last observation before the row is reset"
        )

    def test_close_may_be_called_twice_and_ends_it(self) -> None:
        """After `close` nothing but another `close` is allowed."""
        envs = self.make_env()
        envs.reset(seed=1)
        action = _actions(envs, 1)[0]
        envs.close()
        envs.close()
        with pytest.raises(EnvironmentFaultError):
            envs.step(action)
        with pytest.raises(EnvironmentFaultError):
            envs.reset()

    def test_a_step_before_the_first_reset_is_refused(self) -> None:
        """An environment that was never reset has no state to step from."""
        with self.make_env() as envs, pytest.raises(EnvironmentFaultError):
            envs.step(_actions(envs, 1)[0])

    def test_an_action_of_the_wrong_shape_is_refused(self) -> None:
        """A wrong action raises and leaves the environments as they were."""
        with self.make_env() as envs:
            envs.reset(seed=1)
            good = _actions(envs, 1)[0]
            with pytest.raises(DataError):
                envs.step(np.concatenate([good, good]))
            envs.step(good)

    def test_what_a_checkpoint_holds_fits_a_new_one(self) -> None:
        """A new object built in the same way continues from a saved state.

        If `resume_grade` is exact, it does so bit for bit, from the middle of episodes and from
        where one has just ended. If it is not, the state must not be enough for that.
        """
        with self.make_env() as envs:
            envs.reset(seed=1)
            _play(envs, 3)
            saved = [_saved(envs, self.num_steps)]
            is_exact = envs.resume_grade == "exact"
            if is_exact:
                next(None for _, ended in self._play_with_ends(envs) if ended.any())
                saved.append(_saved(envs, self.num_steps))
        for state, expected in saved:
            with self.make_env() as envs:
                envs.load_state_dict(state)
                if is_exact:
                    _check_same_steps(_play(envs, len(expected), seed=2), expected, _AFTER_LOADING)
                    continue
                assert not (state and _continues(envs, expected)), (
                    "a loaded state continues exactly, but resume_grade is 'episode', with which a "
                    "resumed run begins new episodes; return 'exact'"
                )
                envs.reset()
                _play(envs, len(expected), seed=2)

    def test_every_transition_is_the_right_one(self) -> None:
        """Observation, reward, end and successor belong together, by value, in every mode."""
        cases = [
            ((3, 1, 4), (True, False), 0),
            ((2,), (True, False), 1),
            ((5, 2), (True, False), 2),
        ]
        with self._vectorized([partial(CountingEnv, *c, reuse_buffer=True) for c in cases]) as envs:
            shown = as_numpy(envs.reset(seed=1))
            steps = _play(envs, 14)
        lone = [CountingEnv(*case) for case in cases]
        expected = [env.reset(seed=0)[0] for env in lone]
        counts = np.zeros(len(lone), np.int64)
        for step in steps:
            counts += as_numpy(step.valid).astype(np.int64)
            for row in np.flatnonzero(as_numpy(step.valid)):
                np.testing.assert_array_equal(shown[row], expected[row])
                successor, *others, _ = lone[row].step(0)
                np.testing.assert_array_equal(as_numpy(step.successor)[row], successor)
                rows = (step.reward, step.terminated, step.truncated)
                assert [as_numpy(value)[row] for value in rows] == others
                expected[row] = lone[row].reset()[0] if any(others[1:]) else successor
            shown = as_numpy(step.observation)
        assert counts.min() >= 9

    def test_every_kind_of_observation_passes_through(self) -> None:
        """Each kind of leaf space arrives unchanged, as observation and as action."""
        for kind, space in IDENTITY_SPACES.items():
            with self._vectorized([partial(IdentityEnv, space)] * 2) as envs:
                observation = envs.reset(seed=2)
                for _ in range(20):
                    step = envs.step(cast("ArrayLike", observation))
                    rewards = as_numpy(step.reward)[as_numpy(step.valid)]
                    np.testing.assert_allclose(rewards, 1.0, err_msg=kind)
                    observation = step.observation

    def test_a_fault_names_the_environment_and_the_step(self) -> None:
        """NaN and infinity raise in the step in which they occur."""
        good = partial(CountingEnv, [9])
        for field in ("observation", "reward"):
            with self._vectorized([good, partial(_NotFinite, field), good]) as envs:
                envs.reset(seed=1)
                _play(envs, 2)
                message = f"(?s)step 3.*environment 1.*{field}"
                with pytest.raises(EnvironmentFaultError, match=message):
                    _play(envs, 1)

    def _vectorized(self, env_functions: EnvFunctions) -> VecEnv:
        envs = self.vectorize(env_functions)
        if envs is None:
            pytest.skip("no vectorize() given")
        return envs

    def _play_with_ends(self, envs: VecEnv) -> Iterator[tuple[EnvStep, NDArray[np.bool_]]]:
        """Yield steps from a reset on, and which rows ended in each; some must."""
        has_ended = False
        envs.reset(seed=1)
        for action in _actions(envs, self.num_steps):
            step = envs.step(action)
            ended = np.logical_or(as_numpy(step.terminated), as_numpy(step.truncated))
            has_ended |= bool(ended.any())
            yield step, ended
        assert has_ended, (
            f"no row ended within {self.num_steps} steps, so nothing was learned about ends; give "
            "the suite environments with episodes that are short enough, or more num_steps"
        )


class _NotFinite(CountingEnv):
    """Returns NaN as observation, or infinity as reward, in its third step."""

    def __init__(self, field: str) -> None:
        super().__init__([9])
        self.field = field

    def step(self, action: object) -> tuple[Array, SupportsFloat, bool, bool, Info]:
        observation, reward, terminated, truncated, info = super().step(action)
        if self.steps == 3 and self.field == "reward":
            reward = np.inf
        elif self.steps == 3:
            observation[:] = np.nan
        return observation, reward, terminated, truncated, info


def _play(envs: VecEnv, num_steps: int, seed: int = 0) -> list[EnvStep]:
    return [envs.step(action) for action in _actions(envs, num_steps, seed)]


def _actions(envs: VecEnv, num_steps: int, seed: int = 0) -> list[Array]:
    space = batch_space(envs.single_action_space, envs.num_envs)
    space.seed(seed)
    return [np.asarray(space.sample()) for _ in range(num_steps)]


def _saved(envs: VecEnv, num_steps: int) -> tuple[StateDict, list[EnvStep]]:
    """Return what a checkpoint would hold now, and the steps that follow."""
    state = {name: copy_state(value) for name, value in envs.state_dict().items()}
    return state, _play(envs, num_steps, seed=2)


def _continues(envs: VecEnv, expected: Sequence[EnvStep]) -> bool:
    """Return whether environments step as expected without a reset."""
    try:
        _check_same_steps(_play(envs, len(expected), seed=2), expected, _AFTER_LOADING)
    except (AssertionError, EnvironmentFaultError):
        return False
    return True


def _check_same_steps(actual: Sequence[EnvStep], expected: Sequence[EnvStep], when: str) -> None:
    for number, (step, other) in enumerate(zip(actual, expected, strict=True), 1):
        got, wanted = _parts(step), _parts(other)
        place = f"step {number} {when}"
        assert list(got) == list(wanted), f"{place}: {list(got)}; expected {list(wanted)}"
        for name, value in wanted.items():
            message = f"{name} in {place}"
            np.testing.assert_array_equal(as_numpy(got[name]), as_numpy(value), err_msg=message)


def _rows(step: EnvStep) -> dict[str, ArrayLike]:
    """Return what has one number per row, by name."""
    names = ("reward", "terminated", "truncated", "valid")
    return {name: getattr(step, name) for name in names}


def _parts(step: EnvStep) -> dict[str, ArrayLike]:
    """Return all of a step that is trained on, by name."""
    final = {f"final {name}": value for name, value in _flat(step.final_observation).items()}
    return {**_flat(step.observation), **final, **_rows(step)}


def _record(envs: VecEnv, seed: int | None) -> Array:
    """Return what 20 steps showed and rewarded, one row per environment."""
    parts = list(_flat(envs.reset(seed=seed)).values())
    for step in _play(envs, 20):
        parts += [*_flat(step.observation).values(), step.reward]
    return np.concatenate([as_numpy(part).reshape(envs.num_envs, -1) for part in parts], axis=1)


def _flat(observation: ArrayObservation | None) -> dict[str, ArrayLike]:
    """Return the parts of an observation by name; none of one that is not there."""
    if observation is None:
        return {}
    return dict(observation) if isinstance(observation, Mapping) else {"observation": observation}


def _differ(one: ArrayLike, other: ArrayLike) -> bool:
    return not np.array_equal(as_numpy(one), as_numpy(other))


def _check_observation(envs: VecEnv, observation: ArrayObservation, what: str) -> None:
    named = named_leaves(envs.single_observation_space)
    values: Mapping[str, ArrayLike] = (
        observation if isinstance(observation, Mapping) else {"": observation}
    )
    assert list(values) == list(named), (
        f"{what} has the keys {list(values)}; expected {list(named)}"
    )
    for key, leaf in named.items():
        dtype = numpy_dtype(tensor_dtype(leaf))
        name = f"{what}, entry '{key}'," if key else what
        _check_array(envs, name, values[key], event_shape(leaf), dtype)
    leaves = leaf_spaces(envs.single_observation_space)
    problem = observation_problem(leaves, observation, (envs.num_envs,))
    assert problem is None, f"{problem}, in {what}"


def _check_array(
    envs: VecEnv, name: str, value: ArrayLike, shape: tuple[int, ...], dtype: np.dtype[np.generic]
) -> None:
    kind = Tensor if envs.array_type == "torch" else np.ndarray
    assert isinstance(value, kind), (
        f"{name} is of {type(value)}, but array_type is {envs.array_type!r}; return a "
        f"{kind.__name__}, or declare the other array_type"
    )
    array, expected = as_numpy(value), (envs.num_envs, *shape)
    assert array.shape == expected, f"{name} has shape {array.shape}; expected {expected}"
    assert array.dtype == dtype, f"{name} has dtype {array.dtype}; expected {dtype}"
    assert np.isfinite(array).all(), (
        f"{name} holds {array[~np.isfinite(array)][0]}; every number must be finite: mend what "
        "computes it, or raise EnvironmentFaultError"
    )
