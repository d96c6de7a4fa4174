import math

import pytest
import torch

from rl_algos_offpolicy.critics.noisy import NoisyEnsembleMLP, draw_weight_noise
from rl_core.errors import ConfigError


def _network() -> NoisyEnsembleMLP:
    torch.manual_seed(0)
    network = NoisyEnsembleMLP(2, 3, (4,), 2, activation="tanh")
    for sigma in (*network.weight_sigmas, *network.bias_sigmas):
        sigma.data.uniform_(0.1, 0.5)
    return network


def _by_dense_weights(
    network: NoisyEnsembleMLP, member: int, x: torch.Tensor, noise: torch.Tensor
) -> torch.Tensor:
    """The paper's form: write down the noisy weights, then multiply."""
    for k, (p, q) in enumerate([(3, 4), (4, 2)]):
        into, out, noise = noise[:p], noise[p : p + q], noise[p + q :]
        weight = network.weights[k][member]
        weight = weight + network.weight_sigmas[k][member] * torch.outer(out, into)
        bias = network.biases[k][member, 0] + network.bias_sigmas[k][member, 0] * out
        x = x @ weight.T + bias
        x = torch.tanh(x) if k == 0 else x
    return x


def test_one_layer_by_hand() -> None:
    network = NoisyEnsembleMLP(1, 2, (), 1)
    network.weights[0].data = torch.tensor([[[1.0, 2.0]]])
    network.weight_sigmas[0].data = torch.tensor([[[0.5, 0.25]]])
    network.biases[0].data = torch.tensor([[[3.0]]])
    network.bias_sigmas[0].data = torch.tensor([[[0.1]]])
    x = torch.tensor([[1.0, -1.0]])
    assert network(x).item() == pytest.approx(1.0 - 2.0 + 3.0)
    # (1 + 0.5 * 2 * -1) - (2 + 0.25 * 2 * 4) + 3 + 0.1 * 2
    noise = torch.tensor([[-1.0, 4.0, 2.0]])
    assert network(x, noise).item() == pytest.approx(0.0 - 4.0 + 3.0 + 0.2)


def test_one_sample_serves_a_batch_or_each_row_has_its_own() -> None:
    network = _network()
    assert network.noise_size == 3 + 4 + 4 + 2
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, 6, 3)
    shared = draw_weight_noise((2, 13), generator)
    own = draw_weight_noise((5, 6, 2, 13), generator)
    for noise, by_row in ((shared, shared.expand(5, 6, 2, 13)), (own, own)):
        values = network(x, noise)
        assert values.shape == (2, 5, 6, 2)
        for i, j, member in ((0, 0, 0), (4, 2, 1), (3, 5, 0)):
            expected = _by_dense_weights(network, member, x[i, j], by_row[i, j, member])
            torch.testing.assert_close(values[member, i, j], expected)
    zeros = torch.zeros(2, 13)
    torch.testing.assert_close(network(x), network(x, zeros))


def test_weights_start_as_in_the_paper() -> None:
    torch.manual_seed(0)
    network = NoisyEnsembleMLP(2, 16, (64,), 3, initial_sigma=0.4)
    for p, mean, sigma in zip(
        (16, 16, 64, 64),
        (network.weights[0], network.biases[0], network.weights[1], network.biases[1]),
        (
            network.weight_sigmas[0],
            network.bias_sigmas[0],
            network.weight_sigmas[1],
            network.bias_sigmas[1],
        ),
        strict=True,
    ):
        bound = 1.0 / math.sqrt(p)
        assert sigma.unique().tolist() == pytest.approx([0.4 * bound])
        assert 0.3 * bound < mean.abs().max() <= bound
    assert network.weights[0].std().item() == pytest.approx(0.25 / math.sqrt(3.0), rel=0.05)
    assert not torch.equal(network.weights[0][0], network.weights[0][1])


def test_noise_is_the_signed_root_of_normal_numbers() -> None:
    noise = draw_weight_noise((20_000,), torch.Generator().manual_seed(0))
    again = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(noise * noise.abs(), again)
    assert noise.square().mean().item() == pytest.approx(math.sqrt(2.0 / math.pi), rel=0.02)


@pytest.mark.parametrize(
    ("sizes", "sigma", "message"),
    [
        ((0, 4, (5,), 1), 0.5, "whole number of at least 1"),
        ((2, 4, (0,), 1), 0.5, "whole number of at least 1"),
        ((2, 4, (), 1), 0.0, "initial_sigma"),
        ((2, 4, (), 1), math.nan, "initial_sigma"),
    ],
)
def test_empty_or_silent_networks_are_refused(
    sizes: tuple[int, int, tuple[int, ...], int], sigma: float, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        NoisyEnsembleMLP(*sizes, initial_sigma=sigma)
