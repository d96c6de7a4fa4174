import copy

import pytest
import torch
from torch import Tensor, nn

from rl_core.errors import ConfigError
from rl_core.gradients import ParameterVector, call_frozen, parameter_places


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def test_the_module_goes_on_with_the_same_numbers() -> None:
    net, untouched = _net(), _net()
    vector = ParameterVector(dict(net.named_parameters()))
    assert vector.values.shape == (3 * 4 + 4 + 4 + 1,)
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    assert torch.equal(net(x), untouched(x))


def test_the_vector_and_the_module_are_one_memory() -> None:
    net = _net()
    vector = ParameterVector(dict(net.named_parameters()))
    vector.values.zero_()
    assert not any(bool(parameter.any()) for parameter in net.parameters())
    net.load_state_dict(_net().state_dict())
    expected = torch.cat([parameter.detach().flatten() for parameter in _net().parameters()])
    assert torch.equal(vector.values, expected)
    vector.check_tied()


def test_backward_writes_into_the_gradient() -> None:
    net = _net()
    vector = ParameterVector(dict(net.named_parameters()))
    net(torch.ones(1, 3)).sum().backward()
    pieces = vector.split(vector.gradient)
    assert pieces["2.bias"].tolist() == [1.0]
    assert all(
        torch.equal(pieces[name], parameter.grad)
        for name, parameter in net.named_parameters()
        if parameter.grad is not None
    )
    net.zero_grad(set_to_none=False)
    assert not vector.gradient.any()
    vector.check_tied()


def test_a_vector_is_split_into_the_parameters() -> None:
    net = _net()
    vector = ParameterVector(dict(net.named_parameters()))
    pieces = vector.split(vector.values)
    assert {name: piece.shape for name, piece in pieces.items()} == {
        name: parameter.shape for name, parameter in net.named_parameters()
    }
    joined = torch.cat([piece.reshape(-1) for piece in pieces.values()])
    assert torch.equal(joined, vector.values)


def test_a_number_without_axes_is_a_parameter_too() -> None:
    temperature = nn.Parameter(torch.tensor(0.5))
    vector = ParameterVector({"temperature": temperature})
    vector.values.mul_(2.0)
    assert temperature.item() == 1.0


def test_mixed_dtypes_are_refused() -> None:
    net = _net()
    net[2].double()
    with pytest.raises(ConfigError, match=r"float32 on cpu, torch\.float64 on cpu"):
        ParameterVector(dict(net.named_parameters()))


def test_a_module_that_was_cast_is_noticed() -> None:
    net = _net()
    vector = ParameterVector(dict(net.named_parameters()))
    net.double()
    with pytest.raises(ConfigError, match="moved or replaced"):
        vector.check_tied()


class Shared(nn.Module):
    """One layer reached by two paths, and one weight held by two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(2, 2))
        self.second = nn.Sequential(self.first[0])
        self.tied = nn.Linear(2, 2, bias=False)
        self.again = nn.Linear(2, 2, bias=False)
        self.again.weight = self.tied.weight

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.again(self.tied(self.second(self.first(x))))
        return output


def test_a_place_is_named_once_and_a_tied_weight_at_each_of_its_places() -> None:
    module = Shared()
    assert parameter_places(module) == {
        "first.0.weight": ("first.0.weight",),
        "first.0.bias": ("first.0.bias",),
        "tied.weight": ("tied.weight", "again.weight"),
    }
    assert list(parameter_places(module)) == [name for name, _ in module.named_parameters()]


def test_a_frozen_call_lets_gradients_reach_the_inputs_only() -> None:
    module, x = Shared(), torch.ones(1, 2, requires_grad=True)
    before = dict(module.named_parameters())
    frozen = call_frozen(module, x)
    assert torch.equal(frozen, module(x))
    frozen.sum().backward()
    expected = torch.autograd.grad(module(x).sum(), x)[0]
    assert x.grad is not None
    assert torch.equal(x.grad, expected)
    assert all(parameter.grad is None for parameter in module.parameters())
    assert all(parameter is before[name] for name, parameter in module.named_parameters())


def test_a_copy_has_the_numbers_and_gradients_in_memory_of_its_own() -> None:
    net = _net()
    vector = ParameterVector(dict(net.named_parameters()))
    net(torch.ones(1, 3)).sum().backward()
    net[2].requires_grad_(False)  # for now
    gradient, numbers = vector.gradient.clone(), vector.values.clone()
    copied, its_vector, its_values = copy.deepcopy((net, vector, vector.values))
    assert its_values is its_vector.values
    assert torch.equal(its_vector.gradient, gradient)
    copied.requires_grad_(True)
    its_vector.check_tied()
    its_vector.values.zero_()
    its_vector.gradient.zero_()
    assert not any(bool(parameter.any()) for parameter in copied.parameters())
    assert torch.equal(vector.values, numbers)
    assert torch.equal(vector.gradient, gradient)
