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
def product(a: Tensor, b: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """Multiply ``a (M, K)`` by the transpose of ``b (N, K)``.

    Args:
        a: one factor.
        b: the other.
        bias: added to each row, shape `(N,)`.
        activation: ``"none"`` or ``"relu"``, which comes last.
    """
    result: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, bias, activation, [], "")
    return result


@product.register_fake
def _product_shape(a: Tensor, b: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[0])


@register_lowering(torch.ops.rl_core.product.default, type_promotion_kind=None)
def _lower_product(
    a: TensorBox, b: TensorBox, bias: TensorBox | None, activation: str
) -> TensorBox:
    call = LinearUnary.create(a, b, bias, activation, [], "")  # type: ignore[no-untyped-call]  # torch leaves it untyped
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
                rewrite(_Builder(graph), node)

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


def _product(
    call: _Builder, a: fx.Node, b: fx.Node, bias: fx.Node | None = None, activation: str = "none"
) -> fx.Node:
    transposed = call(_aten.permute.default, b, [1, 0])
    return call(torch.ops.rl_core.product.default, a, transposed, bias, activation)


def _replace(node: fx.Node, result: fx.Node) -> None:
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)


def _mm(call: _Builder, node: fx.Node) -> None:
    a, b = _nodes(node)
    if _is_ours(a) and _is_large(a, b):
        _replace(node, _product(call, a, b))


def _addmm(call: _Builder, node: fx.Node) -> None:
    bias, a, b = _nodes(node)
    if not (_is_ours(a) and _is_large(a, b)):
        return
    if _value(bias).dim() != 1:
        _replace(node, call(_aten.add.Tensor, _product(call, a, b), bias))
        return
    users = list(node.users)
    is_rectified = len(users) == 1 and users[0].target is _aten.relu.default
    result = _product(call, a, b, bias, "relu" if is_rectified else "none")
    if is_rectified:
        _replace(users[0], result)
        node.graph.erase_node(node)
    else:
        _replace(node, result)


def _bmm(call: _Builder, node: fx.Node) -> None:
    result = _batched(call, *_nodes(node))
    if result is not None:
        _replace(node, result)


def _baddbmm(call: _Builder, node: fx.Node) -> None:
    bias, a, b = _nodes(node)
    result = _batched(call, a, b)
    if result is not None:
        _replace(node, call(_aten.add.Tensor, result, bias))


def _batched(call: _Builder, a: fx.Node, b: fx.Node) -> fx.Node | None:
    if _is_ours(a) and _value(b).shape[-1] == 1:
        row = call(_aten.permute.default, b, [0, 2, 1])
        return call(_aten.sum.dim_IntList, call(_aten.mul.Tensor, a, row), [-1], True)
    if not (_is_ours(a) and _is_large(a, b)):
        return None
    members = []
    for member in range(_value(a).shape[0]):
        own_a, own_b = (call(_aten.select.int, part, 0, member) for part in (a, b))
        members.append(call(_aten.unsqueeze.default, _product(call, own_a, own_b), 0))
    return call(_aten.cat.default, members)


def _nodes(node: fx.Node) -> list[fx.Node]:
    return [arg for arg in node.args if isinstance(arg, fx.Node)]


_REWRITES: Mapping[Any, Callable[[_Builder, fx.Node], None]] = {
    _aten.mm.default: _mm,
    _aten.addmm.default: _addmm,
    _aten.bmm.default: _bmm,
    _aten.baddbmm.default: _baddbmm,
}
