import pytest
import torch
from torch import Tensor

from rl_core.errors import ConfigError
from rl_core.nn.mlp import EnsembleLinear, EnsembleMLP, draw_dropout_noise


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
    return torch.tensor([[1.0, 3.0]]), torch.tensor([[[0.1, 0.3]]])


def test_the_noise_of_dropout_is_uniform_over_all_multiples_of_its_step() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = draw_dropout_noise((300, 2, 1001), generator) * 2.0**16
    assert torch.equal(drawn, drawn.round())
    assert (drawn.min().item(), drawn.max().item()) == (0.0, 2.0**16 - 1.0)
    counts = torch.histc(drawn, 16, 0.0, 2.0**16)
    assert (counts / drawn.numel() * 16.0 - 1.0).abs().max() < 0.02
    for k in range(4):  # the four of one random number alike, and apart from each other
        quarter = drawn.flatten()[k::4]
        assert quarter.mean().item() == pytest.approx(2.0**15, rel=0.01)
    pairs = torch.stack([drawn.flatten()[0:600_000:4], drawn.flatten()[1:600_000:4]])
    assert torch.corrcoef(pairs)[0, 1].abs() < 0.01
    assert draw_dropout_noise((3,), generator).shape == (3,)
    again = draw_dropout_noise((300, 2, 1001), torch.Generator().manual_seed(0)) * 2.0**16
    assert torch.equal(again, drawn)


def test_dropout_by_hand() -> None:
    ensemble = EnsembleMLP(1, 2, (2,), 1, dropout=0.2)
    features, noise = _sizes_of_one_layer(ensemble)
    assert ensemble.noise_size == 2
    assert ensemble(features).item() == 31.0  # without noise nothing is dropped
    # 0.1 < 0.2 drops the first number; the second grows by 1 / 0.8.
    assert ensemble(features, noise).item() == pytest.approx(10.0 * 3.0 / 0.8)


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
    features, noise = torch.randn(6, 7, 3), torch.rand(6, 7, 2, 9)
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
    features, noise, chosen = torch.randn(7, 4), torch.rand(7, 2, 11), torch.tensor([2, 0])

    def call(features: Tensor, noise: Tensor) -> Tensor:
        values: Tensor = ensemble(features, noise, members=chosen)
        return values

    compiled = torch.compile(call, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(features, noise), call(features, noise))


@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_probabilities_of_dropping_are_below_one(dropout: float) -> None:
    with pytest.raises(ConfigError, match=r"dropout must be a number in \[0, 1\)"):
        EnsembleMLP(2, 3, (4,), 1, dropout=dropout)
