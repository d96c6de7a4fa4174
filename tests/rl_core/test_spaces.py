from typing import cast

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_core.errors import DataError, SpaceError
from rl_core.spaces import (
    HybridSpace,
    Space,
    action_problem,
    brightest,
    check_same_space,
    event_shape,
    flatten_observation,
    is_bounded,
    is_image,
    leaf_spaces,
    made_up_observation,
    random_env_actions,
    tensor_dtype,
    text_paths,
)

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float64)
NESTED = spaces.Dict(
    [
        ("zeta", VECTOR),
        ("camera", spaces.Dict({"left": spaces.Box(0, 255, (8, 8, 3), np.uint8)})),
        ("pair", spaces.Tuple([spaces.Discrete(4), spaces.MultiBinary(2)])),
    ]
)


@pytest.mark.parametrize(
    "space",
    [VECTOR, spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(4)],
)
def test_a_leaf_is_its_own_only_leaf(space: Space) -> None:
    assert leaf_spaces(space) is space


def test_nested_spaces_become_paths_in_declared_order() -> None:
    leaves = leaf_spaces(NESTED)
    assert isinstance(leaves, dict)
    assert list(leaves) == ["zeta", "camera/left", "pair/0", "pair/1"]
    assert leaves["pair/0"] == spaces.Discrete(4)


def test_unsupported_spaces_are_refused_by_place() -> None:
    with pytest.raises(SpaceError, match=r"Text space is not supported.*expected Box"):
        leaf_spaces(spaces.Text(4))
    with pytest.raises(SpaceError, match="Sequence space at 'a/0'"):
        leaf_spaces(spaces.Dict({"a": spaces.Tuple([spaces.Sequence(VECTOR)])}))
    with pytest.raises(SpaceError, match="no entries"):
        leaf_spaces(spaces.Dict({}))
    with pytest.raises(SpaceError, match="path 'a/b'"):
        leaf_spaces(spaces.Dict({"a": spaces.Dict({"b": VECTOR}), "a/b": VECTOR}))


def test_texts_are_left_out_of_nested_spaces() -> None:
    space = spaces.Dict({"image": VECTOR, "deep": spaces.Tuple([spaces.Text(9), VECTOR])})
    leaves = leaf_spaces(space)
    assert list(cast("dict[str, Space]", leaves)) == ["deep/1", "image"]
    assert text_paths(space) == ["deep/0"]
    value = np.zeros(3)
    flat = flatten_observation(space, {"image": value, "deep": ("go left", value)})
    assert list(cast("dict[str, object]", flat)) == ["deep/1", "image"]
    with pytest.raises(SpaceError, match="no entries"):
        leaf_spaces(spaces.Dict({"mission": spaces.Text(9)}))


def test_observations_flatten_like_their_space() -> None:
    value = {
        "pair": (np.array([1, 2]), np.zeros((2, 2), np.int8)),
        "camera": {"left": np.zeros((2, 8, 8, 3), np.uint8)},
        "zeta": np.ones((2, 3)),
    }
    flat = flatten_observation(NESTED, value)
    assert isinstance(flat, dict)
    assert list(flat) == ["zeta", "camera/left", "pair/0", "pair/1"]
    assert flat["pair/0"] is value["pair"][0]  # type: ignore[index]  # a tuple
    as_list = flatten_observation(NESTED, {**value, "pair": list(value["pair"])})
    assert list(cast("dict[str, object]", as_list)) == list(flat)


def test_the_observation_of_a_leaf_is_passed_on_untouched() -> None:
    value = np.ones((2, 3))
    assert flatten_observation(VECTOR, value) is value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"zeta": 0, "camera": {"left": 0}}, "keys"),
        ({"zeta": 0, "camera": {"left": 0, "right": 0}, "pair": (1, 2)}, "at 'camera'.*keys"),
        ({"zeta": 0, "camera": {"left": 0}, "pair": (1, 2, 3)}, "at 'pair' is tuple"),
        ({"zeta": 0, "camera": np.zeros(3), "pair": (1, 2)}, "at 'camera' is ndarray"),
    ],
)
def test_observations_of_another_nesting_are_refused(value: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        flatten_observation(NESTED, value)


@pytest.mark.parametrize(
    ("space", "dtype", "shape"),
    [
        (VECTOR, torch.float32, (3,)),
        (spaces.Box(0, 1, (2, 2), np.float16), torch.float32, (2, 2)),
        (spaces.Box(0, 255, (4, 4), np.uint8), torch.uint8, (4, 4)),
        (spaces.Box(0, 9, (1,), np.uint16), torch.int32, (1,)),
        (spaces.Box(0, 9, (1,), np.uint32), torch.int64, (1,)),
        (spaces.Box(0, 1, (1,), np.int16), torch.int16, (1,)),
        (spaces.Discrete(3), torch.int64, ()),
        (spaces.MultiDiscrete([2, 3], dtype=np.int32), torch.int64, (2,)),
        (spaces.MultiBinary([2, 3]), torch.int8, (2, 3)),
    ],
)
def test_dtype_and_shape_of_leaves(
    space: Space, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    assert tensor_dtype(space) == dtype
    assert event_shape(space) == shape


def test_a_hybrid_space_holds_real_numbers_and_then_choices() -> None:
    space = HybridSpace(spaces.Box(0.0, 1.0, (2,)), spaces.MultiDiscrete([3, 2], start=[5, 0]))
    assert space.shape == (4,)
    assert space.dtype == np.float32
    assert space.contains(np.array([0.5, 1.0, 7.0, 1.0], np.float32))
    for outside in (
        *([0.5, 1.5, 7.0, 1.0], [0.5, 1.0, 2.0, 1.0], [0.5, 1.0, 7.5, 1.0], [0.5, 1.0, 7.0], 3.0),
    ):
        assert not space.contains(np.array(outside, np.float32))
    space.seed(1)
    drawn = [space.sample() for _ in range(20)]
    assert all(space.contains(one) for one in drawn)
    space.seed(1)
    np.testing.assert_array_equal(drawn[0], space.sample())
    real, choices = space.parts
    assert space == HybridSpace(real, choices)
    assert space != HybridSpace(real, spaces.MultiDiscrete([3, 2]))
    assert space != real
    random = random_env_actions(space, 50, torch.Generator().manual_seed(0), torch.device("cpu"))
    assert all(space.contains(one) for one in random.numpy())


def test_the_greatest_number_is_no_bound_of_random_actions() -> None:
    greatest = float(np.finfo(np.float32).max)
    low, high = np.array([[-greatest, 0.0], [greatest, greatest]], np.float32)
    space = spaces.Box(low, high)
    drawn = random_env_actions(space, 500, torch.Generator().manual_seed(0), torch.device("cpu"))
    assert drawn.mean(0).tolist() == pytest.approx([0.0, 1.0], abs=0.15)
    assert drawn.std(0).tolist() == pytest.approx([1.0, 1.0], abs=0.15)


def test_random_integers_are_uniform_and_reach_both_bounds() -> None:
    space = spaces.Box(np.array([-3, 0, -(2**40)]), np.array([3, 1, 2**40]), dtype=np.int64)
    drawn = random_env_actions(space, 7_000, torch.Generator().manual_seed(0), torch.device("cpu"))
    values, counts = np.unique(drawn[:, 0].numpy(), return_counts=True)
    assert values.tolist() == [-3, -2, -1, 0, 1, 2, 3]
    assert counts.min() > 880  # 1,000 expected of each, with a standard deviation of 29
    assert np.unique(drawn[:, 1].numpy()).tolist() == [0, 1]
    assert all(space.contains(one) for one in drawn[:100].numpy())
    assert (
        drawn[:, 2].double().mean().abs() < 2**40 * 0.03
    )  # its standard deviation is 0.007 * 2**40


def test_only_leaves_have_a_dtype_and_a_shape() -> None:
    for question in (tensor_dtype, event_shape, is_image):
        with pytest.raises(SpaceError, match="leaf_spaces first"):
            question(cast("Space", NESTED))


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(0, 255, (84, 84, 3), np.uint8), True),
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), True),
        (spaces.Box(0, 255, (7, 7, 7), np.uint8), True),
        (spaces.Box(0, 255, (4, 84, 84, 1), np.uint8), True),
        (spaces.Box(0, 255, (4, 3, 84, 84), np.uint8), True),
        (spaces.Box(0, 1, (4, 84, 84, 3), np.float32), True),
        (spaces.Box(0, 255, (4, 7, 7, 3), np.uint8), True),
        (spaces.Box(0, 255, (2, 4, 84, 84, 1), np.uint8), False),
        (spaces.Box(0, 1, (3, 64, 64), np.float32), True),
        (spaces.Box(0, 255, (64, 64, 1), np.float32), True),
        (spaces.Box(-1, 1, (3, 64, 64), np.float32), False),
        (spaces.Box(0, 1, (64, 3, 64), np.float32), False),
        (spaces.Box(0, 1, (8, 8, 8), np.float32), False),
        (spaces.Box(0, 255, (84, 84), np.uint8), False),
        (spaces.Box(0, 255, (3, 64, 64), np.int32), False),
        (spaces.MultiBinary([3, 64, 64]), False),
    ],
)
def test_images_are_told_from_other_arrays(space: Space, expected: bool) -> None:
    assert is_image(space) is expected


def test_pixels_are_divided_by_their_greatest_bound_unless_that_is_zero() -> None:
    high = np.full((1, 1, 2), 255, np.uint8)
    high[0, 0, 0] = 100
    assert brightest(spaces.Box(np.zeros_like(high), high, dtype=np.uint8)) == 255.0
    assert brightest(spaces.Box(0, 0, (1, 1, 2), np.uint8)) == 1.0


def test_a_number_is_bounded_from_both_sides() -> None:
    low = np.array([-1.0, -np.inf, 0.0, -1e30], np.float32)
    high = np.array([1.0, 1.0, np.inf, 1e30], np.float32)
    assert is_bounded(spaces.Box(low, high)).tolist() == [True, False, False, False]


def test_a_made_up_observation_is_one_that_may_occur() -> None:
    space = spaces.Dict(
        {
            "bounded": spaces.Box(np.array([-3, 5, -9]), np.array([3, 9, -2]), dtype=np.float32),
            "categories": spaces.MultiDiscrete([2, 3], start=[4, -1]),
            "category": spaces.Discrete(3, start=7),
            "flags": spaces.MultiBinary(2),
        }
    )
    made = made_up_observation(space, torch.device("cpu"))
    assert not isinstance(made, torch.Tensor)
    assert {key: value.tolist() for key, value in made.items()} == {
        "bounded": [[1.0, 5.0, -2.0]],
        "categories": [[4, -1]],
        "category": [7],
        "flags": [[1, 1]],
    }
    assert made["category"].dtype == torch.int64


def test_another_space_than_the_expected_one_is_refused() -> None:
    check_same_space(VECTOR, spaces.Box(-1.0, 1.0, (3,), np.float64), "observation space")
    for other in (spaces.Box(-2.0, 1.0, (3,), np.float64), spaces.Discrete(3)):
        with pytest.raises(SpaceError, match="the observation space is"):
            check_same_space(VECTOR, other, "observation space")


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        ([[0.5, 1.0], [-1.0, 2.0]], None),
        ([[0.5, 1.0], [-1.0, 3.0]], "the action of step 1 is [3]"),
        ([[1.5, 1.0], [-1.0, 2.0]], "the action of step 0 is [1.5]"),
        (
            [[0.5, 0.5], [-1.0, 2.0]],
            "have shape (2, 1) and dtype float32; expected (2, 1) and int64",
        ),
        ([[0.5], [-1.0]], "have shape (2, 1) and dtype float32; expected (2, 2) and float32"),
    ],
)
def test_hybrid_actions_are_checked_part_by_part(
    actions: list[list[float]], words: str | None
) -> None:
    space = HybridSpace(spaces.Box(-1.0, 1.0, (1,)), spaces.MultiDiscrete([3]))
    problem = action_problem(space, np.array(actions, np.float32), 2, "step")
    assert problem is None if words is None else words in str(problem)
