import math

import pytest
import torch
from torch import Tensor

from rl_core.errors import ConfigError
from rl_core.nn.mlp import EnsembleLinear, EnsembleMLP, draw_dropout


def test_each_member_is_a_network_of_its_own() -> None:
    torch.manual_seed(0)
    ensemble = EnsembleMLP(3, 4, (5, 6), 2, activation="tanh")
    features = torch.randn(7, 4)
    values = ensemble(features)
    assert values.shape == (3, 7, 2)
    for member in range(3):
        x = features
        for k in range(3):
            x = x @ ensemble.weights[k][member].T + ensemble.biases[k][member]
            x = torch.tanh(x) if k < 2 else x
        torch.testing.assert_close(values[member], x)
    assert not torch.equal(values[0], values[1])


def test_batch_axes_are_kept() -> None:
    ensemble = EnsembleMLP(2, 4, (), 3)
    features = torch.randn(5, 6, 4)
    values = ensemble(features)
    assert values.shape == (2, 5, 6, 3)
    torch.testing.assert_close(values[:, 2], ensemble(features[2]))
    assert ensemble(features[0, 0]).shape == (2, 3)


def test_weights_and_biases_start_uniform_by_the_number_of_inputs() -> None:
    torch.manual_seed(0)
    ensemble = EnsembleMLP(2, 4, (400,), 100)
    layer = EnsembleLinear(2, 400, 100)
    starts = [
        (ensemble.weights[0], 0.5),
        (ensemble.biases[0], 0.5),
        (ensemble.weights[1], 0.05),
        (ensemble.biases[1], 0.05),
        (layer.weight, 0.05),
        (layer.bias, 0.05),
    ]
    for parameter, bound in starts:
        assert parameter.abs().max().item() <= bound
        # A uniform number in ±b has standard deviation b / √3; the fewest here are 200.
        assert parameter.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)
        assert not torch.equal(parameter[0], parameter[1])


def test_layers_start_orthogonal_on_request_each_by_itself() -> None:
    torch.manual_seed(0)
    ensemble = EnsembleMLP(2, 4, (6,), 3, init="orthogonal")
    first, last = ensemble.weights
    for member in range(2):
        torch.testing.assert_close(first[member].mT @ first[member], 2.0 * torch.eye(4))
        torch.testing.assert_close(last[member] @ last[member].mT, torch.eye(3))
    assert not torch.equal(first[0], first[1])
    assert not any(bias.any() for bias in ensemble.biases)


@pytest.mark.parametrize(
    "sizes", [(0, 4, (5,), 1), (2, 0, (5,), 1), (2, 4, (0,), 1), (2, 4, (), 0)]
)
def test_empty_ensembles_are_refused(sizes: tuple[int, int, tuple[int, ...], int]) -> None:
    with pytest.raises(ConfigError, match="must be a whole number of at least 1"):
        EnsembleMLP(*sizes)


def test_members_may_have_inputs_of_their_own() -> None:
    ensemble = EnsembleMLP(3, 4, (5,), None)
    features = torch.randn(3, 6, 7, 4)
    values = ensemble(features, is_per_member=True)
    assert values.shape == (3, 6, 7, 5)
    assert ensemble.out_features == 5
    for member in range(3):
        expected = ensemble(features[member])[member]
        torch.testing.assert_close(values[member], expected)
        assert bool((expected >= 0.0).all())  # without an output layer the last activation stays


@pytest.mark.parametrize("steps", [(), (2,), (2, 3)])
def test_a_layer_of_each_member_maps_its_own_inputs(steps: tuple[int, ...]) -> None:
    layer = EnsembleLinear(3, 4, 5)
    torch.nn.init.normal_(layer.bias)
    features = torch.randn(*steps, 3, 6, 4)
    mapped = layer(features)
    for member in range(3):
        expected = features[..., member, :, :] @ layer.weight[member].T + layer.bias[member]
        torch.testing.assert_close(mapped[..., member, :, :], expected)


def test_some_members_answer_as_they_do_among_all() -> None:
    ensemble = EnsembleMLP(4, 3, (5,), 2, layer_norm=True)
    features = torch.randn(6, 3)
    values = ensemble(features)
    torch.testing.assert_close(ensemble(features, members=slice(0, 1)), values[:1])
    chosen = torch.tensor([3, 1])
    torch.testing.assert_close(ensemble(features, members=chosen), values[chosen])


def _sizes_of_one_layer(ensemble: EnsembleMLP) -> tuple[Tensor, Tensor]:
    """Make a hidden layer that copies (1, 3) and an output that adds up, for one member."""
    ensemble.weights[0].data = torch.eye(2).unsqueeze(0)
    ensemble.weights[1].data = torch.tensor([[[1.0, 10.0]]])
    for bias in ensemble.biases:
        bias.data.zero_()
    return torch.tensor([[1.0, 3.0]]), torch.tensor([[[0.0, 1.25]]])


@pytest.mark.parametrize("probability", [0.01, 0.3, 0.9])
def test_each_number_is_dropped_with_the_same_probability(probability: float) -> None:
    kept = draw_dropout((300, 2, 1001), probability, torch.Generator().manual_seed(0))
    assert torch.equal(kept, torch.where(kept == 0.0, 0.0, 1.0 / (1.0 - probability)))
    dropped = (kept == 0.0).double()
    deviation = math.sqrt(probability * (1.0 - probability))
    for some in (dropped, dropped[:10], dropped[-10:]):
        error = some.mean().item() - probability
        assert abs(error) < 4.0 * deviation / math.sqrt(some.numel())
    flat = dropped.flatten()
    for lag in (1, 2, 1001):
        product = ((flat[lag:] - probability) * (flat[:-lag] - probability)).mean().item()
        assert abs(product) < 4.0 * deviation**2 / math.sqrt(flat.numel())
    again = draw_dropout((300, 2, 1001), probability, torch.Generator().manual_seed(0))
    assert torch.equal(again, kept)


def test_all_combinations_of_a_few_numbers_are_dropped_as_often_as_they_should_be() -> None:
    generator, counts = torch.Generator().manual_seed(0), torch.zeros(8)
    for _ in range(4000):
        dropped = draw_dropout((3,), 0.4, generator) == 0.0
        counts[int(dropped.int() @ torch.tensor([4, 2, 1], dtype=torch.int32))] += 1
    expected = 4000.0 * torch.tensor([0.4 ** bin(k).count("1") for k in range(8)])
    expected *= torch.tensor([0.6 ** (3 - bin(k).count("1")) for k in range(8)])
    chi_squared = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_squared < 20.3  # of 7 degrees of freedom, once in 200 times


def test_dropping_hardly_anything_drops_nothing() -> None:
    kept = draw_dropout((4, 5), 1e-300, torch.Generator())
    assert torch.equal(kept, torch.ones(4, 5))


def test_dropout_by_hand() -> None:
    ensemble = EnsembleMLP(1, 2, (2,), 1, dropout=0.2)
    features, noise = _sizes_of_one_layer(ensemble)
    assert ensemble.noise_size == 2
    assert ensemble(features).item() == 31.0  # without noise nothing is dropped
    assert ensemble(features, noise).item() == pytest.approx(10.0 * 3.0 * 1.25)


def test_normalized_layers_by_hand() -> None:
    ensemble = EnsembleMLP(1, 2, (2,), 1, layer_norm=True, dropout=0.2)
    features, noise = _sizes_of_one_layer(ensemble)
    ensemble.norm_scales[0].data = torch.tensor([[[2.0, 3.0]]])
    ensemble.norm_shifts[0].data = torch.tensor([[[5.0, 0.5]]])
    # (1, 3) is (-1, 1) when normalized, (0, 3.75) too, whose first number was dropped before.
    for drawn in (None, noise):
        assert ensemble(features, drawn).item() == pytest.approx(3.0 + 10.0 * 3.5, abs=1e-3)


def test_each_member_and_row_drops_by_numbers_of_its_own() -> None:
    torch.manual_seed(0)
    ensemble = EnsembleMLP(2, 3, (4, 5), 2, dropout=0.5)
    features, noise = torch.randn(6, 7, 3), draw_dropout((6, 7, 2, 9), 0.5, torch.Generator())
    values = ensemble(features, noise)
    assert values.shape == (2, 6, 7, 2)
    torch.testing.assert_close(ensemble(features[3], noise[3]), values[:, 3])
    for member in range(2):
        some = torch.tensor([member])
        alone = ensemble(features, noise[..., some, :], members=some)
        torch.testing.assert_close(alone[0], values[member])
    assert not torch.allclose(values, ensemble(features))


def test_graphs_compute_what_is_computed_without() -> None:
    ensemble = EnsembleMLP(3, 4, (5, 6), 2, layer_norm=True, dropout=0.3)
    features, chosen = torch.randn(7, 4), torch.tensor([2, 0])
    noise = draw_dropout((7, 2, 11), 0.3, torch.Generator())

    def call(features: Tensor, noise: Tensor) -> Tensor:
        values: Tensor = ensemble(features, noise, members=chosen)
        return values

    compiled = torch.compile(call, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(features, noise), call(features, noise))


@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_probabilities_of_dropping_are_below_one(dropout: float) -> None:
    with pytest.raises(ConfigError, match=r"dropout must be a number in \[0, 1\)"):
        EnsembleMLP(2, 3, (4,), 1, dropout=dropout)
