from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import fresh_cache

from rl_core.graphs import compile_graph, has_cpp_compiler
from rl_core.threads import thread_count

pytestmark = pytest.mark.skipif(not has_cpp_compiler(), reason="no C++ compiler")

CPU = torch.device("cpu")


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


WIDE, SQUARE, BIAS = _random(128, 96), _random(96, 96), _random(96)
ODD = _random(37, 5)
COLUMN = _random(96, 1)


def _both(*parts: Tensor) -> Tensor:
    result = torch.addmm(*parts)
    return result.relu() - 0.5 * result


PRODUCTS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], int]] = {
    "large": (lambda a, b: a @ b, (WIDE, SQUARE), 1),
    "transposed": (lambda a, b: a.t() @ (b @ a.t()).t(), (WIDE, SQUARE), 2),
    "parts of a vector": (
        lambda v: v[5:101].view(8, 12) @ v[101:161].view(5, 12).t(),
        (_random(200),),
        1,
    ),
    "every other row": (lambda a, b: a[::2] @ b, (WIDE, SQUARE), 1),
    "a row for all": (lambda a, b: a[:1].expand(4, -1) @ b, (WIDE, SQUARE), 1),
    "with a bias": (torch.addmm, (BIAS, WIDE, SQUARE), 1),
    "with a matrix for a bias": (torch.addmm, (WIDE, WIDE, SQUARE), 1),
    "rectified and not": (_both, (BIAS, WIDE, SQUARE), 1),
    "odd sizes": (lambda a, b: a @ b.t(), (ODD, _random(7, 5)), 1),
    "one row": (lambda a, b: a @ b, (_random(1, 96), SQUARE), 1),
    "one column": (lambda a, b: a @ b, (WIDE, COLUMN), 0),
    "one column, with a bias": (torch.addmm, (_random(1), WIDE, COLUMN), 0),
    "one inner number": (lambda a, b: a @ b.t(), (COLUMN, _random(30, 1)), 0),
    "ensemble": (torch.bmm, (_random(3, 128, 96), _random(3, 96, 80)), 3),
    "ensemble, with biases": (
        torch.baddbmm,
        (_random(3, 1, 80), _random(3, 128, 96), _random(3, 96, 80)),
        3,
    ),
    "ensemble of one input": (
        lambda a, b: torch.bmm(a.expand(2, -1, -1), b),
        (WIDE[None], _random(2, 96, 80)),
        2,
    ),
    "ensemble with one output": (
        torch.baddbmm,
        (_random(2, 1, 1), _random(2, 128, 96), _random(2, 96, 1)),
        0,
    ),
    "ensemble with one inner number": (torch.bmm, (_random(2, 8, 1), _random(2, 1, 5)), 0),
    "many members": (torch.bmm, (_random(17, 8, 5), _random(17, 5, 4)), 0),
    "another type": (lambda a, b: a @ b, (WIDE.double(), SQUARE.double()), 0),
}


def _products(arguments: dict[str, tuple[Tensor, ...]]) -> dict[str, Tensor]:
    return {name: PRODUCTS[name][0](*given) for name, given in arguments.items()}


@pytest.mark.parametrize("threads", [1, 2])
def test_products_are_what_they_were(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten = pytest.importorskip("rl_core._products")
    if not rewritten.has_kernel():
        pytest.skip("this PyTorch has no such kernel")
    made = []
    write = rewritten.Product.codegen

    def count(*parts: object) -> object:
        made.append(parts)
        return write(*parts)

    monkeypatch.setattr(rewritten.Product, "codegen", count)
    arguments = {name: given for name, (_, given, _) in PRODUCTS.items()}
    expected = _products(arguments)
    with fresh_cache(), thread_count(threads):
        graph = compile_graph(_products, (), (arguments,), CPU)
        results = graph(arguments)
    assert list(results) == list(expected)
    torch.testing.assert_close(results, expected, rtol=1e-5, atol=1e-4)
    assert len(made) == sum(number for _, _, number in PRODUCTS.values())


def _accumulate(
    total: dict[str, Tensor], part: dict[str, Tensor], factor: Tensor
) -> dict[str, Tensor]:
    total["sum"].add_(part["a"] * factor)
    return {"b": part["b"] + SCALE, "a": part["a"] * 2.0}


SCALE = torch.tensor([3.0, 4.0])


def test_later_calls_are_like_the_first() -> None:
    total = {"sum": torch.zeros(2)}
    example = {"a": torch.ones(2), "b": torch.zeros(2)}, torch.tensor(1.0)
    graph = compile_graph(_accumulate, (total,), example, CPU)
    total["sum"].zero_()
    for k in range(1, 4):
        part = {"a": torch.tensor([k, 10.0 * k]), "b": torch.tensor([k, -1.0])}
        result = graph(part, torch.tensor(2.0))
        assert list(result) == ["b", "a"]
        assert result["a"].tolist() == [2.0 * k, 20.0 * k]
        assert result["b"].tolist() == [3.0 + k, 3.0]
        assert part["a"].tolist() == [k, 10.0 * k]
    assert total["sum"].tolist() == [12.0, 120.0]
    SCALE.add_(1.0)  # what is not an argument is read anew
    result = graph({"a": torch.ones(2), "b": torch.zeros(2)}, torch.tensor(0.0))
    assert result["b"].tolist() == SCALE.tolist()


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: (a, a + b),
        lambda a, b: (a + b, (a + b).view(2, 1)),
        lambda a, b: a + b,
        lambda a, b: {"all": (a + b, a - b)},
        lambda a, b: (a * 2.0, b * 2.0, a + b),
    ],
    ids=["an argument", "a view", "a tensor", "a tree", "a tuple"],
)
def test_any_result_is_right_in_every_call(function: Callable[..., object]) -> None:
    graph = compile_graph(function, (), (torch.ones(2), torch.ones(2)), CPU)
    for k in range(3):
        arguments = torch.tensor([k, 2.0]), torch.tensor([5.0, -k])
        torch.testing.assert_close(graph(*arguments), function(*arguments), rtol=0.0, atol=0.0)


def _two_layers(x: Tensor) -> dict[str, Tensor]:
    return {"y": (x @ SQUARE).relu() @ SQUARE[:, : len(x) - (len(x) + 1) // 2]}


def test_every_shape_has_a_graph_of_its_own() -> None:
    for rows in (6, 10, 7):
        x = _random(rows, 96)
        graph = compile_graph(_two_layers, (), (x,), CPU)
        torch.testing.assert_close(graph(x), _two_layers(x), rtol=1e-5, atol=1e-4)


def test_a_graph_for_sizes_that_vary_multiplies_them() -> None:
    rewritten = pytest.importorskip("rl_core._products")
    if not rewritten.has_kernel():
        pytest.skip("this PyTorch has no such kernel")
    options = {"cpp_wrapper": True, "post_grad_custom_post_pass": rewritten.ProductPass()}
    graph = torch.compile(_two_layers, fullgraph=True, dynamic=True, options=options)
    for rows in (6, 10, 7):
        x = _random(rows, 96)
        torch.testing.assert_close(graph(x), _two_layers(x), rtol=1e-5, atol=1e-4)
