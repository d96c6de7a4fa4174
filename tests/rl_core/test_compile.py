"""Compiled functions do what they do uncompiled, whatever they are given."""

import copy
import hashlib
import math
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from rl_core.actor import ActionOutput, CompiledActing
from rl_core.compile import has_cpp_compiler, process
from rl_core.compile.cache import LIBRARY, GraphCache
from rl_core.compile.compiler import InProcess, check_compiler
from rl_core.compile.function import CompiledFunction, CompiledFunctions
from rl_core.compile.library import Compilation, CompileError, is_supported
from rl_core.compile.products import has_kernel
from rl_core.compile.recorder import TraceError
from rl_core.compile.scalars import compute_scalars_once
from rl_core.compile.trace import flatten, rebuild, trace
from rl_core.errors import ConfigError
from rl_core.types import State
from rl_testing.toy import ToyActor

BACKEND = Compilation if is_supported() else InProcess
needs_compiler = pytest.mark.skipif(not has_cpp_compiler(), reason="no C++ compiler")
CPU = torch.device("cpu")
Function = Callable[..., Mapping[str, Tensor]]


def _compiled(function: Function) -> CompiledFunction:
    made = CompiledFunction(function, "the function", CPU)
    made.mode = "on"
    return made


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


WIDE, SQUARE, BIAS = _random(128, 96), _random(96, 96), _random(96)
ODD, COLUMN = _random(37, 5), _random(96, 1)


def _both(*parts: Tensor) -> Tensor:
    result = torch.addmm(*parts)
    return result.relu() - 0.5 * result


PRODUCTS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "large": (lambda a, b: a @ b, (WIDE, SQUARE)),
    "transposed": (lambda a, b: a.t() @ (b @ a.t()).t(), (WIDE, SQUARE)),
    "parts of a vector": (
        lambda v: v[5:101].view(8, 12) @ v[101:161].view(5, 12).t(),
        (_random(200),),
    ),
    "every other row": (lambda a, b: a[::2] @ b, (WIDE, SQUARE)),
    "a row for all": (lambda a, b: a[:1].expand(4, -1) @ b, (WIDE, SQUARE)),
    "with a bias": (torch.addmm, (BIAS, WIDE, SQUARE)),
    "with a matrix for a bias": (torch.addmm, (WIDE, WIDE, SQUARE)),
    "rectified and not": (_both, (BIAS, WIDE, SQUARE)),
    "odd sizes": (lambda a, b: a @ b.t(), (ODD, _random(7, 5))),
    "several blocks": (lambda a, b: a @ b, (_random(70, 600), _random(600, 300))),
    "several blocks of few rows": (lambda a, b: a @ b, (_random(5, 530), _random(530, 270))),
    "one row": (lambda a, b: a @ b, (_random(1, 96), SQUARE)),
    "one row, with a bias": (torch.addmm, (BIAS, _random(1, 96), SQUARE)),
    "one number": (lambda a, b: a @ b, (_random(1, 96), COLUMN)),
    "one column": (lambda a, b: a @ b, (WIDE, COLUMN)),
    "one column, with a bias": (torch.addmm, (_random(1), WIDE, COLUMN)),
    "one inner number": (lambda a, b: a @ b.t(), (COLUMN, _random(30, 1))),
    "ensemble": (torch.bmm, (_random(3, 128, 96), _random(3, 96, 80))),
    "ensemble, with biases": (
        torch.baddbmm,
        (_random(3, 1, 80), _random(3, 128, 96), _random(3, 96, 80)),
    ),
    "ensemble of one input": (
        lambda a, b: torch.bmm(a.expand(2, -1, -1), b),
        (WIDE[None], _random(2, 96, 80)),
    ),
    "ensemble with one output": (
        torch.baddbmm,
        (_random(2, 1, 1), _random(2, 128, 96), _random(2, 96, 1)),
    ),
    "ensemble of one row": (torch.bmm, (_random(2, 1, 96), _random(2, 96, 80))),
    "ensemble with one inner number": (torch.bmm, (_random(2, 8, 1), _random(2, 1, 5))),
    "many members": (torch.bmm, (_random(17, 8, 5), _random(17, 5, 4))),
    "another type": (lambda a, b: a @ b, (WIDE.double(), SQUARE.double())),
}


def _products(_: None, arguments: dict[str, tuple[Tensor, ...]]) -> dict[str, Tensor]:
    return {name: PRODUCTS[name][0](*given) for name, given in arguments.items()}


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2])
def test_products_are_what_they_were(threads: int) -> None:
    arguments = {name: given for name, (_, given) in PRODUCTS.items()}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        results = _compiled(_products)(None, arguments)
        expected = _products(None, arguments)
    finally:
        torch.set_num_threads(before)
    assert results is not None
    assert list(results) == list(expected)
    torch.testing.assert_close(dict(results), expected, rtol=1e-5, atol=1e-4)


def test_the_kernel_is_tried_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_kernel():
        pytest.skip("this PyTorch has no such kernel")
    monkeypatch.setattr("rl_core.compile.products._SYMBOL", "no_such_kernel")
    assert not has_kernel()
    monkeypatch.undo()
    monkeypatch.setattr(torch, "equal", lambda a, b: False)  # a kernel that multiplies otherwise
    assert not has_kernel()


IMAGES, FILTERS = _random(2, 3, 12, 12), _random(4, 3, 4, 4)


def _left_to_torch(_: None, images: Tensor, filters: Tensor) -> dict[str, Tensor]:
    convolved = torch.nn.functional.conv2d(images, filters, stride=2)
    ordered, places = convolved.flatten(1).sort(dim=1)
    return {"convolved": convolved, "ordered": ordered, "places": places}


@needs_compiler
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_what_is_left_to_torchs_own_kernels_is_compiled(memory_format: torch.memory_format) -> None:
    images = IMAGES.contiguous(memory_format=memory_format)
    results = _compiled(_left_to_torch)(None, images, FILTERS)
    assert results is not None
    torch.testing.assert_close(dict(results), _left_to_torch(None, images, FILTERS))


def _numbers(_: None, x: Tensor, rate: Tensor, on: Tensor) -> dict[str, Tensor]:
    root = torch.rsqrt(1.0 - rate)  # of use to another number and to tensors
    step = torch.where(on, rate / root, 0.0)
    return {"moved": x - step * x.sqrt(), "scaled": x * root, "kept": step + 1.0, "same": rate}


@needs_compiler
def test_numbers_are_computed_once_and_are_what_they_were() -> None:
    arguments = (_random(7, 5).abs(), torch.tensor(0.3), torch.tensor(True))
    expected = _numbers(None, *arguments)
    results = _compiled(_numbers)(None, *arguments)
    assert results is not None
    torch.testing.assert_close(dict(results), expected)

    graph = make_fx(lambda *given: _numbers(None, *given), tracing_mode="fake")(*arguments).graph
    compute_scalars_once(graph)
    graph.lint()
    once = [node for node in graph.nodes if node.target is torch.ops.rl_core.once.default]
    made_of = {str(node.args[0].target).removeprefix("aten.") for node in once}
    assert made_of == {"rsqrt.default", "where.self"}  # neither `1 - rate` nor the quotient
    for node in once:
        assert list(node.args[0].users) == [node]


SCALE = torch.tensor([3.0, 4.0])


@needs_compiler
def test_what_is_captured_is_read_and_changed_anew_in_every_call() -> None:
    total = torch.zeros(2)

    def accumulate(_: None, part: dict[str, Tensor], factor: Tensor) -> dict[str, Tensor]:
        total.add_(part["a"] * factor)
        return {"b": part["b"] + SCALE, "a": part["a"] * 2.0}

    compiled = _compiled(accumulate)
    for k in range(1, 4):
        part = {"a": torch.tensor([k, 10.0 * k]), "b": torch.tensor([k, -1.0])}
        result = compiled(None, part, torch.tensor(2.0))
        assert result is not None
        assert list(result) == ["b", "a"]
        assert result["a"].tolist() == [2.0 * k, 20.0 * k]
        assert result["b"].tolist() == [3.0 + k, 3.0]
        assert part["a"].tolist() == [k, 10.0 * k]
    assert total.tolist() == [12.0, 120.0]
    assert len(compiled) == 1
    SCALE.add_(1.0)
    result = compiled(None, {"a": torch.ones(2), "b": torch.zeros(2)}, torch.tensor(0.0))
    assert result is not None
    assert result["b"].tolist() == SCALE.tolist()


@needs_compiler
@pytest.mark.parametrize(
    "function",
    [
        lambda _, a, b: {"same": a, "sum": a + b},
        lambda _, a, b: {"sum": a + b, "view": (a + b).view(2, 1), "part": a[:1]},
        lambda _, a, b: {"twice": a * 2.0, "again": b * 2.0},
        lambda _, a, b: {},
    ],
    ids=["an argument", "a view", "two", "none"],
)
def test_results_are_memory_of_their_own(function: Function) -> None:
    compiled = _compiled(function)
    kept = []
    for k in range(3):
        arguments = torch.tensor([k, 2.0]), torch.tensor([5.0, -k])
        result = compiled(None, *arguments)
        assert result is not None
        expected = {name: part.clone() for name, part in function(None, *arguments).items()}
        kept.append((dict(result), expected))
        for argument in arguments:
            argument.fill_(-7.0)
    for got, expected in kept:
        torch.testing.assert_close(got, expected, rtol=0.0, atol=0.0)


def _two_sums(_: None, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    return {"y": a.sum() - 2.0 * (b * b).sum()}


@needs_compiler
def test_two_arguments_that_were_one_tensor_when_it_was_compiled_stay_two() -> None:
    compiled = _compiled(_two_sums)
    same = torch.tensor([1.0, 2.0])
    for a, b in ((same, same), (same, torch.tensor([5.0, 7.0])), (same[:], same)):
        result = compiled(None, a, b)
        assert result is not None
        assert result["y"] == _two_sums(None, a, b)["y"]
    assert len(compiled) == 1


@needs_compiler
def test_arguments_of_any_strides_are_read_as_they_are() -> None:
    def weighted(_: None, x: Tensor) -> dict[str, Tensor]:
        return {"y": (x * torch.arange(12.0).view(3, 4)).sum(0)}

    compiled = _compiled(weighted)
    plain = _random(3, 4)
    for x in (
        plain,
        plain.t().contiguous().t(),
        plain[:1].expand(3, 4),
        _random(6, 8)[::2, ::2],
        _random(20)[3:15].view(3, 4),
    ):
        result = compiled(None, x)
        assert result is not None
        torch.testing.assert_close(result["y"], weighted(None, x)["y"])
    assert len(compiled) == 1


@dataclass(frozen=True)
class Numbered:
    x: Tensor
    factor: float
    extras: Mapping[str, Tensor]


@needs_compiler
def test_numbers_names_shapes_and_types_choose_the_graph() -> None:
    def scaled(sign: int, batch: Numbered) -> dict[str, Tensor]:
        named = {f"{name}!": part * 3 for name, part in batch.extras.items()}
        return {"y": sign * batch.x * batch.factor, **named}

    compiled = _compiled(scaled)
    first = Numbered(_random(2), 2.0, {"a": _random(1), "b": _random(1)})
    batches = [
        first,
        replace(first, factor=3.0),
        replace(first, extras={"b": _random(1), "a": _random(1)}),
        replace(first, x=_random(3)),
        replace(first, x=_random(2).double()),
    ]
    for sign in (1, -1):
        for batch in batches:
            result = compiled(sign, batch)
            assert result is not None
            torch.testing.assert_close(dict(result), scaled(sign, batch))
    assert len(compiled) == 10


@needs_compiler
def test_autocast_and_memory_that_is_changed_run_uncompiled() -> None:
    total = torch.zeros(3)

    def add(_: None, x: Tensor) -> dict[str, Tensor]:
        total.add_(x)
        return {"y": x @ x + total[0]}

    compiled = _compiled(add)
    assert compiled(None, torch.ones(3)) is not None
    with torch.autocast("cpu"):
        assert compiled(None, torch.ones(3)) is None
    assert compiled(None, total) is None
    assert compiled(None, total[:]) is None
    assert total.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda _, x: {"y": torch.nn.functional.dropout(x)}, "random numbers"),
        (lambda _, x: {"y": x * torch.rand(2)}, "random numbers"),
        (lambda _, x: {"y": x if float(x.sum()) > 0.0 else -x}, "a tensor's value"),
        (lambda _, x: {"y": x * x.tolist()[0]}, "a tensor's value"),
        (lambda _, x: {"y": x * x.detach().numpy().item(0)}, "a tensor's value"),
        (lambda _, x: {"y": x * np.asarray(x).item(0)}, "a tensor's value"),
        (lambda _, x: {"y": x * np.from_dlpack(x).item(0)}, "a tensor's value"),
        (lambda _, x: {"y": x[x > 0.0]}, "the shape of a result depends on values"),
        (lambda _, x: {"y": x.nonzero()}, "the shape of a result depends on values"),
    ],
    ids=[
        *("dropout", "random", "a branch", "tolist", "numpy", "asarray", "dlpack"),
        *("picked by a mask", "places"),
    ],
)
def test_what_is_no_graph_is_not_compiled(function: Function, message: str) -> None:
    compiled = _compiled(function)
    for _ in range(2):
        with pytest.raises(
            ConfigError, match=f"compiling the function failed .*{message}|{message}"
        ):
            compiled(None, torch.ones(2))
    compiled.mode = "auto"
    with pytest.warns(RuntimeWarning, match="going on uncompiled"):
        assert compiled(None, torch.ones(2)) is None
    assert compiled(None, torch.ones(2)) is None


def test_attention_is_compiled_unless_it_drops_something() -> None:
    def attend(dropout: float) -> Function:
        return lambda _, x: {"y": F.scaled_dot_product_attention(x, x, x, dropout_p=dropout)}

    x = torch.rand(1, 2, 3, 4)
    result = _compiled(attend(0.0))(None, x)
    assert result is not None
    torch.testing.assert_close(result["y"], F.scaled_dot_product_attention(x, x, x))
    with pytest.raises(ConfigError, match="it draws random numbers"):
        _compiled(attend(0.1))(None, x)


def test_memory_reached_by_two_tensors_and_changed_is_not_compiled() -> None:
    vector = torch.zeros(6)
    part = vector[2:4]

    def function(x: Tensor) -> list[Tensor]:
        vector.add_(x)
        return [part * 2.0]

    with pytest.raises(TraceError, match="same memory by two tensors"):
        trace(function, [torch.ones(6)])
    other = vector.clone()[2:4]

    def apart(x: Tensor) -> list[Tensor]:
        vector.add_(x)
        return [other * 2.0]

    (written,) = trace(apart, [torch.ones(6)]).written
    assert written is vector


def test_memory_that_is_only_read_may_be_reached_by_several_tensors() -> None:
    bounds, count = torch.tensor([[-1.0, 1.0], [-2.0, 2.0]]), torch.zeros(())
    low, high = bounds[:, 0], bounds[:, 1]  # which lie between each other

    def function(x: Tensor) -> list[Tensor]:
        count.add_(1.0)
        return [x.clone().add_(3.0).clamp(low, high)]

    (written,) = trace(function, [torch.ones(2)]).written
    assert written is count

    def changing(x: Tensor) -> list[Tensor]:
        low.view(2).add_(1.0)
        return [x.clamp(low, high)]

    with pytest.raises(TraceError, match="same memory by two tensors"):
        trace(changing, [torch.ones(2)])


@needs_compiler
def test_acting_is_told_where_episodes_begin() -> None:
    def explore(
        observation: Tensor, state: State, noise: Tensor, episode_start: Tensor | None
    ) -> ActionOutput:
        assert episode_start is not None
        action = torch.where(episode_start, -1.0, observation)
        return ActionOutput(action, action, state)

    actor = ToyActor(spaces.Box(-1.0, 1.0, (1,)), spaces.Discrete(2))
    acting = CompiledActing(explore, actor)
    acting.function.mode = "on"
    for begins in ([True, False], [False, True], [False, False]):
        flags = torch.tensor(begins)
        output = acting(torch.ones(2), {}, torch.zeros(2), flags)
        assert output.action.tolist() == [-1.0 if each else 1.0 for each in begins]
    assert len(acting.function) == 1


@needs_compiler
def test_compiled_acting_returns_extras() -> None:
    def explore(
        observation: Tensor, state: State, noise: Tensor, episode_start: Tensor | None
    ) -> ActionOutput:
        return ActionOutput(noise, 2.0 * noise, state, {"chance": observation.exp()})

    actor = ToyActor(spaces.Box(-1.0, 1.0, (1,)), spaces.Discrete(2))
    acting = CompiledActing(explore, actor, ["chance"])
    acting.function.mode = "on"
    for number in (0.0, 1.0):
        output = acting(torch.full((2,), number), {}, torch.ones(2), None)
        assert output.env_action.tolist() == [2.0, 2.0]
        torch.testing.assert_close(output.extras, {"chance": torch.full((2,), number).exp()})
    assert len(acting.function) == 1


@needs_compiler
def test_captured_tensors_may_lie_apart_in_memory() -> None:
    stats = torch.arange(12.0).view(6, 2)
    scale, total = stats[:, 0], torch.zeros(6, 2)[:, 1]

    def function(_: Hashable, x: Tensor) -> Mapping[str, Tensor]:
        total.add_(x)
        return {"y": x * scale}

    compiled = _compiled(function)
    for times in (1.0, 2.0, 3.0):
        result = compiled(None, torch.ones(6))
        assert result is not None
        assert result["y"].tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        assert total.tolist() == [times] * 6


def test_axes_of_one_have_no_stride() -> None:
    wide = torch.ones(2, 4)
    digests = {trace(lambda x: [x + 1.0], [x]).digest for x in (wide[:1], torch.ones(1, 4))}
    odd = torch.ones(4).as_strided((1, 4), (8, 1))
    assert odd.is_contiguous()
    assert digests == {trace(lambda x: [x + 1.0], [odd]).digest}


def test_everybody_who_waits_for_a_failed_compilation_is_told_why() -> None:
    traced = trace(lambda x: [x.sinh() * 1.25], [torch.ones(3)])
    compilation = Compilation(traced.digest, traced)

    def fail(seconds: float | None) -> bool:
        raise CompileError("no room")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compilation, "_is_over", fail)
        with pytest.raises(CompileError, match="no room"):
            compilation.finish()
    with pytest.raises(CompileError, match="no room"):
        compilation.finish()


def test_only_what_torch_calls_counts_as_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("shutil.which", lambda name: name if name == "clang++" else None)
    assert not has_cpp_compiler()
    monkeypatch.setenv("CXX", "clang++")
    assert has_cpp_compiler()


def test_functions_that_do_the_same_have_one_digest() -> None:
    def made(scale: Tensor, factor: float) -> str:
        return trace(lambda x: [x * scale * factor], [torch.ones(2)]).digest

    assert made(torch.ones(2), 2.0) == made(torch.zeros(2), 2.0)
    assert made(torch.ones(2), 2.0) != made(torch.ones(2), 3.0)
    assert made(torch.ones(2), 2.0) != made(torch.ones(1), 2.0)
    assert made(torch.ones(2), 2.0) != made(torch.ones(2).double(), 2.0)


def test_a_function_is_the_same_within_inference_mode() -> None:
    weight = torch.ones(2, requires_grad=True)

    def digest() -> str:
        return trace(lambda x: [x @ weight], [torch.ones(3, 2)]).digest

    with torch.inference_mode():
        within = digest()
    assert digest() == within


def test_what_cannot_be_compared_runs_uncompiled() -> None:
    compiled = CompiledFunction(lambda _, x, y: {"z": x}, "the function", CPU)
    compiled.mode = "auto"
    with pytest.warns(RuntimeWarning, match=r"unhashable.*make it a tensor.*uncompiled"):
        assert compiled("", torch.ones(2), np.ones(2)) is None


def test_tracing_does_not_import_the_compiler() -> None:
    code = (
        "import sys, torch\n"
        "from rl_core.compile.trace import trace\n"
        "weight = torch.ones(2, requires_grad=True)\n"
        "def step(x):\n"
        "    with torch.enable_grad():\n"
        "        gradient, = torch.autograd.grad((weight * x).square().sum(), weight)\n"
        "    weight.sub_(gradient)\n"
        "    return [gradient]\n"
        "assert trace(step, [torch.ones(2)]).written\n"
        "assert weight.tolist() == [1.0, 1.0]\n"
        "print([name for name in ('torch._dynamo', 'sympy') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_tracing_draws_no_random_numbers() -> None:
    state = torch.get_rng_state()
    with pytest.raises(TraceError, match="random numbers"):
        trace(lambda x: [x + torch.rand(2)], [torch.ones(2)])
    assert torch.equal(torch.get_rng_state(), state)


def test_rows_may_be_picked_by_their_places() -> None:
    places = torch.tensor([2, 0])
    traced = trace(lambda x: [x[places, places]], [_random(3, 3)])
    (result,) = traced.module(_random(3, 3), places)
    assert torch.equal(result, _random(3, 3)[places, places])


@pytest.mark.parametrize(
    "tensor",
    [_random(4, 3).t(), _random(6)[1::2], _random(1, 3).expand(2, -1), torch.zeros(0, 2)],
    ids=["transposed", "every other", "expanded", "empty"],
)
def test_captured_tensors_keep_their_strides(tensor: Tensor) -> None:
    traced = trace(lambda x: [tensor * x], [torch.ones(())])
    assert traced.forms[1].stride == tensor.stride()
    (result,) = traced.module(torch.tensor(2.0), tensor)
    assert torch.equal(result, tensor * 2.0)


def test_tracing_leaves_everything_as_it_is() -> None:
    layer = nn.BatchNorm1d(2)
    before = copy.deepcopy(layer.state_dict())
    trace(lambda x: [layer(x)], [torch.ones(3, 2)])
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    assert all(type(value) is torch.Tensor for value in layer.buffers())


@needs_compiler
def test_wrong_numbers_are_found_in_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    real = BACKEND.finish

    def wrong(self: object, seconds: float | None = None) -> object:
        run = real(self, seconds)  # type: ignore[arg-type]  # of a compilation
        return run and (lambda inputs: [part * 1.1 for part in run(inputs)])

    monkeypatch.setattr(BACKEND, "finish", wrong)
    compiled = _compiled(lambda _, x: {"y": x * 1.5 + 0.25})
    with pytest.raises(ConfigError, match="compiled and uncompiled results differ"):
        compiled(None, torch.ones(2))


@needs_compiler
def test_a_change_that_gets_lost_is_found_in_the_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    total = torch.zeros(2)

    def add(_: None, x: Tensor) -> dict[str, Tensor]:
        total.add_(x * 1.75)
        return {"y": x * 2.5}

    real = BACKEND.finish

    def forgetful(self: object, seconds: float | None = None) -> object:
        run = real(self, seconds)  # type: ignore[arg-type]  # of a compilation
        return run and (lambda inputs: run([tensor.clone() for tensor in inputs]))

    monkeypatch.setattr(BACKEND, "finish", forgetful)
    with pytest.raises(ConfigError, match="compiled and uncompiled results differ"):
        _compiled(add)(None, torch.ones(2))
    assert total.tolist() == [0.0, 0.0]


@needs_compiler
def test_a_copy_has_a_function_and_graphs_of_its_own() -> None:
    class Counter:
        def __init__(self) -> None:
            self.total = torch.zeros(2)
            self.compiled = _compiled(self.add)

        def add(self, _: None, x: Tensor) -> dict[str, Tensor]:
            self.total.add_(x * 0.5)
            return {"y": self.total * 3.0}

    first = Counter()
    assert first.compiled(None, torch.ones(2)) is not None
    second = copy.deepcopy(first)
    result = second.compiled(None, torch.ones(2))
    assert result is not None
    assert (first.total.tolist(), second.total.tolist()) == ([0.5, 0.5], [1.0, 1.0])
    assert result["y"].tolist() == [3.0, 3.0]


@needs_compiler
def test_threads_may_compile_at_once() -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for k in range(3):
                compiled = _compiled(lambda _, x, k=k: {"y": x * (k + 0.125)})
                result = compiled(None, torch.full((2,), float(number)))
                assert result is not None
                assert result["y"].tolist() == [number * (k + 0.125)] * 2
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@needs_compiler
def test_calls_run_uncompiled_until_the_graph_is_adopted() -> None:
    compiled = _compiled(lambda _, x: {"y": x * 0.375})
    compiled.waits = False
    x = torch.ones(2)
    assert compiled(None, x) is None
    compiled.wait()  # nothing was adopted
    assert compiled(None, x) is None
    compiled.adopt()
    compiled.wait()
    assert compiled(None, x) is not None
    assert compiled(None, torch.ones(3)) is None
    resumed = _compiled(lambda _, x: {"y": x * 0.375})
    resumed.waits, resumed.adopted = False, set(compiled.adopted)
    assert resumed(None, x) is not None
    assert resumed(None, torch.ones(3)) is None


@needs_compiler
def test_waiting_ends_when_the_run_is_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BACKEND, "finish", lambda self, seconds: None)
    compiled = _compiled(lambda _, x: {"y": x * 0.625})
    compiled.waits, compiled.is_stopping = False, lambda: True
    assert compiled(None, torch.ones(2)) is None
    compiled.adopt()
    compiled.wait()


@needs_compiler
def test_what_fails_beside_the_compiler_is_no_failure_of_the_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing() -> bool:
        raise ValueError("a callback's own")

    monkeypatch.setattr(BACKEND, "finish", lambda self, seconds: None)
    compiled = _compiled(lambda _, x: {"y": x * 0.65625})
    compiled.waits, compiled.is_stopping = False, failing
    assert compiled(None, torch.ones(2)) is None
    compiled.adopt()
    with pytest.raises(ValueError, match="a callback's own"):
        compiled.wait()


@needs_compiler
def test_a_call_waits_to_the_end_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run uncompiled, it would differ by rounding from that of a run that was not stopped."""
    finish: Callable[..., object] = BACKEND.finish
    waited: list[float | None] = []

    def finish_later(self: object, seconds: float | None) -> object:
        waited.append(seconds)
        return finish(self, None) if len(waited) == 3 else None

    monkeypatch.setattr(BACKEND, "finish", finish_later)
    compiled = _compiled(lambda _, x: {"y": x * 0.6875})
    compiled.is_stopping = lambda: True
    result = compiled(None, torch.ones(2))
    assert result is not None
    assert result["y"].tolist() == [0.6875, 0.6875]
    assert len(waited) == 3


shared_cache = GraphCache.shared.__wrapped__
"""What returns the cache of a process, without keeping it."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GraphCache:
    """A folder for graphs that no other test uses."""
    own = GraphCache.shared().compiler_folder()
    made = GraphCache(tmp_path / "graphs")
    (made.folder / "inductor").symlink_to(own)  # headers take the compiler long
    monkeypatch.setattr(GraphCache, "shared", lambda: made)
    monkeypatch.setattr("rl_core.compile.library._loaded", {})
    monkeypatch.setattr("rl_core.compile.library._running", {})
    return made


needs_libraries = pytest.mark.skipif(
    not (has_cpp_compiler() and is_supported()), reason="no compiled libraries here"
)


@needs_libraries
def test_a_damaged_graph_is_compiled_again_with_one_notice(
    cache: GraphCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(2)

    def function(_: None, x: Tensor) -> dict[str, Tensor]:
        return {"y": x * 7.5}

    assert _compiled(function)(None, x) is not None
    (library,) = cache.folder.glob(f"*/{LIBRARY}")
    assert not list(cache.folder.glob("new-*"))
    started = library.stat().st_mtime_ns
    monkeypatch.setattr("rl_core.compile.library._loaded", {})
    assert _compiled(function)(None, x) is not None
    assert library.stat().st_mtime_ns == started  # it was loaded
    digest = library.with_name("sha256")
    assert _compiled(lambda _, x: {"y": x * 8.5})(None, torch.ones(3)) is not None
    (other,) = set(cache.folder.glob(f"*/{LIBRARY}")) - {library}
    for content, its_digest in (
        (library.read_bytes()[:-1000], digest.read_text()),
        (other.read_bytes(), other.with_name("sha256").read_text()),  # of another graph
    ):
        monkeypatch.setattr("rl_core.compile.library._loaded", {})
        library.unlink()  # it is mapped into this process
        library.write_bytes(content)
        digest.write_text(its_digest)
        with pytest.warns(RuntimeWarning, match="are damaged and are compiled again"):
            result = _compiled(function)(None, x)
        assert result is not None
        assert result["y"].tolist() == [7.5, 7.5]


@needs_libraries
def test_headers_are_compiled_once_where_many_graphs_need_them(cache: GraphCache) -> None:
    def compiled_headers() -> dict[Path, int]:
        found = (cache.folder / "inductor").glob("*.gch")
        return {header: header.stat().st_mtime_ns for header in found}

    (cache.folder / "inductor").unlink()  # the one that all tests share
    for factor in (9.5, 10.5):
        assert _compiled(lambda _, x, f=factor: {"y": x * f})(None, torch.ones(2)) is not None
    assert not compiled_headers()
    assert _compiled(lambda _, x: {"y": x * 11.5})(None, torch.ones(2)) is not None
    deadline = time.monotonic() + 120.0
    while len(compiled_headers()) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    headers = compiled_headers()
    assert len(headers) == 2
    result = _compiled(lambda _, x: {"y": x * 12.5})(None, torch.ones(2))
    assert result is not None
    assert result["y"].tolist() == [12.5, 12.5]
    assert compiled_headers() == headers


@needs_libraries
def test_the_compiler_starts_early_where_nothing_was_compiled(
    cache: GraphCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_core.compile.process._compilers", {})
    monkeypatch.setattr("rl_core.compile.process._GPU", Path("/dev/null"))
    process.start_early()
    assert not process._compilers
    monkeypatch.setattr("rl_core.compile.process._GPU", Path("/dev/no-gpu"))
    process.start_early()
    (started,) = process._compilers.values()
    process.start_early()
    assert list(process._compilers.values()) == [started]
    assert _compiled(lambda _, x: {"y": x * 13.5})(None, torch.ones(2)) is not None
    assert list(process._compilers.values()) == [started]
    process.stop_compilers()
    process.start_early()
    assert not process._compilers


@needs_libraries
def test_what_is_no_whole_graph_is_replaced(
    cache: GraphCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process leaves it that is killed while it removes a graph."""

    def function(_: None, x: Tensor) -> dict[str, Tensor]:
        return {"y": x * 14.5}

    assert _compiled(function)(None, torch.ones(2)) is not None
    (digest,) = cache.folder.glob("*/sha256")
    digest.unlink()
    monkeypatch.setattr("rl_core.compile.library._loaded", {})
    assert _compiled(function)(None, torch.ones(2)) is not None
    assert digest.exists()


@needs_libraries
def test_a_graph_that_was_compiled_needs_no_compiler(
    cache: GraphCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def function(_: None, x: Tensor) -> dict[str, Tensor]:
        return {"y": x * 15.5}

    assert _compiled(function)(None, torch.ones(2)) is not None
    monkeypatch.setattr("rl_core.compile.library._loaded", {})
    monkeypatch.setenv("CXX", "no-such-compiler")
    key = next(path.name for path in cache.folder.glob("*") if (path / LIBRARY).exists())
    monkeypatch.setattr("rl_core.compile.library._key", lambda traced: key)  # it names CXX too
    check_compiler(CPU)
    assert _compiled(function)(None, torch.ones(2)) is not None
    monkeypatch.setattr("rl_core.compile.library._key", lambda traced: "another")
    with pytest.raises(ConfigError, match=r"no C\+\+ compiler was found"):
        _compiled(lambda _, x: {"y": x * 16.5})(None, torch.ones(2))


@needs_libraries
def test_damaged_headers_are_written_again_and_paths_may_have_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "it's a place"
    cache = GraphCache(folder)
    monkeypatch.setattr(GraphCache, "shared", lambda: cache)
    for factor in (17.5, 18.5):
        result = _compiled(lambda _, x, f=factor: {"y": x * f})(None, torch.ones(2))
        assert result is not None
        assert result["y"].tolist() == [factor, factor]
        for header in (folder / "inductor").glob("*.h"):
            header.write_text(header.read_text()[:100])
    assert len(list(folder.glob(f"*/{LIBRARY}"))) == 2


@needs_libraries
def test_a_compiler_that_fails_is_quoted_once_for_all_functions(
    cache: GraphCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "g++"
    broken.write_text(
        f'#!/bin/sh\n[ $# = 1 ] && exec {shutil.which("g++")} "$@"\n'  # what version it is
        "echo 'g++: fatal error: no disk left' >&2; exit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    first = CompiledFunction(lambda _, x: {"y": x * 19.5}, "the first", CPU)
    second = CompiledFunction(lambda _, x: {"y": x * 20.5}, "the second", CPU)
    functions = CompiledFunctions({"first": first, "second": second})
    functions.set_mode("auto")
    with pytest.warns(RuntimeWarning, match=r"the first failed \(g\+\+: fatal error: no disk"):
        assert first(None, torch.ones(2)) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert second(None, torch.ones(2)) is None
    assert not list(cache.folder.glob("new-*"))


def test_a_folder_that_is_read_only_is_read(
    cache: GraphCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = cache.folder / "key"
    kept.mkdir()
    (kept / LIBRARY).write_bytes(b"library")
    (kept / "sha256").write_text(hashlib.sha256(b"key" + b"library").hexdigest())
    monkeypatch.setenv("RL_CACHE_DIR", str(cache.folder.parent))
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: path != cache.folder and access(path, mode)
    )
    with pytest.warns(RuntimeWarning, match="cannot be written into"):
        made = shared_cache()
    assert "key" in made
    assert made.verified("key") == kept / LIBRARY
    assert made.folder != cache.folder
    made.remove("key")  # as where it is damaged
    assert "key" not in made
    assert kept.exists()


def test_a_user_without_a_home_keeps_graphs_for_the_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("RL_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", fail)
    with pytest.warns(RuntimeWarning, match=r"cannot be kept \(Could not determine home"):
        shared_cache()
    monkeypatch.setenv("RL_CACHE_DIR", str(tmp_path))
    assert shared_cache().folder == tmp_path / "graphs"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RL_CACHE_DIR", "~/mine")
    assert shared_cache().folder == tmp_path / "mine" / "graphs"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RL_CACHE_DIR", "here")
    assert shared_cache().folder == tmp_path / "here" / "graphs"


def test_what_was_not_used_for_two_months_is_removed(tmp_path: Path) -> None:
    for name, days in (("old", 61), ("recent", 59)):
        for folder in (tmp_path / name, tmp_path / "inductor" / name):
            folder.mkdir(parents=True)
            (folder / "sha256").write_text("")
            past = time.time() - days * 24 * 3600
            os.utime(folder, (past, past))
    GraphCache(tmp_path)
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("sha256")}
    assert names == {"recent/sha256", "inductor/recent/sha256"}


def _of_a_list(x: Tensor) -> Tensor:
    return x * torch.tensor([x.mean(), x.std()])[1]


def _of_a_part(x: Tensor) -> Tensor:
    return torch.tensor_split(x, x.argmax().view(1).clamp(min=1))[0].sum() + x


def _of_a_parameter(x: Tensor) -> Tensor:
    return x * nn.Parameter(x.std())


def _of_python(x: Tensor) -> Tensor:
    return x * random.random()


@needs_compiler
@pytest.mark.parametrize("function", [_of_a_list, _of_a_part, _of_a_parameter, _of_python])
def test_what_would_stay_as_in_the_first_call_is_found_in_the_second(
    function: Callable[[Tensor], Tensor],
) -> None:
    compiled = CompiledFunction(lambda _, x: {"y": function(x)}, "the function", CPU)
    compiled.mode = "auto"
    assert compiled(None, torch.tensor([1.0, 2.0, 4.0])) is not None
    with pytest.warns(RuntimeWarning, match="does something else in its second call"):
        assert compiled(None, torch.tensor([4.0, 2.0, 0.0])) is None


@needs_compiler
def test_constants_may_be_made_by_python() -> None:
    compiled = _compiled(lambda _, x: {"y": x * torch.tensor([0.5, math.nan, 2.0])})
    for x in (torch.ones(3), torch.zeros(3), torch.full((3,), 2.0)):
        result = compiled(None, x)
        assert result is not None
        torch.testing.assert_close(
            result["y"], x * torch.tensor([0.5, math.nan, 2.0]), equal_nan=True
        )


@needs_libraries
def test_the_compiler_ends_with_the_program(tmp_path: Path) -> None:
    code = (
        "import torch, sys\n"
        "from rl_core.compile.function import CompiledFunction\n"
        "f = CompiledFunction(lambda _, x: {'y': x * 2.125}, 'it', torch.device('cpu'))\n"
        "f.mode, f.waits = 'on', False\n"
        "assert f(None, torch.ones(2)) is None\n"
        "from rl_core.compile.process import _compilers\n"
        "print(next(iter(_compilers.values()))._process.pid)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "RL_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    pid = int(done.stdout)
    deadline = time.monotonic() + 5.0
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
    assert not list((tmp_path / "graphs").glob("new-*"))


@needs_libraries
def test_the_compiler_keeps_its_files_in_the_user_s_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Mapping[str, str]] = []

    def refuse(words: object, env: Mapping[str, str], **others: object) -> None:
        started.append(env)
        raise OSError("not started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(GraphCache, "shared", lambda: GraphCache(tmp_path))
    function = CompiledFunction(lambda _, x: {"y": x * 3.375}, "the function", CPU)
    function.mode = "auto"
    with pytest.warns(RuntimeWarning, match="not started"):
        assert function(None, torch.ones(2)) is None
    for name in ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR"):
        folder = Path(started[0][name])
        assert folder.is_relative_to(tmp_path)
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(PermissionError, match="others may write into it"):
        GraphCache(tmp_path / "open")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        GraphCache(tmp_path / "file" / "graphs")


def test_without_a_folder_graphs_are_kept_for_the_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RL_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="RL_CACHE_DIR"):
        made = shared_cache()
    assert made.folder.exists()


def test_trees_are_taken_apart_and_put_together() -> None:
    tree: tuple[Numbered, list[Tensor | None], dict[str, Tensor]] = (
        Numbered(torch.ones(1), 2.0, {"b": torch.ones(2)}),
        [torch.ones(3), None],
        {},
    )
    tensors, rest = flatten(tree)
    assert [len(tensor) for tensor in tensors] == [1, 2, 3]
    assert hash(tuple(rest)) != hash(tuple(flatten((tree[0], [torch.ones(3), 1], {}))[1]))
    again = rebuild(tree, iter([tensor + 1.0 for tensor in tensors]))
    assert again[0].x.tolist() == [2.0]
    assert again[0].factor == 2.0
    assert again[0].extras["b"].tolist() == [2.0, 2.0]
    assert again[1][1] is None


def test_trees_are_told_apart_by_where_their_tensors_stand() -> None:
    x = torch.ones(1)
    trees = [(x, None), (None, x), (x, 1.0), (1.0, x), ({"a": x}, None), (None, {"a": x})]
    assert len({tuple(flatten(tree)[1]) for tree in trees}) == len(trees)


def test_no_warning_is_left_behind() -> None:
    """Importing the compiler's parts warns of nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        subprocess.run(
            [sys.executable, "-W", "error", "-c", "import rl_core.compile.function"], check=True
        )
