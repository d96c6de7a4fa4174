import pytest
import torch

from rl_core.nn.distributions import DiagonalGaussian
from rl_meta.context import ContextEncoder, kl_to_prior, product_of_gaussians


def test_the_product_of_gaussians_is_the_posterior_of_a_gaussian_mean() -> None:
    # Observations c_n of z with noise of variance s_n^2, and a flat prior: the posterior's
    # precision is the sum of all, its mean their weighted average.
    mean = torch.tensor([[[1.0], [4.0], [1e6]]])
    variance = torch.tensor([[[1.0], [0.5], [1e-3]]])
    got, std = product_of_gaussians(mean, variance, torch.tensor([[1.0, 1.0, 0.0]]))
    assert got.item() == pytest.approx((1.0 * 1.0 + 2.0 * 4.0) / 3.0)
    assert std.item() == pytest.approx((1.0 / 3.0) ** 0.5)


def test_the_product_is_the_density_of_its_factors() -> None:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(1, 6, 2, generator=generator)
    variance = torch.rand(1, 6, 2, generator=generator) + 0.1
    got, std = product_of_gaussians(mean, variance, torch.ones(1, 6))
    z = torch.linspace(-1.0, 1.0, 5).view(-1, 1, 1, 1)
    factors = DiagonalGaussian(mean[0].unsqueeze(-1), 0.5 * variance[0].log().unsqueeze(-1))
    product = DiagonalGaussian(got[0].unsqueeze(-1), std[0].log().unsqueeze(-1))
    difference = factors.log_prob(z).sum(1) - product.log_prob(z).squeeze(1)
    torch.testing.assert_close(difference, difference[:1].expand_as(difference))  # a constant


def test_the_divergence_from_the_prior() -> None:
    mean, std = torch.tensor([[0.5, -1.0]]), torch.tensor([[1.0, 0.3]])
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, std), torch.distributions.Normal(0.0, 1.0)
    ).sum()
    assert kl_to_prior(mean, std).item() == pytest.approx(expected.item())
    assert kl_to_prior(torch.zeros(1, 3), torch.ones(1, 3)).item() == 0.0


@pytest.mark.parametrize("is_stochastic", [True, False])
def test_the_order_of_a_context_and_what_is_masked_do_not_matter(is_stochastic: bool) -> None:
    torch.manual_seed(0)
    encoder = ContextEncoder(4, 3, (8,), is_stochastic)
    context = torch.randn(2, 7, 4)
    expected = encoder(context, torch.ones(2, 7))
    order = torch.tensor([3, 1, 0, 6, 5, 2, 4])
    padded = torch.cat([context[:, order], torch.full((2, 2, 4), 100.0)], 1)
    got = encoder(padded, torch.tensor([[1.0] * 7 + [0.0] * 2] * 2))
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert is_stochastic is bool((expected[1] > 0.0).all())
