import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from rl_core.gradients.trust_region import ConstrainedStep, conjugate_gradient, constrained_step

START = {"x": torch.zeros(1, dtype=torch.float64), "y": torch.zeros(1, dtype=torch.float64)}


def _quadratic(parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """A slope of (2, 8), and a divergence with the Hessian diag(2, 8)."""
    x, y = parameters["x"].sum(), parameters["y"].sum()
    return 2.0 * x + 8.0 * y, x.square() + 4.0 * y.square()


def _values(step: ConstrainedStep) -> list[float]:
    return [step.parameters["x"].item(), step.parameters["y"].item()]


# Eq. (1)


def test_conjugate_gradients_solve_in_as_many_steps_as_there_are_numbers() -> None:
    matrix = torch.tensor([[4.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    target = torch.tensor([1.0, 2.0], dtype=torch.float64)
    # the textbook's example: 1/11 and 7/11
    solution, residual = conjugate_gradient(lambda v: matrix @ v, target, num_steps=2)
    torch.testing.assert_close(solution, torch.tensor([1.0, 7.0], dtype=torch.float64) / 11.0)
    torch.testing.assert_close(residual, torch.zeros_like(target))
    one, residual = conjugate_gradient(lambda v: matrix @ v, target, num_steps=1)
    torch.testing.assert_close(one, target * 5.0 / 20.0)  # b'b / b'Hb
    torch.testing.assert_close(residual, target - matrix @ one)


def test_conjugate_gradients_end_at_the_tolerance() -> None:
    calls = []

    def product(vector: Tensor) -> Tensor:
        calls.append(vector)
        return 2.0 * vector

    assert conjugate_gradient(product, torch.ones(3))[0].tolist() == [0.5] * 3
    assert len(calls) == 1
    assert conjugate_gradient(product, torch.zeros(3))[0].tolist() == [0.0] * 3
    assert len(calls) == 1


# Eq. (2) and (3)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_a_step_does_not_depend_on_the_scale_of_the_loss(scale: float) -> None:
    def scaled(parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        loss, kl = _quadratic(parameters)
        return scale * loss, kl

    step = constrained_step(scaled, START, 0.45, damping=0.0)
    assert step.fraction == 1.0
    assert _values(step) == pytest.approx([-0.3, -0.3])


def test_a_full_step_by_hand() -> None:
    # s = (1, 1), s'Hs = 10, sqrt(2 * 0.45 / 10) = 0.3; the KL of it is 0.09 + 0.36
    step = constrained_step(_quadratic, START, 0.45, damping=0.0)
    assert step.fraction == 1.0
    assert _values(step) == pytest.approx([-0.3, -0.3])
    assert step.loss_before.item() == 0.0
    assert step.loss.item() == pytest.approx(-3.0)
    assert step.kl.item() == pytest.approx(0.45)
    assert step.kl.item() <= 0.45
    assert step.gradient_norm.item() == pytest.approx(math.sqrt(68.0))


def test_damping_adds_to_the_hessian() -> None:
    # s = (2 / 4, 8 / 10), s'(H + 2)s = 2 * 0.5 + 8 * 0.8 = 7.4
    step = constrained_step(_quadratic, START, 0.45, damping=2.0)
    length = math.sqrt(0.9 / 7.4)
    assert _values(step) == pytest.approx([-0.5 * length, -0.8 * length])


def test_the_line_search_goes_back_until_the_divergence_fits() -> None:
    def steeper(parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        loss, kl = _quadratic(parameters)
        return loss, kl + 10.0 * kl.square()

    # at a fraction f of the full step the KL is 0.45 f² + 2.025 f⁴: 1.118 at 0.8, 0.499 at 0.64
    # and 0.320 at 0.512
    step = constrained_step(steeper, START, 0.45, damping=0.0)
    assert step.fraction == pytest.approx(0.8**3)
    assert step.kl.item() == pytest.approx(0.45 * 0.512**2 + 2.025 * 0.512**4)
    too_few = constrained_step(steeper, START, 0.45, damping=0.0, num_backtracks=3)
    assert too_few.fraction == 0.0


def test_parameters_stay_where_no_step_is_accepted() -> None:
    start = {name: tensor + 1.0 for name, tensor in START.items()}

    def rising(parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        moved = {name: parameters[name] - 1.0 for name in parameters}
        slope, kl = _quadratic(moved)
        return slope + 1e6 * kl.sqrt().detach(), kl  # its gradient does not see the wall

    before = {name: tensor.clone() for name, tensor in start.items()}
    step = constrained_step(rising, start, 0.45, damping=0.0)
    assert step.fraction == 0.0
    assert step.kl.item() == 0.0
    for name in start:
        assert torch.equal(step.parameters[name], before[name])
        assert torch.equal(start[name], before[name])
        assert not step.parameters[name].requires_grad


@pytest.mark.parametrize("poison", ["loss", "kl"])
def test_a_direction_that_is_no_number_moves_nothing(poison: str) -> None:
    def broken(parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        loss, kl = _quadratic(parameters)
        nan = parameters["x"].sum() * math.nan
        return (loss + nan, kl) if poison == "loss" else (loss, kl + nan.square())

    step = constrained_step(broken, START, 0.45)
    assert step.fraction == 0.0
    assert step.is_finite == (poison == "kl")
    assert _values(step) == [0.0, 0.0]


def test_a_step_is_finite_where_both_its_loss_and_its_gradient_are() -> None:
    def endless(parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        loss, kl = _quadratic(parameters)
        return loss + math.inf, kl

    def vertical(parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        loss, kl = _quadratic(parameters)
        return loss + parameters["x"].abs().sqrt().sum(), kl

    for objective in (endless, vertical):
        step = constrained_step(objective, START, 0.45)
        assert step.loss_before.isfinite() != step.gradient_norm.isfinite()
        assert not step.is_finite


def test_a_loss_without_a_slope_moves_nothing() -> None:
    step = constrained_step(lambda at: (0.0 * _quadratic(at)[0], _quadratic(at)[1]), START, 0.45)
    assert step.fraction == 0.0
    assert _values(step) == [0.0, 0.0]


def test_a_divergence_without_curvature_moves_nothing() -> None:
    def flat(parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        loss, _ = _quadratic(parameters)  # its direction would be endless
        return loss, (parameters["x"].clamp(-0.1, 0.1) ** 4).sum()

    step = constrained_step(flat, START, 0.45, damping=0.0)
    assert step.fraction == 0.0
    assert _values(step) == [0.0, 0.0]


def test_the_line_search_decides_where_the_curvature_is_negative() -> None:
    def saddle(parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        x = parameters["x"].sum()
        return 2.0 * x - 10.0 * x.square(), -x.square()

    # s = 2 / -2, s'Hs = -2, which has no root: the length is 1
    step = constrained_step(saddle, {"x": START["x"]}, 0.45, damping=0.0)
    assert step.fraction == 1.0
    assert step.parameters["x"].item() == pytest.approx(1.0)


def test_the_curvature_may_be_that_of_fewer_samples() -> None:
    # H = diag(8, 8) instead: s = (1/4, 1), s'Hs = 8.5
    def round_(parameters: Mapping[str, Tensor]) -> Tensor:
        return 4.0 * (parameters["x"].square() + parameters["y"].square()).sum()

    step = constrained_step(_quadratic, START, 0.45, divergence=round_, damping=0.0)
    length = math.sqrt(0.9 / 8.5)
    assert _values(step) == pytest.approx([-0.25 * length, -length])
    assert step.kl.item() == pytest.approx((0.0625 + 4.0) * length**2)


# Eq. (4)


def test_products_through_an_adaptation_are_those_of_the_whole_function() -> None:
    start = {"x": torch.tensor([0.5, -1.0]).double(), "y": torch.tensor([2.0]).double()}
    target = torch.tensor([0.6, 1.5, -0.2]).double()

    def adapt(parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        x, y = parameters["x"], parameters["y"]
        return {"z": torch.cat([x * y, x.square()[:1] + y]), "y": y.sin()}

    before = adapt(start)

    def objective(adapted: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        distance = {name: adapted[name] - before[name] for name in before}
        kl = distance["z"].square().sum() + 3.0 * (distance["y"] + distance["z"][0]).square().sum()
        return (adapted["z"] - target).square().sum() + adapted["y"].sum(), kl

    plain = constrained_step(lambda at: objective(adapt(at)), start, 0.1, damping=0.01)
    step = constrained_step(objective, start, 0.1, adapt=adapt, damping=0.01)
    assert step.fraction > 0.0
    assert step.fraction == plain.fraction
    torch.testing.assert_close(step.parameters, plain.parameters)


def test_parameters_that_nothing_depends_on_stay() -> None:
    start = {**START, "idle": torch.ones(2, dtype=torch.float64)}
    step = constrained_step(_quadratic, start, 0.45)
    assert step.fraction > 0.0
    assert step.parameters["idle"].tolist() == [1.0, 1.0]
