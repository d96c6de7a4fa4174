from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import fresh_cache

from rl_core.graphs import compile_graph, has_cpp_compiler

pytestmark = pytest.mark.skipif(not has_cpp_compiler(), reason="no C++ compiler")

CPU = torch.device("cpu")


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


WIDE, SQUARE, BIAS = _random(128, 96), _random(96, 96), _random(96)
SMALL = _random(4, 3)


def _both(*parts: Tensor) -> Tensor:
    result = torch.addmm(*parts)
    return result.relu() - 0.5 * result


PRODUCTS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], int]] = {
    "large": (lambda a, b: a @ b, (WIDE, SQUARE), 1),
    "large, transposed": (lambda a, b: a.t() @ (b @ a.t()).t(), (WIDE, SQUARE), 2),
    "large, with a bias": (torch.addmm, (BIAS, WIDE, SQUARE), 1),
    "large, with a matrix for a bias": (torch.addmm, (WIDE, WIDE, SQUARE), 1),
    "large, rectified": (lambda *parts: torch.addmm(*parts).relu(), (BIAS, WIDE, SQUARE), 1),
    "large, rectified and not": (_both, (BIAS, WIDE, SQUARE), 1),
    "small": (lambda a, b: a @ b, (SMALL, SMALL.t().contiguous()), 0),
    "large ensemble": (torch.bmm, (_random(3, 128, 96), _random(3, 96, 80)), 3),
    "large ensemble, with biases": (
        torch.baddbmm,
        (_random(3, 1, 80), _random(3, 128, 96), _random(3, 96, 80)),
        3,
    ),
    "large ensemble of one input": (
        lambda a, b: torch.bmm(a.expand(2, -1, -1), b),
        (WIDE[None], _random(2, 96, 80)),
        2,
    ),
    "small ensemble": (torch.bmm, (_random(2, 8, 5), _random(2, 5, 4)), 0),
    "ensemble with one output": (
        torch.baddbmm,
        (_random(2, 1, 1), _random(2, 128, 96), _random(2, 96, 1)),
        0,
    ),
    "another type": (lambda a, b: a @ b, (WIDE.double(), SQUARE.double()), 0),
}


def _products(arguments: dict[str, tuple[Tensor, ...]]) -> dict[str, Tensor]:
    return {name: PRODUCTS[name][0](*given) for name, given in arguments.items()}


def test_products_are_what_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten = pytest.importorskip("rl_core._products")
    made = []
    create = rewritten.LinearUnary.create

    def count(*parts: object) -> object:
        made.append(parts)
        return create(*parts)

    monkeypatch.setattr(rewritten.LinearUnary, "create", count)
    arguments = {name: given for name, (_, given, _) in PRODUCTS.items()}
    expected = _products(arguments)
    with fresh_cache():
        graph = compile_graph(_products, (arguments,), CPU)
    results = graph(arguments)
    assert list(results) == list(expected)
    torch.testing.assert_close(results, expected, rtol=1e-5, atol=1e-4)
    assert len(made) == sum(number for _, _, number in PRODUCTS.values())
