import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass

import pytest
import torch
from torch import Tensor
from torch import distributions as reference
from torch.func import grad, vmap

from rl_core.errors import ConfigError, DataError
from rl_core.nn.distributions import (
    Bernoulli,
    Categorical,
    Deterministic,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    NoiseKind,
    SquashedGaussian,
    draw_noise,
)

NVEC = (2, 4, 3)
EVEN_NVEC = (3, 3)


@dataclass(frozen=True)
class Case:
    """A class of distributions, made from one tensor, and what torch says of the same one."""

    size: int
    build: Callable[[Tensor], Distribution]
    build_reference: Callable[[Tensor], list[reference.Distribution]]
    noise_size: int = 0

    @property
    def noise_shape(self) -> int:
        return self.noise_size or self.size


def gaussian_parts(parameters: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = parameters.chunk(2, -1)
    return mean, 0.5 * log_std


def categoricals(parameters: Tensor, nvec: tuple[int, ...]) -> list[reference.Distribution]:
    parts = torch.split(parameters, list(nvec), -1)
    return [reference.Categorical(logits=part) for part in parts]


def normal(parameters: Tensor) -> reference.Distribution:
    mean, log_std = gaussian_parts(parameters)
    return reference.Independent(reference.Normal(mean, log_std.exp()), 1)


CASES = {
    "categorical": Case(
        5, Categorical, lambda parameters: [reference.Categorical(logits=parameters)]
    ),
    "multi_categorical": Case(
        sum(NVEC),
        lambda parameters: MultiCategorical(parameters, NVEC),
        lambda parameters: categoricals(parameters, NVEC),
    ),
    "even_multi_categorical": Case(
        sum(EVEN_NVEC),
        lambda parameters: MultiCategorical(parameters, EVEN_NVEC),
        lambda parameters: categoricals(parameters, EVEN_NVEC),
    ),
    "bernoulli": Case(
        4,
        Bernoulli,
        lambda parameters: [reference.Independent(reference.Bernoulli(logits=parameters), 1)],
    ),
    "gaussian": Case(
        6,
        lambda parameters: DiagonalGaussian(*gaussian_parts(parameters)),
        lambda parameters: [normal(parameters)],
        3,
    ),
    "squashed_gaussian": Case(
        6,
        lambda parameters: SquashedGaussian(*gaussian_parts(parameters)),
        lambda parameters: [
            reference.TransformedDistribution(
                normal(parameters), reference.TanhTransform(cache_size=1)
            )
        ],
        3,
    ),
}

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
each_case_with_an_entropy_in_torch = pytest.mark.parametrize(
    "case",
    [case for name, case in CASES.items() if name != "squashed_gaussian"],
    ids=[name for name in CASES if name != "squashed_gaussian"],
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_parameters(case: Case, *batch: int, seed: int = 0) -> Tensor:
    return torch.randn(*batch, case.size, generator=generator(seed), dtype=torch.float64)


def noise_for(case: Case, distribution: Distribution, *batch: int) -> Tensor:
    shape = (*batch, case.noise_shape)
    return draw_noise(distribution.noise_kind, shape, generator(9), dtype=torch.float64)


def reference_log_prob(case: Case, parameters: Tensor, action: Tensor) -> Tensor:
    parts = case.build_reference(parameters)
    if len(parts) == 1:
        return parts[0].log_prob(action)
    columns = [part.log_prob(action[..., index]) for index, part in enumerate(parts)]
    return torch.stack(columns).sum(0)


@each_case
def test_log_prob_is_that_of_torch(case: Case) -> None:
    parameters = random_parameters(case, 7, 3)
    distribution = case.build(parameters)
    action = distribution.sample(noise_for(case, distribution, 7, 3))
    log_prob = distribution.log_prob(action)
    assert log_prob.shape == (7, 3)
    torch.testing.assert_close(log_prob, reference_log_prob(case, parameters, action))


@each_case
def test_sample_with_log_prob_agrees_with_its_parts(case: Case) -> None:
    distribution = case.build(random_parameters(case, 7, 3))
    noise = noise_for(case, distribution, 7, 3)
    action, log_prob = distribution.sample_with_log_prob(noise)
    torch.testing.assert_close(action, distribution.sample(noise))
    torch.testing.assert_close(log_prob, distribution.log_prob(action))


@each_case_with_an_entropy_in_torch
def test_entropy_is_that_of_torch(case: Case) -> None:
    parameters = random_parameters(case, 7, 3)
    entropy = case.build(parameters).entropy()
    assert entropy.shape == (7, 3)
    expected = torch.stack([part.entropy() for part in case.build_reference(parameters)]).sum(0)
    torch.testing.assert_close(entropy, expected)


@each_case
def test_kl_divergence_is_that_of_torch(case: Case) -> None:
    one, other = random_parameters(case, 7, seed=1), random_parameters(case, 7, seed=2)
    divergence = case.build(one).kl_divergence(case.build(other))
    pairs = zip(case.build_reference(one), case.build_reference(other), strict=True)
    if case is CASES["squashed_gaussian"]:
        expected = reference.kl_divergence(normal(one), normal(other))
    else:
        expected = torch.stack([reference.kl_divergence(p, q) for p, q in pairs]).sum(0)
    assert divergence.shape == (7,)
    torch.testing.assert_close(divergence, expected)


@each_case
def test_kl_divergence_from_itself_is_zero(case: Case) -> None:
    distribution = case.build(random_parameters(case, 7))
    zero = torch.zeros(7, dtype=torch.float64)
    torch.testing.assert_close(distribution.kl_divergence(distribution), zero)


@each_case
def test_an_unbatched_distribution_works(case: Case) -> None:
    parameters = random_parameters(case)
    distribution = case.build(parameters)
    action = distribution.sample(noise_for(case, distribution))
    torch.testing.assert_close(
        distribution.log_prob(action), case.build(parameters[None]).log_prob(action[None])[0]
    )
    assert distribution.entropy().shape == ()
    assert distribution.mode().shape == action.shape
    assert distribution.mode().dtype == action.dtype


def all_of(case: Case, parameters: Tensor, noise: Tensor, other: Tensor) -> list[Tensor]:
    distribution = case.build(parameters)
    action, log_prob = distribution.sample_with_log_prob(noise)
    return [
        action,
        log_prob,
        distribution.sample(noise),
        distribution.mode(),
        distribution.log_prob(action),
        distribution.entropy(),
        distribution.kl_divergence(case.build(other)),
    ]


@each_case
def test_vmap_agrees_with_batching(case: Case) -> None:
    parameters, other = random_parameters(case, 5, 2, seed=1), random_parameters(case, 5, 2, seed=2)
    noise = noise_for(case, case.build(parameters), 5, 2)
    mapped = vmap(lambda *arguments: all_of(case, *arguments))(parameters, noise, other)
    torch.testing.assert_close(mapped, all_of(case, parameters, noise, other))


@each_case
def test_functional_gradients_are_those_of_autograd(case: Case) -> None:
    parameters, other = random_parameters(case, 5, seed=1), random_parameters(case, 5, seed=2)
    noise = noise_for(case, case.build(parameters), 5)
    action = case.build(parameters).sample(noise)

    def objective(parameters: Tensor) -> Tensor:
        distribution = case.build(parameters)
        divergence = distribution.kl_divergence(case.build(other))
        return (distribution.log_prob(action) + distribution.entropy() + divergence).sum()

    leaf = parameters.clone().requires_grad_()
    (expected,) = torch.autograd.grad(objective(leaf), leaf)
    torch.testing.assert_close(grad(objective)(parameters), expected)
    assert expected.abs().min() > 0.0


@each_case
def test_everything_traces_as_one_graph(case: Case) -> None:
    parameters, other = random_parameters(case, 5, seed=1), random_parameters(case, 5, seed=2)
    noise = noise_for(case, case.build(parameters), 5)

    def function(*arguments: Tensor) -> list[Tensor]:
        return all_of(case, *arguments)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    expected = function(parameters, noise, other)
    torch.testing.assert_close(compiled(parameters, noise, other), expected)


def test_masked_distributions_trace_and_cross_the_graph() -> None:
    def function(logits: Tensor, mask: Tensor, old: Categorical) -> tuple[Categorical, Tensor]:
        distribution = Categorical(logits, mask)
        joint = MultiCategorical(logits, (2, 3), mask)
        return distribution, distribution.kl_divergence(old) + joint.entropy()

    logits = torch.randn(4, 5, generator=generator())
    mask = torch.tensor([[True, True, False, True, False]]).expand(4, 5)
    old = Categorical(torch.zeros(4, 5), mask)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    distribution, number = compiled(logits, mask, old)
    expected, expected_number = function(logits, mask, old)
    torch.testing.assert_close(number, expected_number)
    torch.testing.assert_close(distribution.logits, expected.logits)


# Numbers worked out by hand


def test_categorical_by_hand() -> None:
    distribution = Categorical(torch.tensor([[0.5, 0.25, 0.25]]).log() + 3.0)
    assert distribution.mode().tolist() == [0]
    assert distribution.log_prob(torch.tensor([1])).item() == pytest.approx(-2.0 * math.log(2.0))
    assert distribution.entropy().item() == pytest.approx(1.5 * math.log(2.0))
    uniform = Categorical(torch.zeros(1, 3))
    divergence = distribution.kl_divergence(uniform).item()
    assert divergence == pytest.approx(math.log(3.0) - 1.5 * math.log(2.0))
    assert distribution.sample(torch.tensor([[0.0, 1.0, 0.0]])).tolist() == [1]


def test_multi_categorical_by_hand() -> None:
    logits = torch.tensor([0.75, 0.25, 0.5, 0.25, 0.25]).log()
    distribution = MultiCategorical(logits, (2, 3))
    assert distribution.mode().tolist() == [0, 0]
    log_prob = distribution.log_prob(torch.tensor([1, 2])).item()
    assert log_prob == pytest.approx(math.log(0.25 * 0.25))
    # The second choice has fewer actions than 3 + 2 = 5: its noise moves nothing in the first.
    assert distribution.sample(torch.tensor([0.0, 2.0, 0.0, 0.0, 5.0])).tolist() == [1, 2]
    first = 2.0 * math.log(2.0) - 0.75 * math.log(3.0)
    assert distribution.entropy().item() == pytest.approx(first + 1.5 * math.log(2.0))


def test_bernoulli_by_hand() -> None:
    distribution = Bernoulli(torch.tensor([math.log(3.0), 0.0, -math.log(3.0)]))  # 3/4, 1/2, 1/4
    assert distribution.mode().tolist() == [1.0, 0.0, 0.0]
    log_prob = distribution.log_prob(torch.tensor([1, 0, 1], dtype=torch.int8)).item()
    assert log_prob == pytest.approx(math.log(0.75 * 0.5 * 0.25))
    side = 2.0 * math.log(2.0) - 0.75 * math.log(3.0)
    assert distribution.entropy().item() == pytest.approx(2.0 * side + math.log(2.0))
    fair = Bernoulli(torch.zeros(3))
    assert distribution.kl_divergence(fair).item() == pytest.approx(2.0 * (math.log(2.0) - side))
    assert distribution.sample(torch.tensor([-2.0, 0.1, 1.0])).tolist() == [0.0, 1.0, 0.0]


def test_bernoulli_of_extreme_logits_stays_finite() -> None:
    distribution = Bernoulli(torch.tensor([200.0, -200.0]))
    assert distribution.entropy().item() == pytest.approx(0.0)
    assert distribution.log_prob(torch.tensor([1.0, 0.0])).item() == pytest.approx(0.0)
    assert distribution.log_prob(torch.tensor([0.0, 0.0])).item() == pytest.approx(-200.0)


def test_gaussian_by_hand() -> None:
    distribution = DiagonalGaussian(torch.tensor([[1.0, 2.0]]), torch.tensor([0.0, math.log(2.0)]))
    action = distribution.sample(torch.tensor([[1.0, -1.0]]))
    assert action.tolist() == [[2.0, 0.0]]
    constant = math.log(2.0 * math.pi) + math.log(2.0)
    assert distribution.log_prob(action).item() == pytest.approx(-1.0 - constant)
    assert distribution.entropy().item() == pytest.approx(1.0 + constant)
    other = DiagonalGaussian(torch.zeros(1, 2), torch.zeros(2))
    # 1/2 (1 + 1 - 1) - 0 and 1/2 (4 + 4 - 1) - log 2
    assert distribution.kl_divergence(other).item() == pytest.approx(4.0 - math.log(2.0))


def test_gaussian_with_shared_spread_has_batch_shaped_entropy() -> None:
    distribution = DiagonalGaussian(torch.zeros(4, 3, 2), torch.zeros(2))
    assert distribution.entropy().shape == (4, 3)
    assert distribution.kl_divergence(distribution).shape == (4, 3)
    assert distribution.sample_with_log_prob(torch.zeros(4, 3, 2))[1].shape == (4, 3)


def test_squashed_gaussian_by_hand() -> None:
    distribution = SquashedGaussian(torch.tensor([[0.0]]), torch.tensor([0.0]))
    action, log_prob = distribution.sample_with_log_prob(torch.tensor([[1.0]]))
    assert action.item() == pytest.approx(math.tanh(1.0))
    slope = math.log(1.0 - math.tanh(1.0) ** 2)
    assert log_prob.item() == pytest.approx(-0.5 - 0.5 * math.log(2.0 * math.pi) - slope)


def test_squashed_mode_is_the_squashed_mean() -> None:
    mean = torch.tensor([[0.5, -2.0]])
    distribution = SquashedGaussian(mean, torch.zeros(2))
    torch.testing.assert_close(distribution.mode(), mean.tanh())


# Sampling


@pytest.mark.parametrize(
    ("kind", "mean", "variance"),
    [
        ("gumbel", 0.577216, math.pi**2 / 6.0),
        ("normal", 0.0, 1.0),
        ("logistic", 0.0, math.pi**2 / 3.0),
        ("none", 0.0, 0.0),
    ],
)
def test_noise_has_its_moments(kind: NoiseKind, mean: float, variance: float) -> None:
    noise = draw_noise(kind, (200, 1000), generator())
    assert noise.shape == (200, 1000)
    assert noise.isfinite().all()
    assert noise.mean().item() == pytest.approx(mean, abs=0.02)
    assert noise.var().item() == pytest.approx(variance, rel=0.02)


@pytest.mark.parametrize("kind", ["gumbel", "normal", "logistic", "none"])
def test_noise_comes_from_the_generator_alone(kind: NoiseKind) -> None:
    before = torch.get_rng_state()
    one = draw_noise(kind, [4], generator(1), dtype=torch.float64)
    two = draw_noise(kind, (4,), generator(1), dtype=torch.float64)
    other = draw_noise(kind, (4,), generator(2), dtype=torch.float64)
    assert one.dtype == torch.float64
    assert torch.equal(one, two)
    assert torch.equal(one, other) == (kind == "none")
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("drawn", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["gumbel", "logistic"])
def test_the_rarest_draws_are_finite_too(
    kind: NoiseKind, drawn: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("exponential_", "uniform_"):
        monkeypatch.setattr(Tensor, name, lambda self, generator: self.fill_(drawn))
    assert draw_noise(kind, (1,), generator()).isfinite().all()


def test_unknown_noise_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown kind 'gumble'; did you mean 'gumbel'"):
        draw_noise("gumble", (1,), generator())  # type: ignore[arg-type]  # the mistake under test


def test_categorical_frequencies() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    distribution = Categorical(probabilities.log().expand(200_000, 4))
    action = distribution.sample(draw_noise("gumbel", (200_000, 4), generator()))
    assert action.dtype == torch.int64
    frequency = torch.bincount(action, minlength=4) / 200_000
    torch.testing.assert_close(frequency, probabilities, atol=0.005, rtol=0.0)


def test_multi_categorical_frequencies_and_independence() -> None:
    probabilities = torch.tensor([0.2, 0.8, 0.5, 0.25, 0.25])
    distribution = MultiCategorical(probabilities.log().expand(200_000, 5), (2, 3))
    action = distribution.sample(draw_noise("gumbel", (200_000, 5), generator()))
    assert action.dtype == torch.int64
    frequency = torch.bincount(action[:, 0] * 3 + action[:, 1], minlength=6) / 200_000
    expected = torch.outer(probabilities[:2], probabilities[2:]).flatten()
    torch.testing.assert_close(frequency, expected, atol=0.005, rtol=0.0)


def test_bernoulli_frequencies() -> None:
    probabilities = torch.tensor([0.1, 0.5, 0.95])
    distribution = Bernoulli(probabilities.logit().expand(200_000, 3))
    action = distribution.sample(draw_noise("logistic", (200_000, 3), generator()))
    assert action.dtype == torch.float32
    torch.testing.assert_close(action.mean(0), probabilities, atol=0.005, rtol=0.0)


def test_squashed_density_integrates_to_one() -> None:
    grid = torch.linspace(-1.0, 1.0, 200_001, dtype=torch.float64)[1:-1]
    mean, log_std = torch.tensor([0.4]).double(), torch.tensor([-0.7]).double()
    density = SquashedGaussian(mean, log_std).log_prob(grid.unsqueeze(1)).exp()
    assert torch.trapezoid(density, grid).item() == pytest.approx(1.0, abs=1e-5)


def test_gaussian_samples_are_reparameterised() -> None:
    mean, log_std = torch.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True)
    noise = torch.tensor([0.5, -1.0])
    action = DiagonalGaussian(mean, log_std).sample(noise)
    of_mean, of_log_std = torch.autograd.grad(action.sum(), (mean, log_std))
    torch.testing.assert_close(of_mean, torch.ones(2))
    torch.testing.assert_close(of_log_std, noise)


def test_gradient_of_a_sampled_log_prob_is_total() -> None:
    parameters = torch.tensor([0.3, -0.2], dtype=torch.float64)
    noise = torch.tensor([0.7], dtype=torch.float64)

    def via_sample(parameters: Tensor) -> Tensor:
        return SquashedGaussian(*parameters.chunk(2)).sample_with_log_prob(noise)[1]

    def via_action(parameters: Tensor) -> Tensor:
        distribution = SquashedGaussian(*parameters.chunk(2))
        return distribution.log_prob(distribution.sample(noise))

    torch.testing.assert_close(grad(via_sample)(parameters), grad(via_action)(parameters))


# Numerical edges of the squashed Gaussian


def test_squashed_log_prob_of_far_samples_is_exact() -> None:
    mean, noise = torch.tensor([[12.0], [-60.0]]), torch.zeros(2, 1)
    log_prob = SquashedGaussian(mean, torch.zeros(1)).sample_with_log_prob(noise)[1]
    # log(1 - tanh² u) tends to log 4 - 2 |u|.
    expected = -0.5 * math.log(2.0 * math.pi) - math.log(4.0) + 2.0 * mean.abs().squeeze(1)
    torch.testing.assert_close(log_prob, expected)


def test_squashed_log_prob_at_the_bounds_is_finite() -> None:
    mean = torch.zeros(2, 1, requires_grad=True)
    log_std = torch.zeros(1, requires_grad=True)
    action = torch.tensor([[1.0], [-1.0]])
    log_prob = SquashedGaussian(mean, log_std).log_prob(action)
    gradients = torch.autograd.grad(log_prob.sum(), (mean, log_std))
    assert log_prob.isfinite().all()
    torch.testing.assert_close(log_prob[0], log_prob[1])
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize(
    ("log_std", "tolerance"), [(-3.0, 2e-5), (0.0, 2e-5), (0.45, 2e-5), (1.0, 1e-3), (1.5, 0.02)]
)
def test_squashed_entropy_is_the_integral(log_std: float, tolerance: float) -> None:
    mean = torch.tensor([[-4.0], [0.0], [0.3], [1.0], [2.5]], dtype=torch.float64)
    grid = torch.linspace(-9.0, 9.0, 20_001, dtype=torch.float64)
    weight = torch.exp(-0.5 * grid.square()) / math.sqrt(2.0 * math.pi) * (grid[1] - grid[0])
    distribution = SquashedGaussian(mean, torch.tensor([log_std], dtype=torch.float64))
    _, log_prob = vmap(distribution.sample_with_log_prob, in_dims=0)(
        grid[:, None, None].expand(-1, 5, 1)
    )
    expected = -(log_prob * weight.unsqueeze(1)).sum(0)
    torch.testing.assert_close(distribution.entropy(), expected, atol=tolerance, rtol=0.0)


def test_squashed_entropy_of_a_narrow_policy_is_shifted_by_the_slope() -> None:
    distribution = SquashedGaussian(torch.tensor([[0.5, -1.0]]), torch.full((2,), -8.0))
    plain = DiagonalGaussian(distribution.mean, distribution.log_std).entropy()
    slope = sum(math.log(1.0 - math.tanh(u) ** 2) for u in (0.5, -1.0))
    torch.testing.assert_close(distribution.entropy(), plain + slope)


# Masks

FORBIDDEN_LAST = torch.tensor([[True, True, False]])


def test_forbidden_actions_have_no_probability() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.25]]).log()
    distribution = Categorical(logits, FORBIDDEN_LAST)
    log_probs = torch.stack([distribution.log_prob(torch.tensor([a])) for a in range(3)])
    expected = torch.tensor([[2.0 / 3.0], [1.0 / 3.0], [0.0]])
    torch.testing.assert_close(log_probs.exp(), expected)
    entropy = math.log(3.0) - 2.0 / 3.0 * math.log(2.0)
    assert distribution.entropy().item() == pytest.approx(entropy)


def test_forbidden_entries_drop_out_of_entropy_and_kl() -> None:
    one, other = torch.tensor([[1.0, 2.0, 99.0]]), torch.tensor([[0.5, -1.0, -99.0]])
    masked, masked_other = Categorical(one, FORBIDDEN_LAST), Categorical(other, FORBIDDEN_LAST)
    plain, plain_other = Categorical(one[:, :2]), Categorical(other[:, :2])
    torch.testing.assert_close(masked.entropy(), plain.entropy())
    torch.testing.assert_close(masked.kl_divergence(masked_other), plain.kl_divergence(plain_other))
    wider = Categorical(torch.zeros(1, 3))
    assert masked.kl_divergence(wider).item() < 2.0
    assert wider.kl_divergence(masked).item() > 1e6


def test_forbidden_actions_are_never_chosen() -> None:
    logits = torch.tensor([-50.0, 0.0, 80.0, 80.0]).expand(20_000, 4)
    mask = torch.tensor([True, True, False, False])
    distribution = Categorical(logits, mask)
    action = distribution.sample(draw_noise("gumbel", (20_000, 4), generator()))
    assert set(action.tolist()) == {1}
    assert set(distribution.mode().tolist()) == {1}


def test_a_single_allowed_action_is_certain() -> None:
    distribution = Categorical(torch.tensor([9.0, -9.0]), torch.tensor([False, True]))
    assert distribution.log_prob(torch.tensor(1)).item() == 0.0
    assert distribution.entropy().item() == 0.0


def test_a_mask_that_allows_everything_changes_nothing() -> None:
    logits = torch.randn(3, 4, generator=generator())
    masked = Categorical(logits, torch.ones(3, 4, dtype=torch.bool))
    assert torch.equal(masked.logits, logits)


def test_forbidden_logits_get_no_gradient() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    distribution = Categorical(logits, FORBIDDEN_LAST)
    objective = (distribution.log_prob(torch.tensor([0])) + distribution.entropy()).sum()
    (gradient,) = torch.autograd.grad(objective, logits)
    assert gradient.isfinite().all()
    assert gradient[0, 2].item() == 0.0
    assert gradient[0, 0].item() != 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_masks_work_in_every_precision(dtype: torch.dtype) -> None:
    distribution = Categorical(torch.zeros(1, 3, dtype=dtype), FORBIDDEN_LAST)
    assert distribution.logits.isfinite().all()
    assert distribution.entropy().item() == pytest.approx(math.log(2.0), abs=0.01)


def test_masks_of_several_choices() -> None:
    mask = torch.tensor([True, False, False, True, True])
    distribution = MultiCategorical(torch.tensor([0.0, 9.0, 9.0, 0.0, 0.0]), (2, 3), mask)
    assert distribution.entropy().item() == pytest.approx(math.log(2.0))
    log_prob = distribution.log_prob(torch.tensor([0, 2])).item()
    assert log_prob == pytest.approx(-math.log(2.0))
    noise = draw_noise("gumbel", (5000, 5), generator())
    action = MultiCategorical(distribution.logits.expand(5000, 5), (2, 3)).sample(noise)
    assert set(map(tuple, action.tolist())) == {(0, 1), (0, 2)}


def test_a_mask_that_forbids_everything_is_uniform() -> None:
    logits, nothing = torch.tensor([[1.0, 2.0]]), torch.zeros(1, 2, dtype=torch.bool)
    assert Categorical(logits, nothing).entropy().item() == pytest.approx(math.log(2.0))


# The remaining contract


def test_deterministic_repeats_its_action() -> None:
    action = torch.tensor([[0.5, -0.5]])
    distribution = Deterministic(action)
    assert distribution.noise_kind == "none"
    assert distribution.sample(torch.zeros(1, 2)) is action
    assert distribution.mode() is action


def test_deterministic_has_no_density() -> None:
    distribution = Deterministic(torch.zeros(1, 2))
    for call in (
        lambda: distribution.log_prob(distribution.action),
        lambda: distribution.sample_with_log_prob(distribution.action),
        distribution.entropy,
        lambda: distribution.kl_divergence(distribution),
    ):
        with pytest.raises(ConfigError, match="a deterministic policy has no"):
            call()


def test_kl_divergence_wants_two_of_one_class() -> None:
    zeros = torch.zeros(1, 2)
    # those of a pair have the same fields, so that a formula would give a number
    pairs: list[tuple[Distribution, Distribution]] = [
        (DiagonalGaussian(zeros, zeros), SquashedGaussian(zeros, zeros)),
        (Categorical(zeros), Bernoulli(zeros)),
        (MultiCategorical(zeros, (2,)), Categorical(zeros)),
    ]
    for one, other in pairs:
        for first, second in ((one, other), (other, one)):
            names = f"{type(first).__name__} and {type(second).__name__}"
            with pytest.raises(DataError, match=names):
                first.kl_divergence(second)


@each_case
def test_distributions_are_frozen(case: Case) -> None:
    distribution = case.build(random_parameters(case, 1))
    field = "logits" if hasattr(distribution, "logits") else "mean"
    with pytest.raises(FrozenInstanceError):
        setattr(distribution, field, torch.zeros(1))


def test_a_detached_distribution_is_a_constant() -> None:
    logits = torch.randn(2, 3, requires_grad=True)
    mask = torch.tensor([True, False, True]).expand(2, 3)
    policy = Categorical(logits, mask)
    constant = policy.detach()
    assert policy.entropy().requires_grad
    assert not constant.entropy().requires_grad
    assert torch.equal(constant.logits, policy.logits)
    assert constant.mask is not None
    assert torch.equal(constant.mask, mask)
