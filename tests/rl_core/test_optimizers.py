from typing import Literal

import pytest
import torch
from torch import Tensor

from rl_core.errors import ConfigError
from rl_core.gradients import OptimizerConfig
from rl_core.gradients.optimizers import new_optimizer_state, optimizer_step
from rl_testing.stateful import check_same_state, copy_state

CONFIGS = {
    "adam": OptimizerConfig(name="adam", eps=1e-5, beta1=0.8, beta2=0.95),
    "adam-decayed": OptimizerConfig(name="adam", weight_decay=0.1),
    "adamw": OptimizerConfig(name="adamw", weight_decay=0.1),
    "rmsprop": OptimizerConfig(name="rmsprop", alpha=0.9, eps=1e-5),
    "rmsprop-momentum": OptimizerConfig(name="rmsprop", momentum=0.9, weight_decay=0.1),
    "sgd": OptimizerConfig(name="sgd"),
    "sgd-momentum": OptimizerConfig(name="sgd", momentum=0.9, weight_decay=0.1),
}


def _torch_optimizer(config: OptimizerConfig, parameter: Tensor) -> torch.optim.Optimizer:
    decay = config.weight_decay
    betas = (config.beta1, config.beta2)
    if config.name == "adam":
        return torch.optim.Adam([parameter], 0.01, betas, config.eps, decay)
    if config.name == "adamw":
        return torch.optim.AdamW([parameter], 0.01, betas, config.eps, decay)
    if config.name == "rmsprop":
        return torch.optim.RMSprop(
            [parameter], 0.01, config.alpha, config.eps, decay, config.momentum
        )
    return torch.optim.SGD([parameter], 0.01, config.momentum, weight_decay=decay)


@pytest.fixture(params=["by itself", "in a graph"])
def _where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take both forms of a step; that of a graph is plain PyTorch."""
    if request.param == "in a graph":
        monkeypatch.setattr("rl_core.gradients.optimizers.is_tracing", lambda: True)


@pytest.mark.usefixtures("_where")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_it_moves_as_torchs_own_optimizer(config: OptimizerConfig, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(7, generator=generator, dtype=dtype)
    theirs = ours.clone().requires_grad_()
    optimizer = _torch_optimizer(config, theirs)
    state = new_optimizer_state(config, ours)
    for _ in range(5):
        gradient = torch.randn(7, generator=generator, dtype=dtype)
        theirs.grad = gradient.clone()
        optimizer.step()
        optimizer_step(config, ours, gradient, state, torch.tensor(0.01), torch.tensor(True))
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("_where")
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_masked_step_changes_nothing(config: OptimizerConfig) -> None:
    parameters = torch.tensor([1.0, 2.0])
    state = new_optimizer_state(config, parameters)
    rate, gradient = torch.tensor(0.01), torch.tensor([1.0, -1.0])
    optimizer_step(config, parameters, gradient, state, rate, torch.tensor(True))
    before = copy_state({"parameters": parameters, "state": state})
    for bad in (gradient, torch.full((2,), torch.nan), torch.full((2,), torch.inf)):
        optimizer_step(config, parameters, bad, state, rate, torch.tensor(False))
        check_same_state({"parameters": parameters, "state": state}, before)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_both_forms_of_adam_go_on_from_each_other(
    name: Literal["adam", "adamw"], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = OptimizerConfig(name=name, weight_decay=0.1)
    rate, apply = torch.tensor(0.1), torch.tensor(True)
    ends = []
    for in_graph in (
        [False] * 4,
        [True] * 4,
        [False, True, True, False],
        [True, False, False, True],
    ):
        parameters = torch.tensor([1.0, -2.0])
        state = new_optimizer_state(config, parameters)
        for step, compiles in enumerate(in_graph):
            monkeypatch.setattr(
                "rl_core.gradients.optimizers.is_tracing", lambda answer=compiles: answer
            )
            gradient = torch.tensor([2.0 + step, 1.0 - step])
            optimizer_step(config, parameters, gradient, state, rate, apply)
        ends.append(parameters)
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=1e-5, atol=1e-6)


def test_moments_of_dead_units_stay_normal_numbers_in_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rl_core.gradients.optimizers.is_tracing", lambda: True)
    config, ours = OptimizerConfig(beta1=0.1, beta2=0.1), torch.tensor([1.0, 2.0, 3.0])
    theirs = ours.clone().requires_grad_()
    optimizer, state = _torch_optimizer(config, theirs), new_optimizer_state(config, ours)
    gradient = torch.tensor([1.0, -1.0, 1e-25])  # the last one's square is too small
    for _ in range(100):
        theirs.grad = gradient
        optimizer.step()
        optimizer_step(config, ours, gradient, state, torch.tensor(0.01), torch.tensor(True))
        gradient = torch.tensor([1.0, 0.0, 1e-25])
    torch.testing.assert_close(ours, theirs.detach())
    assert state["exp_avg"].tolist() == pytest.approx([1.0, 0.0, 1e-25], rel=1e-6, abs=0.0)
    assert (state["exp_avg_sq"] > torch.finfo(torch.float32).tiny).all()


def test_the_first_steps_by_hand() -> None:
    parameters, gradient = torch.tensor([1.0]), torch.tensor([2.0])
    rate, apply = torch.tensor(0.1), torch.tensor(True)
    sgd = OptimizerConfig(name="sgd", momentum=0.5)
    state = new_optimizer_state(sgd, parameters)
    optimizer_step(sgd, parameters, gradient, state, rate, apply)
    assert parameters.item() == pytest.approx(1.0 - 0.1 * 2.0)
    optimizer_step(sgd, parameters, gradient, state, rate, apply)
    assert parameters.item() == pytest.approx(0.8 - 0.1 * (0.5 * 2.0 + 2.0))

    parameters = torch.tensor([1.0])
    rmsprop = OptimizerConfig(name="rmsprop", alpha=0.75, eps=1e-12)
    state = new_optimizer_state(rmsprop, parameters)
    optimizer_step(rmsprop, parameters, gradient, state, rate, apply)
    assert parameters.item() == pytest.approx(1.0 - 0.1 * 2.0 / (0.25 * 4.0) ** 0.5)


def test_an_unknown_optimizer_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'adam'"):
        OptimizerConfig(name="adm")  # type: ignore[arg-type]  # the user's mistake


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("beta1", 1.0),
        ("beta2", -0.1),
        ("alpha", 1.0),
        ("momentum", 1.0),
        ("eps", -1e-8),
        ("eps", 0.0),
        ("weight_decay", -1.0),
        ("eps", float("nan")),
    ],
)
def test_a_number_out_of_range_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{field} must be"):
        OptimizerConfig(**{field: value})  # type: ignore[arg-type]  # one field by name


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("adam", "momentum"),
        ("adamw", "alpha"),
        ("rmsprop", "beta1"),
        ("sgd", "beta2"),
        ("sgd", "eps"),
        ("sgd", "alpha"),
    ],
)
def test_a_number_that_the_optimizer_does_not_use_is_refused(name: str, field: str) -> None:
    message = f"^{field} has no effect with name='{name}'; leave it out, or set name to"
    with pytest.raises(ConfigError, match=message):
        OptimizerConfig(**{"name": name, field: 0.5})  # type: ignore[arg-type]  # one field by name


@pytest.mark.parametrize(("field", "value"), [("eps", None), ("beta1", "0.9"), ("name", None)])
def test_a_value_of_another_type_is_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{field} must be .*, got {value!r}"):
        OptimizerConfig(**{field: value})  # type: ignore[arg-type]  # one field by name
