import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from rl_core.compile import has_cpp_compiler
from rl_core.compile.function import CompileMode
from rl_core.errors import CheckpointError, ConfigError, DataError, NonFiniteError
from rl_core.gradients import (
    Gradients,
    GradientStep,
    HyperParameters,
    LossModule,
    LossOutput,
    Noise,
    OnNonFinite,
    OptimizerConfig,
    ParameterGroup,
    TargetNetwork,
    Weights,
)
from rl_testing.stateful import check_same_state, copy_state

SGD = OptimizerConfig(name="sgd")
Loss = Callable[[Tensor, Noise], LossOutput]


class Numbers(nn.Module):
    """A few parameters, as a module."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor(values))


def _step(
    modules: Mapping[str, nn.Module],
    loss: Loss,
    groups: Sequence[ParameterGroup],
    targets: Sequence[TargetNetwork] = (),
    *,
    hyper: Mapping[str, float] | None = None,
) -> GradientStep[Tensor]:
    numbers = HyperParameters({"learning_rate": 0.1, **(hyper or {})})
    return GradientStep(LossModule(loss, modules, numbers), numbers, groups, targets)


def _group(name: str, **options: object) -> ParameterGroup:
    group = ParameterGroup(name=name, modules=(name,), optimizer=SGD)
    return replace(group, **options)  # type: ignore[arg-type]  # fields of the group


def _linear(*modules: Numbers) -> Loss:
    """The batch is the gradient of the first module, twice the batch that of the second..."""

    def loss(batch: Tensor, noise: Noise) -> LossOutput:
        total = sum(((k + 1) * (m.x * batch).sum() for k, m in enumerate(modules)), torch.zeros(()))
        return LossOutput(total, {"loss/total": total})

    return loss


def _pair(first: ParameterGroup, second: ParameterGroup, **hyper: float) -> GradientStep[Tensor]:
    a, b = Numbers(0.0, 0.0), Numbers(0.0, 0.0)
    return _step({"a": a, "b": b}, _linear(a, b), [first, second], hyper=hyper)


def test_a_step_goes_down_the_gradient() -> None:
    a = Numbers(1.0, 2.0)
    step = _step({"a": a}, _linear(a), [_group("a")])
    step.step(torch.tensor([3.0, -4.0]), {})
    torch.testing.assert_close(a.x.detach(), torch.tensor([0.7, 2.4]))
    assert step.count == 1


def test_the_gradient_is_computed_anew_in_every_step() -> None:
    a = Numbers(0.0)
    step = _step({"a": a}, _linear(a), [_group("a")])
    for gradient in (1.0, 2.0):
        step.step(torch.tensor([gradient]), {})
    assert a.x.item() == pytest.approx(-0.3)


def test_clipping_shortens_a_long_gradient_only() -> None:
    a = Numbers(0.0, 0.0)
    step = _step({"a": a}, _linear(a), [_group("a", max_grad_norm="bound")], hyper={"bound": 1.0})
    step.step(torch.tensor([3.0, -4.0]), {})
    torch.testing.assert_close(a.x.detach(), torch.tensor([-0.06, 0.08]))
    step.step(torch.tensor([0.3, 0.4]), {})
    torch.testing.assert_close(a.x.detach(), torch.tensor([-0.09, 0.04]))
    assert step.read_metrics()["gradients/a_norm"] == pytest.approx((5.0 + 0.5) / 2)


def test_groups_with_one_bound_are_clipped_apart() -> None:
    # Gradients (0.3, 0.4), which is shorter than the bound, and (0.6, 0.8) of its length.
    groups = _group("a", max_grad_norm="bound"), _group("b", max_grad_norm="bound")
    step = _pair(*groups, bound=0.5)
    step.step(torch.tensor([0.3, 0.4]), {})
    torch.testing.assert_close(step.vectors["a"].values, torch.tensor([-0.03, -0.04]))
    torch.testing.assert_close(step.vectors["b"].values, torch.tensor([-0.03, -0.04]))


def test_joint_groups_are_clipped_by_their_joint_norm() -> None:
    # Gradients (1, 2) and (2, 4): the joint norm is 5.
    groups = [replace(_group(name, max_grad_norm="bound"), joint_norm=True) for name in "ab"]
    step = _pair(groups[0], groups[1], bound=1.0)
    step.step(torch.tensor([1.0, 2.0]), {})
    torch.testing.assert_close(step.vectors["a"].values, torch.tensor([-0.02, -0.04]))
    torch.testing.assert_close(step.vectors["b"].values, torch.tensor([-0.04, -0.08]))


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"max_grad_norm": "bound"}, [-0.06, -0.08]),
        ({"max_grad_norm": "long", "joint_norm": True}, [-0.6, -0.8]),
    ],
)
def test_a_joint_norm_is_of_joint_groups_with_the_same_bound(
    other: dict[str, object], expected: list[float]
) -> None:
    # Gradients (3, 4) and (6, 8), whose joint norm would be 11.2.
    first = _group("a", max_grad_norm="bound", joint_norm=True)
    step = _pair(first, _group("b", **other), bound=1.0, long=100.0)
    step.step(torch.tensor([3.0, 4.0]), {})
    torch.testing.assert_close(step.vectors["a"].values, torch.tensor([-0.06, -0.08]))
    torch.testing.assert_close(step.vectors["b"].values, torch.tensor(expected))


def test_groups_with_bounds_of_their_own_are_clipped_apart() -> None:
    groups = _group("a", max_grad_norm="short"), _group("b", max_grad_norm="long")
    step = _pair(*groups, short=0.5, long=100.0)
    step.step(torch.tensor([3.0, 4.0]), {})
    torch.testing.assert_close(step.vectors["a"].values, torch.tensor([-0.03, -0.04]))
    torch.testing.assert_close(step.vectors["b"].values, torch.tensor([-0.6, -0.8]))


def test_each_group_has_its_own_learning_rate_and_optimizer() -> None:
    second = _group("b", learning_rate="slow", optimizer=OptimizerConfig(name="adam"))
    step = _pair(_group("a"), second, slow=0.01)
    step.step(torch.tensor([1.0, -2.0]), {})
    torch.testing.assert_close(step.vectors["a"].values, torch.tensor([-0.1, 0.2]))
    # Adam's first step is the rate itself, against the sign of the gradient.
    torch.testing.assert_close(step.vectors["b"].values, torch.tensor([-0.01, 0.01]))


def test_a_group_may_move_every_other_step() -> None:
    step = _pair(_group("a"), _group("b", every=2, optimizer=OptimizerConfig(name="adam")))
    moved = []
    for _ in range(4):
        before = step.vectors["b"].values.clone()
        step.step(torch.tensor([1.0, 1.0]), {})
        moved.append(not torch.equal(step.vectors["b"].values, before))
    assert moved == [False, True, False, True]
    assert step.vectors["a"].values.tolist() == pytest.approx([-0.4, -0.4])
    assert step.optimizer_states["b"]["step"] == 2


def test_a_group_that_does_not_move_clips_nobody() -> None:
    groups = [replace(_group(name, max_grad_norm="bound"), joint_norm=True) for name in "ab"]
    step = _pair(groups[0], replace(groups[1], every=2), bound=1.0)
    step.step(torch.tensor([3.0, 4.0]), {})
    torch.testing.assert_close(step.vectors["a"].values, torch.tensor([-0.06, -0.08]))


def _followed(**target: object) -> tuple[GradientStep[Tensor], Numbers]:
    a, slow = Numbers(1.0), Numbers(1.0)
    network = TargetNetwork(module="slow", source="a", tau="tau")
    step = _step(
        {"a": a, "slow": slow},
        _linear(a),
        [_group("a")],
        [replace(network, **target)],  # type: ignore[arg-type]  # fields of the target
        hyper={"tau": 0.25},
    )
    return step, slow


def test_a_target_moves_towards_the_parameters_after_the_step() -> None:
    step, slow = _followed()
    step.step(torch.tensor([4.0]), {})  # a: 1 -> 0.6
    assert slow.x.item() == pytest.approx(0.75 * 1.0 + 0.25 * 0.6)


def test_a_target_may_move_every_other_step() -> None:
    step, slow = _followed(every=2)
    step.step(torch.tensor([4.0]), {})
    assert slow.x.item() == 1.0
    step.step(torch.tensor([4.0]), {})  # a: 0.6 -> 0.2
    assert slow.x.item() == pytest.approx(0.75 * 1.0 + 0.25 * 0.2)


def test_a_target_follows_a_part_of_what_a_group_learns() -> None:
    net = nn.Module()
    net.first, net.second, net.third = Numbers(1.0), Numbers(2.0, 3.0), Numbers(4.0)
    slow = Numbers(0.0, 0.0)

    def loss(batch: Tensor, noise: Noise) -> LossOutput:
        return LossOutput(sum((p.sum() for p in net.parameters()), torch.zeros(())))

    target = TargetNetwork(module="slow", source="net.second", tau="tau")
    step = _step({"net": net, "slow": slow}, loss, [_group("net")], [target], hyper={"tau": 0.5})
    step.step(torch.zeros(1), {})
    assert slow.x.tolist() == pytest.approx([0.5 * 1.9, 0.5 * 2.9])
    assert not slow.x.requires_grad


def test_a_target_follows_no_module_whose_name_goes_on() -> None:
    a, longer, slow = Numbers(1.0), Numbers(5.0), Numbers(1.0)
    step = _step(
        {"a": a, "ab": longer, "slow": slow},
        _linear(a, longer),
        [_group("both", modules=("a", "ab"))],
        [TargetNetwork(module="slow", source="a", tau="tau")],
        hyper={"tau": 0.5},
    )
    step.step(torch.tensor([1.0]), {})
    assert [n.x.item() for n in (a, longer, slow)] == pytest.approx([0.9, 4.8, 0.95])


def test_a_target_must_follow_parameters_of_one_group() -> None:
    net = nn.Module()
    net.first, net.second = Numbers(1.0), Numbers(2.0)
    groups = [
        replace(_group("one"), modules=("net.first",)),
        replace(_group("two"), modules=("net.second",)),
    ]
    slow = copy.deepcopy(net)
    target = TargetNetwork(module="slow", source="net", tau="tau")
    with pytest.raises(ConfigError, match="one parameter group learn all of them"):
        _step({"net": net, "slow": slow}, _linear(), groups, [target], hyper={"tau": 0.5})
    missing = TargetNetwork(module="slwo", source="net", tau="tau")
    with pytest.raises(ConfigError, match="the loss has no module 'slwo'"):
        _step({"net": net, "slow": slow}, _linear(), groups, [missing], hyper={"tau": 0.5})


def test_a_target_leaves_alone_what_is_not_learned() -> None:
    """Such as an encoder that was trained before."""
    encoder, head = Numbers(5.0).requires_grad_(False), Numbers(1.0)
    net = nn.Sequential(encoder, head)
    slow = copy.deepcopy(net)
    target = TargetNetwork(module="slow", source="net", tau="tau")
    step = _step(
        {"net": net, "slow": slow}, _linear(head), [_group("net")], [target], hyper={"tau": 0.5}
    )
    step.step(torch.ones(1), {})
    assert [p.item() for p in slow.parameters()] == pytest.approx([5.0, 0.95])


def test_a_targets_buffers_are_those_of_its_source_once_a_phase_begins() -> None:
    a, slow = Numbers(1.0), Numbers(1.0)
    for module in (a, slow):
        module.register_buffer("mean", torch.zeros(2))
    target = TargetNetwork(module="slow", source="a", tau="tau")
    step = _step({"a": a, "slow": slow}, _linear(a), [_group("a")], [target], hyper={"tau": 0.5})
    a.get_buffer("mean").fill_(3.0)
    step.step(torch.ones(1), {})
    assert slow.get_buffer("mean").tolist() == [0.0, 0.0]
    step.begin_update()
    assert slow.get_buffer("mean").tolist() == [3.0, 3.0]


@pytest.mark.parametrize("compile_mode", ["off", "on"])
def test_a_rare_target_needs_no_graph_of_its_own(compile_mode: CompileMode) -> None:
    if compile_mode == "on" and not has_cpp_compiler():
        pytest.skip("no C++ compiler")
    step, slow = _followed(every=3, tau="one")
    step._hyper.register_buffer("one", torch.tensor(1.0))
    step.compiled.mode = compile_mode
    seen = []
    for gradient in (1.0, 1.0, 1.0, 1.0, 1.0, math.nan):
        step.step(torch.tensor([gradient]), {})
        seen.append(slow.x.item())
    # After 3 steps the source is at 0.7; the sixth is not finite, and the target stays.
    assert seen == pytest.approx([1.0, 1.0, 0.7, 0.7, 0.7, 0.7])
    assert len(step.compiled) == (1 if compile_mode == "on" else 0)


@pytest.mark.parametrize("compile_mode", ["off", "on"])
def test_a_loss_may_differentiate_and_change_buffers(compile_mode: CompileMode) -> None:
    if compile_mode == "on" and not has_cpp_compiler():
        pytest.skip("no C++ compiler")
    a = Numbers(1.0)
    a.register_buffer("calls", torch.zeros(()))

    def loss(batch: Tensor, noise: Noise) -> LossOutput:
        (slope,) = torch.autograd.grad((a.x**3 * batch).sum(), a.x, create_graph=True)
        a.get_buffer("calls").add_(1.0)
        return LossOutput(slope.square().sum(), {"loss/a": slope.sum()})

    step = _step({"a": a}, loss, [_group("a")])
    step.compiled.mode = compile_mode
    # The loss is (3 x²)², and its slope 36 x³: 1 - 0.1 * 36 at first, then -2.6 + 63.2736.
    for expected in (-2.6, 60.6736):
        step.step(torch.ones(1), {})
        assert a.x.item() == pytest.approx(expected)
    assert a.get_buffer("calls").item() == 2.0


def test_what_nobody_learns_may_have_another_dtype() -> None:
    a, b = Numbers(1.0), Numbers(3.0)
    b.to(torch.bfloat16).requires_grad_(False)
    step = _step({"a": a, "b": b}, _linear(a), [_group("a")])
    step.step(torch.ones(1), {})
    assert list(step.vectors) == ["a"]
    assert b.x.dtype == torch.bfloat16


@pytest.mark.parametrize("compile_mode", ["off", "on"])
def test_a_loss_leaves_out_what_is_not_due(compile_mode: CompileMode) -> None:
    if compile_mode == "on" and not has_cpp_compiler():
        pytest.skip("no C++ compiler")
    a, b = Numbers(0.0), Numbers(0.0)

    def loss(batch: Tensor, noise: Noise) -> LossOutput:
        total, metrics = (a.x * batch).sum(), {"loss/a": batch.sum()}
        if module.is_due("b"):
            total = total + (b.x * batch).sum()
            metrics["loss/b"] = 10.0 * batch.sum()
        return LossOutput(total, metrics)

    numbers = HyperParameters({"learning_rate": 0.1})
    module = LossModule(loss, {"a": a, "b": b}, numbers)
    step = GradientStep(module, numbers, [_group("a"), _group("b", every=2)])
    step.compiled.mode = compile_mode
    for value in (1.0, 2.0, 3.0, 4.0):
        step.step(torch.tensor([value]), {})
    assert a.x.item() == pytest.approx(-1.0)
    assert b.x.item() == pytest.approx(-0.6)
    # Each metric is the mean over the steps that had it.
    assert step.read_metrics() == pytest.approx(
        {"loss/a": 2.5, "loss/b": 30.0, "gradients/a_norm": 2.5, "gradients/b_norm": 3.0}
    )
    assert module.is_due("b")  # outside a step, everything is


def test_a_target_stays_where_the_step_was_not_finite_or_the_rate_is_zero() -> None:
    step, slow = _followed()
    step.step(torch.tensor([4.0]), {})
    before = slow.x.item()
    step.step(torch.tensor([math.nan]), {})
    assert slow.x.item() == before
    step.guard.clear()
    step._hyper["learning_rate"].fill_(0.0)
    step.step(torch.tensor([4.0]), {})
    assert slow.x.item() == before


def test_it_learns_if_any_group_does() -> None:
    for rates, expected in (((0.1, 0.0), True), ((0.0, 0.1), True), ((0.0, 0.0), False)):
        groups = _group("a", learning_rate="rate"), _group("b", learning_rate="slow")
        assert _pair(*groups, rate=rates[0], slow=rates[1]).learns is expected


def test_a_rate_of_zero_leaves_parameters_and_moments_alone() -> None:
    for name in ("adam", "adamw", "rmsprop", "sgd"):
        a = Numbers(1.0, 2.0)
        momentum = 0.9 if name in ("rmsprop", "sgd") else 0.0
        config = OptimizerConfig(name=name, momentum=momentum, weight_decay=0.1)
        step = _step({"a": a}, _linear(a), [_group("a", optimizer=config)])
        step.step(torch.tensor([1.0, -1.0]), {})
        before = copy_state({"x": a.x, "states": step.optimizer_states})
        step._hyper["learning_rate"].fill_(0.0)
        assert not step.learns
        step.step(torch.tensor([1.0, -1.0]), {})
        check_same_state({"x": a.x, "states": step.optimizer_states}, before)
        assert step.read_metrics()["loss/total"] != 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_bad_group_holds_back_all(bad: float) -> None:
    a, b = Numbers(1.0), Numbers(2.0)

    def loss(batch: Tensor, noise: Noise) -> LossOutput:
        return LossOutput(a.x.sum() + (b.x * batch).sum(), {"loss/a": a.x.sum()})

    adam = OptimizerConfig(name="adam")
    groups = [_group("a", optimizer=adam), _group("b", optimizer=adam)]
    step = _step({"a": a, "b": b}, loss, groups)
    step.step(torch.tensor(bad), {})
    assert (a.x.item(), b.x.item()) == (1.0, 2.0)
    assert step.optimizer_states["a"]["step"] == 0
    with pytest.raises(NonFiniteError, match="gradient step 1 had"):
        step.read_metrics()
    assert step.read_metrics() == {}


def test_a_finite_loss_with_an_infinite_gradient_changes_nothing() -> None:
    a = Numbers(0.0)
    step = _step({"a": a}, lambda batch, noise: LossOutput(a.x.sqrt().sum()), [_group("a")])
    step.step(torch.zeros(()), {})
    assert a.x.item() == 0.0
    with pytest.raises(NonFiniteError):
        step.read_metrics()


def _nan_at(bad: int, mode: OnNonFinite) -> tuple[GradientStep[Tensor], Numbers]:
    """Take a hundred steps, one of which is not finite, on batches that hold their number."""
    a = Numbers(0.0)

    def loss(batch: Tensor, noise: Noise) -> LossOutput:
        term = torch.where(batch == bad, torch.nan, 1.0)
        return LossOutput(a.x.sum() * term + 0.0 * noise["n"])

    step = _step({"a": a}, loss, [_group("a")])
    step.guard.mode = mode
    for number in range(1, 101):
        step.step(torch.tensor(float(number)), {"n": torch.tensor(-float(number))})
    return step, a


@pytest.mark.parametrize("bad", [1, 2, 64, 65, 100])
def test_a_stop_keeps_the_batch_and_the_state_before_it(bad: int) -> None:
    step, a = _nan_at(bad, "stop")
    assert a.x.item() == pytest.approx(-0.1 * (bad - 1), rel=1e-5)
    with pytest.raises(NonFiniteError, match=f"gradient step {bad} had"):
        step.guard.check()
    faulty = step.guard.faulty
    assert faulty is not None
    assert (faulty.number, faulty.batch.item(), faulty.noise["n"].item()) == (bad, bad, -bad)
    step.step(torch.tensor(0.0), {"n": torch.tensor(0.0)})
    step.guard.check()
    assert a.x.item() == pytest.approx(-0.1 * bad, rel=1e-5)


def test_a_skip_leaves_one_step_out_and_counts_it() -> None:
    step, a = _nan_at(7, "skip")
    step.guard.check()
    assert a.x.item() == pytest.approx(-0.1 * 99, rel=1e-5)
    assert step.read_metrics()["gradients/skipped_steps"] == 1.0
    assert step.read_metrics() == {}
    assert step.guard.faulty is None
    step.step(torch.tensor(7.0), {"n": torch.tensor(0.0)})
    assert step.read_metrics() == {"gradients/skipped_steps": 1.0}  # there are no means
    step.step(torch.tensor(0.0), {"n": torch.tensor(0.0)})
    assert step.read_metrics()["gradients/skipped_steps"] == 0.0


def test_steps_skipped_before_a_load_stop_nobody() -> None:
    (skipping, _), (stopping, a) = _stopping(), _stopping()
    skipping.guard.mode = "skip"
    skipping.step(torch.tensor(math.nan), {})
    stopping.load_state_dict(skipping.state_dict())
    stopping.step(torch.tensor(1.0), {})
    assert a.x.item() == pytest.approx(-0.1)
    assert stopping.read_metrics() == {"seen": 1.0, "gradients/a_norm": 1.0}


def test_a_step_is_known_by_its_number_after_the_mode_was_changed() -> None:
    a = Numbers(0.0)
    step = _step({"a": a}, lambda batch, noise: LossOutput(a.x.sum() * batch.sum()), [_group("a")])
    step.guard.mode = "skip"
    for _ in range(2):
        step.step(torch.ones(()), {})
    step.guard.mode = "stop"
    for number in (1.0, torch.nan, 1.0):
        step.step(torch.tensor(number), {})
    with pytest.raises(NonFiniteError, match="gradient step 4 had"):
        step.read_metrics()
    assert step.guard.faulty is not None
    assert step.guard.faulty.batch.isnan()


def test_large_batches_are_not_hoarded() -> None:
    a = Numbers(0.0)
    step = _step({"a": a}, lambda b, n: LossOutput((a.x * b[0]).sum()), [_group("a")])
    for _ in range(3):
        step.step(torch.ones(2**23), {})  # 32 MiB; two fit
        assert sum(kept is not None for kept in step.guard._kept) <= 1
    gradients = step.compute_gradients(torch.full((4,), math.nan), {})
    step.apply_gradients(gradients)
    with pytest.raises(NonFiniteError, match="a gradient step had"):
        step.read_metrics()
    assert step.guard.faulty is None  # its batch is where the gradient was computed


def _stopping() -> tuple[GradientStep[Tensor], Numbers]:
    """A loss that asks for a stop when the batch is negative."""
    a = Numbers(0.0)

    def loss(batch: Tensor, noise: Noise) -> LossOutput:
        return LossOutput((a.x * batch.abs()).sum(), {"seen": batch}, stop=batch < 0.0)

    return _step({"a": a}, loss, [_group("a")]), a


def test_a_stop_ends_the_phase_from_that_very_step() -> None:
    step, a = _stopping()
    for batch in (1.0, -1.0, 1.0):
        step.step(torch.tensor(batch), {})
    assert step.stopped
    assert a.x.item() == pytest.approx(-0.1)
    # The step that stopped is reported, because it tells why; later ones are not.
    assert step.read_metrics()["seen"] == pytest.approx(0.0)
    step.begin_update()
    assert not step.stopped
    step.step(torch.tensor(1.0), {})
    assert a.x.item() == pytest.approx(-0.2)


def test_no_target_follows_a_step_that_stops() -> None:
    a, slow = Numbers(1.0), Numbers(0.0)
    step = _step(
        {"a": a, "slow": slow},
        lambda batch, noise: LossOutput((a.x * batch).sum(), stop=batch < 0.0),
        [_group("a")],
        [TargetNetwork(module="slow", source="a", tau="tau")],
        hyper={"tau": 0.5},
    )
    step.step(torch.tensor(-1.0), {})
    assert (a.x.item(), slow.x.item()) == (1.0, 0.0)


def test_a_stop_travels_with_the_gradients() -> None:
    step, a = _stopping()
    for batch in (1.0, -1.0, 1.0):
        step.apply_gradients(step.compute_gradients(torch.tensor(batch), {}))
    assert a.x.item() == pytest.approx(-0.1)
    assert step.stopped


def test_metrics_are_means_since_the_last_reading() -> None:
    a = Numbers(0.0)
    step = _step(
        {"a": a},
        lambda batch, noise: LossOutput((a.x * batch).sum(), {"seen": batch}),
        [_group("a")],
    )
    assert step.read_metrics() == {}
    for batch in (1.0, 3.0):
        step.step(torch.tensor(batch), {})
    assert step.read_metrics() == {"seen": 2.0, "gradients/a_norm": 2.0}
    step.step(torch.tensor(5.0), {})
    assert step.read_metrics()["seen"] == 5.0


def test_metrics_are_averaged_over_the_steps_that_return_them() -> None:
    """As those of an algorithm whose phases have losses of their own."""

    def make(*names: str) -> GradientStep[Tensor]:
        a, left = Numbers(0.0), iter(names)

        def loss(batch: Tensor, noise: Noise) -> LossOutput:
            return LossOutput((a.x * batch).sum(), dict.fromkeys(next(left), batch))

        return _step({"a": a}, loss, [_group("a")])

    step, resumed = make("a", "ab", "b"), make("a")
    for batch in (1.0, 2.0, 4.0):
        step.step(torch.tensor(batch), {})
    resumed.load_state_dict(step.state_dict())
    resumed.step(torch.tensor(6.0), {})
    assert step.read_metrics() == {"a": 1.5, "b": 3.0, "gradients/a_norm": pytest.approx(7 / 3)}
    assert resumed.read_metrics() == {"a": 3.0, "b": 3.0, "gradients/a_norm": 3.25}


@pytest.mark.parametrize("compile_mode", ["off", "on"])
def test_metrics_that_were_not_read_are_saved(compile_mode: CompileMode) -> None:
    if compile_mode == "on" and not has_cpp_compiler():
        pytest.skip("no C++ compiler")
    (saved, _), (restored, _) = _stopping(), _stopping()
    for step in (saved, restored):
        step.guard.mode = "skip"
    for batch in (1.0, math.nan, 4.0):
        saved.step(torch.tensor(batch), {})
    restored.load_state_dict(copy_state(saved.state_dict()))  # type: ignore[arg-type]  # a mapping
    restored.compiled.mode = compile_mode
    check_same_state(restored.state_dict(), saved.state_dict())
    for step in (saved, restored):
        step.step(torch.tensor(7.0), {})
        metrics = step.read_metrics()
        assert metrics == {"seen": 4.0, "gradients/a_norm": 4.0, "gradients/skipped_steps": 1.0}
        assert step.read_metrics() == {}
    saved.step(torch.tensor(2.0), {})
    restored.load_state_dict(saved.state_dict())
    assert restored.read_metrics()["seen"] == 2.0


def test_saved_metrics_of_a_loss_that_was_changed_are_of_the_steps_before() -> None:
    saved, _ = _stopping()
    saved.step(torch.tensor(2.0), {})
    a = Numbers(0.0)
    changed = _step({"a": a}, _linear(a), [_group("a")])
    changed.load_state_dict(saved.state_dict())
    changed.step(torch.tensor(3.0), {})
    assert changed.read_metrics() == {"loss/total": 0.0, "seen": 2.0, "gradients/a_norm": 2.5}
    damaged = {**saved.state_dict(), "metrics": [{"names": "seen"}]}
    with pytest.raises(CheckpointError, match="metrics/0: the saved state has no 'totals'"):
        changed.load_state_dict(damaged)


def test_samples_are_handed_out_without_a_graph() -> None:
    a = Numbers(1.0, 2.0)
    step = _step(
        {"a": a}, lambda batch, noise: LossOutput(a.x.sum(), {}, {"td_error": a.x}), [_group("a")]
    )
    samples = step.step(torch.zeros(()), {})
    assert not samples["td_error"].requires_grad


def test_gradients_can_come_from_another_machine() -> None:
    a = Numbers(0.0, 0.0)
    step = _step({"a": a}, _linear(a), [_group("a")])
    gradients = Gradients(0, 8, {"a": torch.tensor([1.0, -1.0])}, True)
    step.apply_gradients(gradients)
    torch.testing.assert_close(a.x.detach(), torch.tensor([-0.1, 0.1]))
    step.apply_gradients(replace(gradients, version=1, finite=False))
    torch.testing.assert_close(a.x.detach(), torch.tensor([-0.1, 0.1]))
    assert step.count == 2


def test_given_gradients_are_applied_and_those_computed_before_are_not() -> None:
    a = Numbers(0.0, 0.0)
    step = _step({"a": a}, _linear(a), [_group("a")])
    first = step.compute_gradients(torch.tensor([1.0, -1.0]), {})
    step.compute_gradients(torch.tensor([5.0, 5.0]), {})
    step.apply_gradients(first)
    torch.testing.assert_close(a.x.detach(), torch.tensor([-0.1, 0.1]))


@pytest.mark.parametrize("tensors", [{}, {"a": torch.ones(1)}, {"a": torch.ones(3)}])
def test_gradients_of_another_size_are_refused(tensors: dict[str, Tensor]) -> None:
    a = Numbers(0.0, 0.0)
    step = _step({"a": a}, _linear(a), [_group("a")])
    with pytest.raises(ConfigError):
        step.apply_gradients(Gradients(0, 8, tensors, True))
    assert a.x.tolist() == [0.0, 0.0]


def test_a_loss_that_is_not_finite_travels_with_the_gradients() -> None:
    """Also where the gradients themselves are."""
    a = Numbers(0.0)
    step = _step({"a": a}, lambda batch, noise: LossOutput((a.x + batch).sum()), [_group("a")])
    gradients = step.compute_gradients(torch.tensor([math.inf]), {})
    assert gradients.tensors["a"].tolist() == [1.0]
    step.apply_gradients(gradients)
    assert a.x.item() == 0.0


def test_computing_gradients_leaves_optimizers_as_they_were() -> None:
    groups = [
        _group("a", optimizer=OptimizerConfig()),
        _group("b", after="a"),
    ]
    step = _pair(*groups)
    before = copy_state(step.optimizer_states)
    step.compute_gradients(torch.tensor([1.0, 2.0]), {})
    check_same_state(step.optimizer_states, before)


def test_gradients_of_other_weights_are_refused() -> None:
    a = Numbers(0.0)
    step = _step({"a": a}, _linear(a), [_group("a")])
    old = step.compute_gradients(torch.tensor([1.0]), {})
    for _ in range(3):
        step.step(torch.tensor([1.0]), {})
    for gradients in (old, None):  # those computed last are as old
        with pytest.raises(DataError, match=r"computed at version 0 .* at version 3 now"):
            step.apply_gradients(gradients)
    assert a.x.item() == pytest.approx(-0.3)


def test_gradients_from_before_a_load_are_forgotten() -> None:
    a = Numbers(0.0)
    step = _step({"a": a}, _linear(a), [_group("a")])
    state = copy_state(step.state_dict())
    step.compute_gradients(torch.tensor([1.0]), {})
    step.load_state_dict(state)  # type: ignore[arg-type]  # a mapping
    with pytest.raises(ConfigError, match="none were computed before"):
        step.apply_gradients(None)


def test_metrics_from_before_a_load_are_forgotten() -> None:
    a = Numbers(0.0)
    step = _step({"a": a}, _linear(a), [_group("a")])
    state = copy_state(step.state_dict())
    step.step(torch.tensor([1.0]), {})
    step.load_state_dict(state)  # type: ignore[arg-type]  # a mapping
    assert step.read_metrics() == {}


def test_gradients_are_of_as_many_samples_as_count() -> None:
    class Masked(dict[str, Tensor]):
        @property
        def mask(self) -> Tensor:
            return self["mask"]

    def loss(batch: Any, noise: Noise) -> LossOutput:
        return LossOutput((a.x * batch["mask"]).sum())

    a = Numbers(0.0)
    masked: Any = Masked(mask=torch.tensor([1.0, 0.0, 1.0]))
    gradients = _step({"a": a}, loss, [_group("a")]).compute_gradients(masked, {})
    assert gradients.num_samples == 2


def test_weights_of_another_module_leave_the_own_alone() -> None:
    a = nn.Linear(2, 1)
    before = a.weight.clone()
    for tensors in (
        {"weight": torch.ones(1, 2)},
        {"weight": torch.ones(1, 2), "bias": torch.ones(2)},
        {"weight": torch.ones(1, 2), "bias": torch.ones(1), "more": torch.ones(1)},
    ):
        with pytest.raises(ConfigError, match=r"do not fit: of 2 tensors 1 are .* '(bias|more)'"):
            Weights(0, tensors).load_into(a)
    assert torch.equal(a.weight, before)


def test_a_state_of_another_optimizer_is_refused() -> None:
    first, second = Numbers(0.0), Numbers(0.0)
    adam = _step({"a": first}, _linear(first), [_group("a", optimizer=OptimizerConfig())])
    sgd = _step({"a": second}, _linear(second), [_group("a")])
    two = _pair(_group("a"), _group("b"))
    for saved, other in ((adam, sgd), (sgd, adam), (two, sgd), (sgd, two)):
        with pytest.raises(CheckpointError):
            other.load_state_dict(saved.state_dict())


def test_gradients_answer_what_the_loss_found() -> None:
    a = Numbers(1.0)

    def loss(batch: Tensor, noise: Noise) -> LossOutput:
        return LossOutput((a.x * batch).sum(), {"loss/a": a.x.sum()}, {"td_error": a.x * batch})

    step = _step({"a": a}, loss, [_group("a")])
    gradients = step.compute_gradients(torch.tensor([2.0]), {})
    assert gradients.tensors["a"].tolist() == [2.0]
    assert gradients.metrics["loss/a"].item() == 1.0
    assert gradients.samples["td_error"].tolist() == [2.0]
    assert not gradients.samples["td_error"].requires_grad
    assert step.read_metrics() == {}, "computing alone counts nothing"


def _following(after: str | None = "a") -> tuple[GradientStep[Tensor], Numbers, Numbers]:
    """The gradient of a is the batch, that of b is a; the target follows b."""
    a, b, slow = Numbers(1.0), Numbers(0.0), Numbers(0.0)

    def first(batch: Tensor, noise: Noise) -> LossOutput:
        return LossOutput((a.x * batch).sum(), {"loss/a": batch.sum()}, {"td_error": batch})

    def then(batch: Tensor, noise: Noise) -> LossOutput:
        loss = (b.x * a.x.detach()).sum() + noise.get("then", 0.0)
        return LossOutput(loss, {"loss/b": a.x.detach().sum()})

    def loss(batch: Tensor, noise: Noise) -> LossOutput:
        return module.sum_due({"a": first, "b": then}, batch, noise)

    numbers = HyperParameters({"learning_rate": 0.1, "tau": 0.5})
    module = LossModule(loss, {"a": a, "b": b, "slow": slow}, numbers)
    groups = [_group("a"), _group("b", after=after)]
    target = TargetNetwork(module="slow", source="b", tau="tau")
    return GradientStep(module, numbers, groups, [target]), b, slow


@pytest.mark.parametrize("form", ["uncompiled", "compiled", "split"])
def test_a_group_follows_by_what_another_has_become(form: str) -> None:
    if form == "compiled" and not has_cpp_compiler():
        pytest.skip("no C++ compiler")
    for after, gradient in ((None, 1.0), ("a", 0.8)):
        step, b, slow = _following(after)
        step.compiled.mode = "on" if form == "compiled" else "off"
        batch = torch.tensor([2.0])
        if form == "split":
            before = copy_state(step.state_dict())
            gradients = step.compute_gradients(batch, {})
            check_same_state(step.state_dict(), before)
            assert gradients.tensors["b"].item() == pytest.approx(gradient)
            samples = gradients.samples
            step.apply_gradients(gradients)
        else:
            samples = step.step(batch, {})
        assert samples["td_error"].item() == 2.0
        assert b.x.item() == pytest.approx(-0.1 * gradient)
        assert slow.x.item() == pytest.approx(-0.05 * gradient)
        assert step.count == 1
        assert step.read_metrics() == pytest.approx(
            {
                "loss/a": 2.0,
                "loss/b": gradient,
                "gradients/a_norm": 2.0,
                "gradients/b_norm": gradient,
            }
        )


def test_groups_may_follow_in_a_row() -> None:
    """The gradient of each is the number before it, where that has moved to."""
    a, b, c = Numbers(1.0), Numbers(1.0), Numbers(0.0)

    def loss(batch: Tensor, noise: Noise) -> LossOutput:
        return LossOutput((a.x * batch + b.x * a.x.detach() + c.x * b.x.detach()).sum())

    groups = [_group("a"), _group("b", after="a"), _group("c", after="b")]
    step = _step({"a": a, "b": b, "c": c}, loss, groups)
    step.step(torch.tensor([1.0]), {})
    assert [n.x.item() for n in (a, b, c)] == pytest.approx([0.9, 0.91, -0.091])


def test_nothing_follows_a_step_that_was_not_finite() -> None:
    step, b, slow = _following()
    step.guard.mode = "skip"
    for gradient in (math.inf, 2.0):
        step.step(torch.tensor([gradient]), {})
    # Without the first step a is at 0.8 when b moves.
    assert b.x.item() == pytest.approx(-0.08)
    assert slow.x.item() == pytest.approx(-0.04)
    assert step.read_metrics()["gradients/skipped_steps"] == 1.0


def test_a_later_loss_that_is_not_finite_leaves_what_moved_before_it() -> None:
    step, b, slow = _following()
    step.guard.mode = "skip"
    noise = {"then": torch.tensor(math.nan)}
    step.step(torch.tensor([2.0]), noise)
    assert (b.x.item(), slow.x.item()) == (0.0, 0.0)
    assert step.vectors["a"].values.item() == pytest.approx(0.8)
    gradients = step.compute_gradients(torch.tensor([2.0]), noise)
    assert not gradients.finite
    step.apply_gradients(gradients)
    assert step.vectors["a"].values.item() == pytest.approx(0.8), "split in two, nothing moves"
    assert step.read_metrics()["gradients/skipped_steps"] == 2.0


def test_either_of_two_losses_may_ask_to_stop() -> None:
    def output(stop: bool | None) -> LossOutput:
        return LossOutput(torch.tensor(1.0), stop=None if stop is None else torch.tensor(stop))

    for first, second, expected in (
        (None, None, None),
        (None, True, True),
        (False, True, True),
        (True, False, True),
        (False, False, False),
    ):
        stop = output(first).joined(output(second)).stop
        assert (None if stop is None else stop.item()) == expected


def test_a_step_that_moves_nothing_still_computes_its_loss() -> None:
    a = Numbers(1.0)

    def part(batch: Tensor, noise: Noise) -> LossOutput:
        return LossOutput((a.x * batch).sum(), {}, {"td_error": batch})

    numbers = HyperParameters({"learning_rate": 0.1})
    module: LossModule[Tensor] = LossModule(
        lambda batch, noise: module.sum_due({"a": part}, batch, noise), {"a": a}, numbers
    )
    step = GradientStep(module, numbers, [_group("a", every=2)])
    for number, value in ((1, 1.0), (2, 0.8)):
        assert step.step(torch.tensor([2.0]), {})["td_error"].item() == 2.0
        assert a.x.item() == pytest.approx(value), number


def test_a_group_that_moves_without_a_loss_is_reported() -> None:
    a = Numbers(1.0)
    numbers = HyperParameters({"learning_rate": 0.1})
    module: LossModule[Tensor] = LossModule(
        lambda batch, noise: module.sum_due({}, batch, noise), {"a": a}, numbers
    )
    step = GradientStep(module, numbers, [_group("a")])
    with pytest.raises(
        ConfigError, match=r"groups \['a'\] move now, but losses are given for \[\]"
    ):
        step.step(torch.tensor([2.0]), {})


def test_noise_may_be_drawn_in_inference_mode() -> None:
    a = Numbers(1.0)
    step = _step(
        {"a": a}, lambda batch, noise: LossOutput((a.x * noise["n"] * batch).sum()), [_group("a")]
    )
    with torch.inference_mode():
        noise = {"n": torch.tensor(2.0)}
    step.step(torch.tensor([3.0]), noise)
    assert a.x.item() == pytest.approx(1.0 - 0.6)


def test_gradients_are_applied_within_inference_mode() -> None:
    step, b, _ = _following()
    with torch.inference_mode():
        step.apply_gradients(step.compute_gradients(torch.tensor([2.0]), {}))
    step.step(torch.tensor([2.0]), {})
    assert b.x.item() == pytest.approx(-0.08 - 0.06)
    assert step.read_metrics()["loss/b"] == pytest.approx(0.7)


@pytest.mark.parametrize("after", ["c", "b"])
def test_a_group_that_follows_none_before_it_is_refused(after: str) -> None:
    with pytest.raises(
        ConfigError, match=f"'b' moves after '{after}', which is not a group before"
    ):
        _following(after)


def test_a_group_without_parameters_is_refused() -> None:
    a = Numbers(0.0)
    with pytest.raises(ConfigError, match="'b' finds no parameter"):
        _step({"a": a}, _linear(a), [_group("a"), _group("b")])


def test_no_two_groups_may_learn_one_parameter() -> None:
    a = Numbers(0.0)
    with pytest.raises(ConfigError, match="'again' finds no parameter"):
        _step({"a": a}, _linear(a), [_group("a"), _group("again", modules=("a",))])


def test_a_parameter_that_nobody_learns_is_refused_unless_it_is_said_to_stay() -> None:
    a, b = Numbers(0.0), Numbers(0.0)
    with pytest.raises(ConfigError, match=r"'b\.x' requires a gradient"):
        _step({"a": a, "b": b}, _linear(a), [_group("a")])
    numbers = HyperParameters({"learning_rate": 0.1})
    loss = LossModule(_linear(a), {"a": a, "b": b}, numbers)
    GradientStep(loss, numbers, [_group("a")], constant=["b"]).step(torch.tensor([1.0]), {})
    assert [a.x.item(), b.x.item()] == pytest.approx([-0.1, 0.0])


def test_two_groups_of_one_name_are_refused() -> None:
    a, b = Numbers(0.0), Numbers(0.0)
    with pytest.raises(ConfigError, match="two parameter groups or targets are called 'a'"):
        _step({"a": a, "b": b}, _linear(a, b), [_group("a"), _group("a", modules=("b",))])


def test_a_loss_that_is_detached_is_refused() -> None:
    a = Numbers(1.0)
    step = _step({"a": a}, lambda batch, noise: LossOutput(a.x.sum().detach()), [_group("a")])
    with pytest.raises(ConfigError, match="the loss depends on no parameter of a, which it is to"):
        step.step(torch.zeros(()), {})
    a.x.requires_grad_(False)  # then there is nothing to learn, on purpose
    step.step(torch.zeros(()), {})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (torch.zeros(()), "loss returned a Tensor; expected a LossOutput"),
        (LossOutput(torch.zeros(()), {"own/one": 1.0}), "'own/one' is 1.0; expected a tensor"),  # type: ignore[dict-item]  # wrong on purpose
    ],
)
def test_what_is_no_loss_is_refused(wrong: LossOutput, message: str) -> None:
    a = Numbers(1.0)
    step = _step({"a": a}, lambda batch, noise: wrong, [_group("a")])
    with pytest.raises(ConfigError, match=message):
        step.step(torch.zeros(()), {})


def test_a_frozen_parameter_needs_no_group_and_stays() -> None:
    a, b = Numbers(1.0), Numbers(1.0).requires_grad_(False)
    step = _step(
        {"a": a, "b": b}, lambda batch, noise: LossOutput((a.x * b.x).sum()), [_group("a")]
    )
    step.step(torch.zeros(()), {})
    assert [a.x.item(), b.x.item()] == pytest.approx([0.9, 1.0])


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_parameter_that_is_frozen_for_a_while_stays(name: Literal["adam", "sgd"]) -> None:
    """Its moments too, which would move it on although it has no gradient."""
    a, inner = Numbers(1.0), Numbers(1.0)
    a.add_module("inner", inner)
    momentum = {"momentum": 0.5} if name == "sgd" else {}
    step = _step(
        {"a": a},
        lambda batch, noise: LossOutput(((a.x + 2.0 * inner.x) * batch).sum()),
        [_group("a", optimizer=OptimizerConfig(name=name, **momentum))],
    )
    batch = torch.tensor([1.0])
    step.step(batch, {})
    inner.x.requires_grad_(False)
    before = inner.x.item()
    moments = [state[1].item() for state in step.optimizer_states["a"].values() if state.dim()]
    at = a.x.item()
    step.step(batch, {})
    assert inner.x.item() == before
    assert a.x.item() < at
    kept = [state[1].item() for state in step.optimizer_states["a"].values() if state.dim()]
    assert kept == moments
    inner.x.requires_grad_(True)
    step.step(batch, {})
    assert inner.x.item() < before


def test_a_group_takes_whole_names_and_leaves_frozen_parts_of_it() -> None:
    actor, actor_too = Numbers(0.0), Numbers(0.0)
    frozen = Numbers(5.0).requires_grad_(False)
    actor.add_module("frozen", frozen)
    step = _step(
        {"actor": actor, "actor_too": actor_too},
        _linear(actor, actor_too),
        [_group("actor"), _group("actor_too")],
    )
    assert list(step.vectors["actor"].shapes) == ["actor.x"]
    assert list(step.vectors["actor_too"].shapes) == ["actor_too.x"]


def test_a_target_of_other_buffers_is_refused() -> None:
    a, slow = nn.BatchNorm1d(1), nn.LayerNorm(1)
    target = TargetNetwork(module="slow", source="a", tau="tau")
    with pytest.raises(ConfigError, match="must have the buffers of 'a'"):
        _step({"a": a, "slow": slow}, _linear(), [_group("a")], [target], hyper={"tau": 0.5})


@pytest.mark.parametrize("name", ["hyper", "at", "moving"])
def test_a_module_has_a_name_of_its_own(name: str) -> None:
    a = Numbers(0.0)
    with pytest.raises(ConfigError, match=f"no module can be called '{name}'"):
        _step({name: a}, _linear(a), [_group("a")])


def test_groups_and_targets_move_every_so_many_steps() -> None:
    with pytest.raises(ConfigError, match="every of parameter group 'a' must be a whole number"):
        _group("a", every=0)
    with pytest.raises(ConfigError, match="every of target 'slow' must be a whole number"):
        TargetNetwork(module="slow", source="a", tau="tau", every=0)


def test_a_target_of_other_shapes_is_refused() -> None:
    a, slow = Numbers(1.0), Numbers(1.0, 2.0)
    target = TargetNetwork(module="slow", source="a", tau="tau")
    with pytest.raises(ConfigError, match="'slow' must have the parameters of 'a'"):
        _step({"a": a, "slow": slow}, _linear(a), [_group("a")], [target], hyper={"tau": 0.1})


def test_a_saved_state_of_another_shape_is_refused() -> None:
    adam = OptimizerConfig(name="adam")
    a, b = Numbers(1.0), Numbers(1.0, 2.0)
    one = _step({"a": a}, _linear(a), [_group("a", optimizer=adam)])
    other = _step({"a": b}, _linear(b), [_group("a", optimizer=adam)])
    with pytest.raises(CheckpointError, match="optimizers/a: 'exp_avg' should have shape"):
        other.load_state_dict(one.state_dict())


def test_parameters_that_were_moved_away_are_noticed() -> None:
    a = Numbers(1.0)
    step = _step({"a": a}, _linear(a), [_group("a")])
    a.x.data = torch.tensor([1.0])
    with pytest.raises(ConfigError, match="moved or replaced"):
        step.read_metrics()


def test_gradients_that_were_thrown_away_are_noticed() -> None:
    a = Numbers(1.0)
    step = _step({"a": a}, _linear(a), [_group("a")])
    a.zero_grad()
    step.step(torch.tensor([1.0]), {})
    with pytest.raises(ConfigError, match="zero_grad"):
        step.read_metrics()


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no C++ compiler be found."""
    monkeypatch.setenv("CXX", "no-such-compiler")


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_auto_falls_back_with_one_warning() -> None:
    a = Numbers(0.0)
    step = _step({"a": a}, _linear(a), [_group("a")])
    mode: CompileMode = "auto"
    step.compiled.mode = mode
    with pytest.warns(RuntimeWarning, match=r"no C\+\+ compiler.*going on uncompiled"):
        step.step(torch.tensor([1.0]), {})
    assert step.compiled.mode == "off"
    step.step(torch.tensor([1.0]), {})
    assert a.x.item() == pytest.approx(-0.2)
    assert step.read_metrics()["gradients/a_norm"] == 1.0


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_on_is_an_error() -> None:
    a = Numbers(0.0)
    step = _step({"a": a}, _linear(a), [_group("a")])
    step.compiled.mode = "on"
    with pytest.raises(ConfigError, match=r"no C\+\+ compiler.*trainer.compile to 'off'"):
        step.step(torch.tensor([1.0]), {})
    assert (step.count, a.x.item()) == (0, 0.0)


def test_hyper_parameters_are_buffers_and_keep_their_names() -> None:
    hyper = HyperParameters({"gamma": 0.9, "tau": 0.1})
    assert sorted(hyper.state_dict()) == ["gamma", "tau"]
    assert hyper["gamma"].shape == ()
    assert not list(hyper.parameters())


class Shared(nn.Module):
    """One layer reached by two paths, and one weight held by two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(1, 1))
        self.second = nn.Sequential(self.first[0])
        self.tied = nn.Linear(1, 1, bias=False)
        self.again = nn.Linear(1, 1, bias=False)
        self.again.weight = self.tied.weight


def test_shared_modules_and_tied_weights_are_exchanged_everywhere_and_put_back() -> None:
    net = Shared()
    before = dict(net.named_parameters())

    def loss(batch: Tensor, noise: Noise) -> LossOutput:
        x = net.second(net.first(batch))
        return LossOutput(net.again(net.tied(x)).sum())

    module = LossModule(loss, {"net": net}, HyperParameters({"learning_rate": 0.1}))
    given = {
        "net.first.0.weight": torch.tensor([[2.0]], requires_grad=True),
        "net.first.0.bias": torch.tensor([0.5], requires_grad=True),
        "net.tied.weight": torch.tensor([[3.0]], requires_grad=True),
    }
    value = module.at(given, torch.tensor([[1.0]]), {}).loss
    assert value.item() == 3.0 * 3.0 * (2.0 * (2.0 * 1.0 + 0.5) + 0.5)
    weight, bias, tied = torch.autograd.grad(value, list(given.values()))
    # 9 (w (w + b) + b): the derivatives are 9 (2 w + b), 9 (w + 1) and 6 (w (w + b) + b)
    assert (weight.item(), bias.item(), tied.item()) == (9.0 * 4.5, 9.0 * 3.0, 6.0 * 5.5)
    assert all(parameter is before[name] for name, parameter in net.named_parameters())
    with pytest.raises(ConfigError, match=r"did you mean 'net\.tied\.weight'"):
        module.at({"net.tied.weigth": given["net.tied.weight"]}, torch.zeros(1, 1), {})


def _everything_at_once() -> tuple[GradientStep[Tensor], Numbers, Numbers]:
    a, slow = Numbers(1.0), Numbers(1.0)

    def loss(batch: Tensor, noise: Noise) -> LossOutput:
        return LossOutput((a.x * batch.abs()).sum(), {"seen": batch}, stop=batch < 0.0)

    rmsprop = OptimizerConfig(name="rmsprop", momentum=0.5)
    group = _group("a", optimizer=rmsprop, max_grad_norm="bound")
    target = TargetNetwork(module="slow", source="a", tau="tau")
    hyper = {"bound": 2.0, "tau": 0.5}
    step = _step({"a": a, "slow": slow}, loss, [group], [target], hyper=hyper)
    return step, a, slow


def test_compiled_steps_stop_and_skip_as_eager_ones_do() -> None:
    if not has_cpp_compiler():
        pytest.skip("no C++ compiler")
    seen = []
    for is_compiled in (False, True):
        step, a, slow = _everything_at_once()
        step.guard.mode = "skip"
        if is_compiled:
            step.compiled.mode = "on"
        record = []
        for batch in (3.0, 1.0, -1.0, 1.0, "begin", 2.0, math.nan, 1.0, "freeze", 1.0):
            if batch == "begin":
                step.begin_update()
            elif batch == "freeze":
                step._hyper["learning_rate"].fill_(0.0)
            else:
                assert isinstance(batch, float)
                step.step(torch.tensor(batch), {})
            moments = step.optimizer_states["a"]["square_avg"].item()
            record.append((a.x.item(), slow.x.item(), moments, step.stopped))
        seen.append(record)
        assert step.read_metrics()["gradients/skipped_steps"] == 1.0
        held = (a.x.item(), slow.x.item())
        step.guard.mode = "stop"
        for number in (math.nan, 1.0):
            step.step(torch.tensor(number), {})
        assert step.stopped
        assert (a.x.item(), slow.x.item()) == held
        with pytest.raises(NonFiniteError, match="gradient step 9 had"):
            step.guard.check()
        step.step(torch.tensor(4.0), {})
        assert step.read_metrics()["seen"] == 4.0
    eager, compiled = seen
    assert eager[1] != eager[0]
    assert eager[2][:3] == eager[3][:3] == eager[1][:3]
    assert eager[6][:3] == eager[5][:3]
    assert eager[9][:3] == eager[7][:3]
    for expected, got in zip(eager, compiled, strict=True):
        assert got == pytest.approx(expected, rel=1e-4, abs=1e-6)
