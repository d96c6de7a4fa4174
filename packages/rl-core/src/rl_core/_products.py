"""Matrix products of compiled graphs, each by the faster of two libraries.

PyTorch multiplies matrices by MKL, which leaves half of the arithmetic units of other makers'
processors idle. oneDNN, which PyTorch brings too, keeps them busy, but takes some 10 µs to be
called: it gets the larger products. A product with a single column, which batched routines are
slow at, becomes a sum that the compiler fuses with what surrounds it.

256x256 by 256x256 on a Zen 5 core: MKL 338 µs, oneDNN 160 µs. Two products of 256x256 by 256x1:
batched 97 µs, as a sum 10 µs.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.ir import TensorBox
from torch._inductor.lowering import register_lowering
from torch._inductor.mkldnn_ir import LinearUnary

_aten = torch.ops.aten

_LARGE = 1.5e6
"""Floating-point operations from which a product is worth oneDNN's call."""


@torch.library.custom_op("rl_core::product", mutates_args=())
def product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply ``a (M, K)`` by the transpose of ``b (N, K)``."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
    return result


@product.register_fake
def _product_shape(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[0])


@register_lowering(torch.ops.rl_core.product.default, type_promotion_kind=None)
def _lower_product(a: TensorBox, b: TensorBox) -> TensorBox:
    call = LinearUnary.create(a, b, None, "none", [], "")  # type: ignore[no-untyped-call]  # torch leaves it untyped
    result: TensorBox = TensorBox.create(call)
    return result


class ProductPass(CustomGraphPass):
    """Rewrites the products of a graph for the CPU."""

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite a graph in place."""
        for node in list(graph.nodes):
            rewrite = _REWRITES.get(node.target)
            if rewrite is None or node.kwargs:
                continue
            with graph.inserting_before(node):
                result = rewrite(_Builder(graph), *node.args)
            if result is not None:
                node.replace_all_uses_with(result)
                graph.erase_node(node)

    def uuid(self) -> Any:
        """Identify what the pass does, for the compiler's cache."""
        return get_hash_for_files((__file__,))


class _Builder:
    """Adds calls to a graph, each with the shape of its result."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph

    def __call__(self, function: Callable[..., Any], *args: Any) -> fx.Node:
        node = self._graph.call_function(function, args)
        values = fx.map_arg(args, _value)
        first = next(arg for arg in args if isinstance(arg, fx.Node | list))
        with _value(first[0] if isinstance(first, list) else first).fake_mode:  # type: ignore[attr-defined]  # of fake tensors only
            node.meta["val"] = function(*values)
        return node


def _value(node: fx.Node) -> Tensor:
    value: Tensor = node.meta["val"]
    return value


def _is_ours(a: fx.Node) -> bool:
    return _value(a).device.type == "cpu" and _value(a).dtype == torch.float32


def _is_large(a: fx.Node, b: fx.Node) -> bool:
    rows, inner = _value(a).shape[-2:]
    return 2.0 * rows * inner * _value(b).shape[-1] >= _LARGE


def _mm(call: _Builder, a: fx.Node, b: fx.Node) -> fx.Node | None:
    if not (_is_ours(a) and _is_large(a, b)):
        return None
    return call(torch.ops.rl_core.product.default, a, call(_aten.permute.default, b, [1, 0]))


def _bmm(call: _Builder, a: fx.Node, b: fx.Node) -> fx.Node | None:
    if _is_ours(a) and _value(b).shape[-1] == 1:
        row = call(_aten.permute.default, b, [0, 2, 1])
        return call(_aten.sum.dim_IntList, call(_aten.mul.Tensor, a, row), [-1], True)
    if not (_is_ours(a) and _is_large(a, b)):
        return None
    members = []
    for member in range(_value(a).shape[0]):
        parts = (call(_aten.select.int, part, 0, member) for part in (a, b))
        one = _mm(call, *parts)
        assert one is not None
        members.append(call(_aten.unsqueeze.default, one, 0))
    return call(_aten.cat.default, members)


def _added(
    multiply: Callable[[_Builder, fx.Node, fx.Node], fx.Node | None],
) -> Callable[..., fx.Node | None]:
    def rewrite(call: _Builder, bias: fx.Node, a: fx.Node, b: fx.Node) -> fx.Node | None:
        result = multiply(call, a, b)
        return None if result is None else call(_aten.add.Tensor, result, bias)

    return rewrite


_REWRITES: Mapping[Any, Callable[..., fx.Node | None]] = {
    _aten.mm.default: _mm,
    _aten.bmm.default: _bmm,
    _aten.addmm.default: _added(_mm),
    _aten.baddbmm.default: _added(_bmm),
}
