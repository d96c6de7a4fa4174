import pytest
import torch

from rl_core.errors import ConfigError
from rl_core.nn.ensemble import EnsembleLinear, EnsembleMLP


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


def test_every_member_is_orthogonal_by_itself() -> None:
    ensemble = EnsembleMLP(2, 8, (4,), 1)
    for weight in ensemble.weights[0]:
        torch.testing.assert_close(weight @ weight.T, 2.0 * torch.eye(4))
    assert all(bool(bias.eq(0.0).all()) for bias in ensemble.biases)


@pytest.mark.parametrize(
    "sizes", [(0, 4, (5,), 1), (2, 0, (5,), 1), (2, 4, (0,), 1), (2, 4, (), 0)]
)
def test_empty_ensembles_are_refused(sizes: tuple[int, int, tuple[int, ...], int]) -> None:
    with pytest.raises(ConfigError, match="at least one member"):
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
