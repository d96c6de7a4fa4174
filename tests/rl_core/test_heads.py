import math
from collections.abc import Callable
from typing import Any, cast

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_core.errors import ConfigError, SpaceError
from rl_core.nn.distributions import (
    ActionHead,
    Bernoulli,
    BernoulliHead,
    Categorical,
    CategoricalHead,
    DiagonalGaussian,
    Distribution,
    GaussianHead,
    MultiCategorical,
    MultiCategoricalHead,
    SquashedGaussian,
    SquashedGaussianHead,
    draw_noise,
    make_head,
)
from rl_core.nn.init import orthogonal_

Space = gymnasium.Space[object]
FEATURES = 5


def box(low: object, high: object, dtype: type[np.floating] = np.float32) -> spaces.Box:
    return spaces.Box(np.asarray(low, dtype), np.asarray(high, dtype), dtype=dtype)


SPACES: dict[str, Space] = {
    "discrete": spaces.Discrete(4),
    "discrete_start": spaces.Discrete(3, start=-1),
    "discrete_int32": spaces.Discrete(3, dtype=np.int32),
    "multi_discrete": spaces.MultiDiscrete([3, 2, 4]),
    "multi_discrete_start": spaces.MultiDiscrete([3, 2], start=[5, -7]),
    "multi_discrete_matrix": spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]), dtype=np.int32),
    "multi_binary": spaces.MultiBinary(4),
    "multi_binary_matrix": spaces.MultiBinary([2, 3]),
    "box": box([-1.0, 0.0], [1.0, 0.1]),
    "box_float64": box([-0.1, 0.7], [0.1, 0.7000001], np.float64),
    "box_matrix": box(np.full((2, 3), -2.0), np.full((2, 3), 0.3)),
    "box_scalar": box(-0.5, 0.5),
    "box_half_open": box([0.0, -np.inf], [np.inf, 1.0]),
    "box_partly_bounded": box([-1.0, -np.inf], [1.0, np.inf]),
    "box_unbounded": box([-np.inf, -np.inf], [np.inf, np.inf]),
}
BOUNDED_BOXES = ["box", "box_float64", "box_matrix", "box_scalar"]

each_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
each_bounded_box = pytest.mark.parametrize("name", BOUNDED_BOXES)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def features_of(*batch: int) -> Tensor:
    return torch.randn(*batch, FEATURES, generator=generator())


def sample(head: ActionHead, *batch: int) -> tuple[Distribution, Tensor]:
    distribution = cast(Distribution, head(features_of(*batch)))
    noise = draw_noise(head.noise_kind, (*batch, *head.noise_shape), generator(1))
    return distribution, distribution.sample(noise)


def env_actions_of(space: Space) -> Tensor:
    space.seed(0)
    return torch.from_numpy(np.stack([np.asarray(space.sample()) for _ in range(20)]))


def assert_inside(space: Space, head: ActionHead, action: Tensor) -> None:
    """Every environment action must be one that Gymnasium itself accepts."""
    env_action = head.to_env_action(action)
    assert space.shape is not None
    assert space.dtype is not None
    assert env_action.shape == (len(action), *space.shape)
    array: npt.NDArray[np.generic] = env_action.detach().numpy()
    assert array.dtype == space.dtype
    assert all(space.contains(array[index, ...]) for index in range(len(array)))


@each_space
def test_actions_have_the_declared_form_and_lie_in_the_space(space: Space) -> None:
    head = make_head(space, FEATURES)
    distribution, action = sample(head, 50)
    assert distribution.noise_kind == head.noise_kind
    assert action.shape == (50, *head.action_shape)
    assert action.dtype == head.action_dtype
    assert distribution.log_prob(action).shape == (50,)
    assert_inside(space, head, action)
    assert_inside(space, head, distribution.mode())


@each_space
def test_env_actions_map_back(space: Space) -> None:
    head = make_head(space, FEATURES)
    env_action = env_actions_of(space)
    action = head.from_env_action(env_action)
    assert action.shape == (20, *head.action_shape)
    assert action.dtype == head.action_dtype
    again = head.to_env_action(action)
    assert again.dtype == env_action.dtype
    torch.testing.assert_close(again, env_action, rtol=1e-6, atol=1e-6)
    assert head(features_of(20)).log_prob(action).isfinite().all()


@each_space
def test_any_batch_axes(space: Space) -> None:
    head = make_head(space, FEATURES)
    for batch in ((), (3,), (2, 3)):
        _, action = sample(head, *batch)
        env_action = head.to_env_action(action)
        assert space.shape is not None
        assert env_action.shape == (*batch, *space.shape)
        assert head.from_env_action(env_action).shape == (*batch, *head.action_shape)


@each_space
def test_only_what_is_learned_is_saved(space: Space) -> None:
    head = make_head(space, FEATURES)
    assert set(head.state_dict()) <= {"linear.weight", "linear.bias", "log_std"}
    assert set(head.state_dict()) == {name for name, _ in head.named_parameters()}


@pytest.mark.parametrize(
    ("name", "head_type", "distribution_type"),
    [
        ("discrete", CategoricalHead, Categorical),
        ("multi_discrete", MultiCategoricalHead, MultiCategorical),
        ("multi_binary", BernoulliHead, Bernoulli),
        ("box", GaussianHead, DiagonalGaussian),
    ],
)
def test_make_head_chooses_by_space(
    name: str, head_type: type[ActionHead], distribution_type: type[Distribution]
) -> None:
    head = make_head(SPACES[name], FEATURES)
    assert type(head) is head_type
    assert type(head(features_of(1))) is distribution_type


def test_noise_and_action_shapes() -> None:
    shapes = {
        name: (make_head(space, FEATURES).noise_shape, make_head(space, FEATURES).action_shape)
        for name, space in SPACES.items()
    }
    assert shapes["discrete"] == ((4,), ())
    assert shapes["multi_discrete"] == ((9,), (3,))
    assert shapes["multi_discrete_matrix"] == ((11,), (4,))
    assert shapes["multi_binary_matrix"] == ((6,), (6,))
    assert shapes["box_matrix"] == ((6,), (6,))
    assert shapes["box_scalar"] == ((1,), (1,))


def test_discrete_counts_from_its_start() -> None:
    head = make_head(SPACES["discrete_start"], FEATURES)
    assert head.to_env_action(torch.tensor([0, 2])).tolist() == [-1, 1]
    assert head.from_env_action(torch.tensor([-1, 1])).tolist() == [0, 2]
    assert (
        make_head(SPACES["discrete_int32"], FEATURES).to_env_action(torch.tensor([1])).dtype
        == torch.int32
    )


def test_multi_discrete_counts_from_its_start() -> None:
    head = make_head(SPACES["multi_discrete_start"], FEATURES)
    assert head.to_env_action(torch.tensor([[2, 0]])).tolist() == [[7, -7]]
    assert head.from_env_action(torch.tensor([[5, -6]])).tolist() == [[0, 1]]


def test_multi_discrete_matrices_keep_their_order() -> None:
    head = make_head(SPACES["multi_discrete_matrix"], FEATURES)
    assert head.to_env_action(torch.tensor([[1, 2, 3, 0]])).tolist() == [[[1, 2], [3, 0]]]


def test_multi_binary_has_the_dtype_of_the_space() -> None:
    head = make_head(SPACES["multi_binary"], FEATURES)
    env_action = head.to_env_action(torch.tensor([[0.0, 1.0, 1.0, 0.0]]))
    assert env_action.dtype == torch.int8
    assert env_action.tolist() == [[0, 1, 1, 0]]


def test_gaussian_actions_are_clipped_and_not_scaled() -> None:
    head = make_head(SPACES["box"], FEATURES)
    env_action = head.to_env_action(torch.tensor([[-3.0, 0.05], [0.25, 9.0]]))
    torch.testing.assert_close(env_action, torch.tensor([[-1.0, 0.05], [0.25, 0.1]]))


def test_clipping_keeps_to_float64_bounds() -> None:
    # 0.1 in float32 is above 0.1 in float64.
    space = SPACES["box_float64"]
    assert_inside(space, make_head(space, FEATURES), torch.tensor([[9.0, 9.0], [-9.0, -9.0]]))


def test_half_open_bounds_clip_on_one_side() -> None:
    head = make_head(SPACES["box_half_open"], FEATURES)
    env_action = head.to_env_action(torch.tensor([[-5.0, -5.0], [5.0, 5.0]]))
    assert env_action.tolist() == [[0.0, -5.0], [5.0, 1.0]]


@each_bounded_box
def test_squashed_actions_lie_in_the_space(name: str) -> None:
    space = SPACES[name]
    head = make_head(space, FEATURES, squash=True)
    assert type(head) is SquashedGaussianHead
    distribution, action = sample(head, 50)
    assert type(distribution) is SquashedGaussian
    assert action.abs().max() < 1.0
    assert_inside(space, head, action)
    assert_inside(space, head, torch.ones(1, *head.action_shape))
    assert_inside(space, head, -torch.ones(1, *head.action_shape))


def test_rounding_takes_no_squashed_action_out_of_the_space() -> None:
    # in float32, 12.6 / 2 - 0.4 is more than 5.9, and 0.7 - 8.2 / 2 less than -3.4
    space = box([-6.7, -3.4], [5.9, 4.8])
    head = make_head(space, FEATURES, squash=True)
    for action in (torch.ones(1, 2), -torch.ones(1, 2)):
        assert_inside(space, head, action)
    # nor the bound 8.51 beyond 1, which is 1.00002 half widths from the center
    narrow = make_head(box([8.47], [8.51]), FEATURES, squash=True)
    assert narrow.from_env_action(torch.tensor([[8.51]])).tolist() == [[1.0]]


def test_squashed_actions_are_scaled_to_the_bounds() -> None:
    head = make_head(box([-1.0, 2.0], [1.0, 6.0]), FEATURES, squash=True)
    action = torch.tensor([[-1.0, -1.0], [0.0, 0.0], [0.5, 0.5], [1.0, 1.0]])
    env_action = torch.tensor([[-1.0, 2.0], [0.0, 4.0], [0.5, 5.0], [1.0, 6.0]])
    torch.testing.assert_close(head.to_env_action(action), env_action)
    torch.testing.assert_close(head.from_env_action(env_action), action)


@each_bounded_box
def test_squashed_env_actions_map_back(name: str) -> None:
    head = make_head(SPACES[name], FEATURES, squash=True)
    env_action = env_actions_of(SPACES[name])
    action = head.from_env_action(env_action)
    assert action.dtype == torch.float32
    assert action.abs().max() <= 1.0
    torch.testing.assert_close(head.to_env_action(action), env_action)
    assert head(features_of(20)).log_prob(action).isfinite().all()


def test_squashing_survives_coinciding_and_huge_bounds() -> None:
    huge = 9e29
    low, high = [1.0, -huge, 0.5 * huge], [1.0, huge, huge]
    head = make_head(box(low, high), FEATURES, squash=True)
    env_action = head.to_env_action(torch.tensor([[0.3, 0.5, 0.0]]))
    torch.testing.assert_close(env_action, torch.tensor([[1.0, 0.5 * huge, 0.75 * huge]]))
    torch.testing.assert_close(head.from_env_action(env_action), torch.tensor([[0.0, 0.5, 0.0]]))


@pytest.mark.parametrize("name", ["box_half_open", "box_partly_bounded", "box_unbounded"])
def test_squashing_needs_finite_bounds(name: str) -> None:
    with pytest.raises(SpaceError, match="infinite bound"):
        make_head(SPACES[name], FEATURES, squash=True)


def test_the_greatest_number_is_no_bound_of_squashed_actions() -> None:
    greatest = float(np.finfo(np.float32).max)
    with pytest.raises(SpaceError, match="or one beyond 1e30"):
        make_head(box([-greatest], [greatest]), FEATURES, squash=True)


def test_squash_concerns_boxes_only() -> None:
    assert type(make_head(SPACES["discrete"], FEATURES, squash=True)) is CategoricalHead


def test_the_spread_is_a_parameter_of_its_own() -> None:
    head = make_head(SPACES["box"], FEATURES, initial_log_std=-0.5)
    assert isinstance(head, GaussianHead)
    assert isinstance(head.log_std, nn.Parameter)
    distribution = head(features_of(3))
    torch.testing.assert_close(distribution.log_std, torch.full((2,), -0.5))
    (gradient,) = torch.autograd.grad(distribution.entropy().sum(), head.log_std)
    torch.testing.assert_close(gradient, torch.full((2,), 3.0))


def build_gaussian(
    initial_log_std: float = 0.0, log_std_range: tuple[float, float] = (-20.0, 2.0)
) -> ActionHead:
    return GaussianHead(
        cast(spaces.Box, SPACES["box"]),
        FEATURES,
        state_dependent_std=True,
        initial_log_std=initial_log_std,
        log_std_range=log_std_range,
        gain=1.0,
    )


def build_squashed(
    initial_log_std: float = 0.0, log_std_range: tuple[float, float] = (-20.0, 2.0)
) -> ActionHead:
    return SquashedGaussianHead(
        cast(spaces.Box, SPACES["box"]),
        FEATURES,
        initial_log_std=initial_log_std,
        log_std_range=log_std_range,
        gain=1.0,
    )


each_learned_spread = pytest.mark.parametrize("build", [build_gaussian, build_squashed])


@each_learned_spread
def test_the_spread_may_be_an_output(build: Callable[..., ActionHead]) -> None:
    head = build(initial_log_std=-1.5)
    zeros = head(torch.zeros(1, FEATURES))
    torch.testing.assert_close(zeros.log_std, torch.full((1, 2), -1.5))
    torch.testing.assert_close(zeros.mean, torch.zeros(1, 2))
    log_std = head(features_of(2)).log_std
    assert log_std.shape == (2, 2)
    assert not torch.allclose(log_std[0], log_std[1])


@each_learned_spread
def test_the_spread_is_kept_in_range(build: Callable[..., ActionHead]) -> None:
    head = build()
    log_std = head(1e6 * features_of(50)).log_std
    assert log_std.min().item() == -20.0
    assert log_std.max().item() == 2.0
    narrow = build(log_std_range=(-1.0, 0.5))(1e6 * features_of(50)).log_std
    assert (narrow.min().item(), narrow.max().item()) == (-1.0, 0.5)


@each_learned_spread
def test_the_range_must_increase(build: Callable[..., ActionHead]) -> None:
    with pytest.raises(ConfigError, match=r"a finite number from 1\.0 to -1\.0"):
        build(log_std_range=(1.0, -1.0))


@pytest.mark.parametrize("options", [{"squash": True}, {"state_dependent_std": True}])
@pytest.mark.parametrize("start", [-21.0, 3.0, math.nan])
def test_a_spread_does_not_start_where_it_could_not_move(
    options: dict[str, Any], start: float
) -> None:
    space = spaces.Box(-30.0, 30.0, (2,))
    with pytest.raises(ConfigError, match=rf"initial_log_std is {start}; .* from -20.0 to 2.0"):
        make_head(space, FEATURES, initial_log_std=start, **options)
    make_head(space, FEATURES, initial_log_std=2.0, **options)


def test_a_free_spread_starts_anywhere_but_at_no_number() -> None:
    space = spaces.Box(-30.0, 30.0, (2,))
    assert make_head(space, FEATURES, initial_log_std=3.0).get_parameter("log_std").tolist() == [
        3,
        3,
    ]
    with pytest.raises(ConfigError, match="initial_log_std is inf; expected a finite number"):
        make_head(space, FEATURES, initial_log_std=math.inf)


def test_make_head_passes_its_options_on() -> None:
    space = SPACES["box"]
    dependent = make_head(space, FEATURES, state_dependent_std=True, initial_log_std=-2.0, gain=0.0)
    assert isinstance(dependent, GaussianHead)
    assert dependent.log_std is None
    torch.testing.assert_close(dependent(features_of(1)).log_std, torch.full((1, 2), -2.0))
    squashed = make_head(space, FEATURES, squash=True, initial_log_std=-3.0, gain=0.0)
    torch.testing.assert_close(squashed(features_of(1)).log_std, torch.full((1, 2), -3.0))


@each_space
def test_make_head_passes_the_gain_on(space: Space) -> None:
    linear = cast(Any, make_head(space, FEATURES, gain=0.0)).linear
    assert not linear.weight.any()


def test_masks_reach_the_distribution() -> None:
    head = make_head(SPACES["discrete"], FEATURES)
    mask = torch.tensor([[False, True, False, False]]).expand(9, 4)
    assert head(features_of(9), mask).mode().tolist() == [1] * 9
    joint = make_head(SPACES["multi_discrete"], FEATURES)
    allowed = torch.tensor([[False, False, True, False, True, False, True, False, False]])
    assert joint(features_of(1), allowed).mode().tolist() == [[2, 1, 1]]


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("name", ["multi_binary", "box"])
def test_other_heads_refuse_masks(name: str, squash: bool) -> None:
    head = make_head(SPACES[name], FEATURES, squash=squash)
    with pytest.raises(ConfigError, match="does not support action masks"):
        head(features_of(1), torch.ones(1, 2, dtype=torch.bool))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict({"a": spaces.Discrete(2)}),
        spaces.Tuple((spaces.Discrete(2),)),
        spaces.Text(4),
        spaces.Sequence(spaces.Discrete(2)),
    ],
    ids=lambda space: type(space).__name__,
)
def test_other_spaces_are_refused(space: Space) -> None:
    with pytest.raises(
        SpaceError, match="expected Discrete, MultiDiscrete, MultiBinary or Box"
    ) as caught:
        make_head(space, FEATURES)
    assert str(space) in str(caught.value)


def test_boxes_of_integers_are_refused() -> None:
    space = spaces.Box(0, 5, (2,), np.int32)
    for squash in (False, True):
        with pytest.raises(SpaceError, match=r"Box of dtype int32.* one whole number as Discrete"):
            make_head(space, FEATURES, squash=squash)


def test_empty_boxes_are_refused() -> None:
    with pytest.raises(SpaceError, match="is empty"):
        make_head(spaces.Box(-1.0, 1.0, (0,)), FEATURES)


def test_dtypes_without_a_tensor_form_are_refused() -> None:
    if np.dtype(np.longdouble) == np.dtype(np.float64):
        pytest.skip("long doubles are doubles on this machine")
    with pytest.raises(SpaceError, match="which torch does not have"):
        make_head(spaces.Box(-1.0, 1.0, (2,), np.longdouble), FEATURES)


def test_policies_start_nearly_uniform_and_centred() -> None:
    features = features_of(100)
    entropy = make_head(SPACES["discrete"], FEATURES)(features).entropy()
    torch.testing.assert_close(entropy, torch.full((100,), math.log(4.0)), atol=1e-3, rtol=0.0)
    mean = make_head(SPACES["box"], FEATURES)(features).mean
    assert 0.0 < mean.abs().max().item() < 0.1


def test_gain_scales_the_output_layer() -> None:
    head = make_head(SPACES["discrete"], FEATURES, gain=3.0)
    assert isinstance(head, CategoricalHead)
    product = head.linear.weight @ head.linear.weight.T
    torch.testing.assert_close(product, 9.0 * torch.eye(4))
    torch.testing.assert_close(head.linear.bias, torch.zeros(4))


def test_orthogonal_layers() -> None:
    linear = nn.Linear(6, 4)
    assert orthogonal_(linear, 2.0, generator(3)) is linear
    torch.testing.assert_close(linear.weight @ linear.weight.T, 4.0 * torch.eye(4))
    torch.testing.assert_close(linear.bias, torch.zeros(4))
    assert torch.equal(orthogonal_(nn.Linear(6, 4), 2.0, generator(3)).weight, linear.weight)
    convolution = orthogonal_(nn.Conv2d(3, 8, 4), math.sqrt(2.0), generator(3))
    matrix = convolution.weight.reshape(8, -1)
    torch.testing.assert_close(matrix @ matrix.T, 2.0 * torch.eye(8))
    assert orthogonal_(nn.Linear(2, 2, bias=False), 1.0).bias is None


def test_heads_trace_as_one_graph_and_map_over_parameters() -> None:
    head = make_head(SPACES["box"], FEATURES, squash=True)
    features, noise = features_of(3), torch.randn(3, 2, generator=generator(2))

    def act(parameters: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        distribution = torch.func.functional_call(head, parameters, (features,))
        action, log_prob = distribution.sample_with_log_prob(noise)
        return head.to_env_action(action), log_prob

    parameters = {name: parameter.detach() for name, parameter in head.named_parameters()}
    expected = act(parameters)
    compiled = torch.compile(act, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(parameters), expected)
    stacked = {name: torch.stack([item, 2.0 * item]) for name, item in parameters.items()}
    env_action, log_prob = torch.func.vmap(act)(stacked)
    torch.testing.assert_close(env_action[0], expected[0])
    torch.testing.assert_close(log_prob[0], expected[1])
    assert not torch.allclose(env_action[1], expected[0])
