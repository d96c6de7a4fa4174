"""Matrix products of compiled graphs, by the kernel that costs nothing to call.

PyTorch multiplies matrices by MKL, which leaves half of the arithmetic units of other makers'
processors idle, or by oneDNN's primitives, which take some 10 µs to be called. Beneath the latter
lies a kernel for blocks of matrices (batch-reduce GEMM), which PyTorch exports; graphs call it
directly, for each thread's rows. Where a processor has no such kernel, it falls back to MKL itself.

A product with a single row or column becomes a sum, and one with a single inner number a
multiplication, which the compiler fuses with what surrounds them.

On a Zen 5 core, in µs by MKL, oneDNN and this: 64x64 by 64x64: 6, 15, 2; 128x120 by 120x84: 31, 26,
15; 256x256 by 256x256: 348, 166, 147. Two products of 256x256 by 256x1: batched 97, as a sum 10.
The kernel knows nothing of caches, so large matrices go through it in blocks: 256x3136 by 3136x512
on an Intel Xeon's core, in ms by MKL, at once, and in blocks: 5.6, 25.5, 5.3.
"""

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch._inductor import ir
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.lowering import register_lowering

_aten = torch.ops.aten

_MOST_MEMBERS = 16
"""Batched products of more than so many matrices stay as they are."""

_SYMBOL = "_ZN2at6native7cpublas6brgemmEllllllbPKfS3_Pfb"
"""The kernel's name in PyTorch's library."""

_HELPER = """
#include <algorithm>
#ifdef _OPENMP
#include <omp.h>
#endif

// As in ATen/native/CPUBlas.h, which takes the compiler longer than the rest.
namespace at::native::cpublas {
void brgemm(
    int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool,
    const float*, const float*, float*, bool);
}

// n columns of a product; each block of b stays in the cache while all rows of a pass by.
static inline void rl_core_columns(
    int64_t m, int64_t n, int64_t k, int64_t width, const float* a, const float* b, float* c) {
  constexpr int64_t block = 256;
  for (int64_t j = 0; j < n; j += block)
    for (int64_t l = 0; l < k; l += block)
      at::native::cpublas::brgemm(
          m, std::min(block, n - j), std::min(block, k - l), k, width, width, l > 0,
          a + l, b + l * width + j, c + j, false);
}

// c (m, n) = a (m, k) b (k, n), all row by row. Threads share the rows, or columns of few rows.
static inline void rl_core_product(
    int64_t m, int64_t n, int64_t k, const float* a, const float* b, float* c) {
  int64_t threads = 1;
#ifdef _OPENMP
  if (2.0 * m * n * k >= 1e6) threads = omp_get_max_threads();
#endif
  if (threads == 1) {
    rl_core_columns(m, n, k, n, a, b, c);
    return;
  }
  const bool by_rows = m >= 32;
  const int64_t rows = by_rows ? (m + threads - 1) / threads : m;
  const int64_t columns = by_rows ? n : ((n + threads - 1) / threads + 15) / 16 * 16;
  #pragma omp parallel for num_threads(threads)
  for (int64_t thread = 0; thread < threads; ++thread) {
    const int64_t i = by_rows ? thread * rows : 0, j = by_rows ? 0 : thread * columns;
    if (i < m && j < n)
      rl_core_columns(
          std::min(rows, m - i), std::min(columns, n - j), k, n, a + i * k, b + j, c + i * n + j);
  }
}
"""


def has_kernel() -> bool:
    """Say whether this PyTorch exports the kernel, and a small product by it is right."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        kernel = getattr(ctypes.CDLL(str(library)), _SYMBOL)
    except (OSError, AttributeError):
        return False
    kernel.argtypes = [*[ctypes.c_int64] * 6, ctypes.c_bool, *[ctypes.c_void_p] * 3, ctypes.c_bool]
    kernel.restype = None
    a = torch.arange(21.0).view(3, 7) - 9.0
    b = torch.arange(35.0).view(7, 5) - 11.0
    c = torch.full((3, 5), -1.0)
    kernel(3, 5, 7, 7, 5, 5, False, a.data_ptr(), b.data_ptr(), c.data_ptr(), False)
    return torch.equal(c, a @ b)  # whole numbers: no rounding


@torch.library.custom_op("rl_core::product", mutates_args=())
def product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply ``a (M, K)`` by ``b (K, N)``."""
    return a @ b


@product.register_fake
def _product_shape(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[1])


@register_lowering(torch.ops.rl_core.product.default, type_promotion_kind=None)
def _lower_product(a: ir.TensorBox, b: ir.TensorBox) -> ir.TensorBox:
    result: ir.TensorBox = ir.TensorBox.create(Product(a, b))
    return result


class Product(ir.ExternKernelOut):
    """The call of a product in generated C++.

    Args:
        a: shape `(M, K)`; copied where its rows do not follow each other.
        b: shape `(K, N)`; likewise.
    """

    def __init__(self, a: ir.TensorBox, b: ir.TensorBox) -> None:
        size = [a.get_size()[0], b.get_size()[1]]
        super().__init__(
            ir.FixedLayout(torch.device("cpu"), a.get_dtype(), size),
            [ir.ExternKernel.require_contiguous(ir.ExternKernel.realize_input(x)) for x in (a, b)],
        )

    def codegen(self, wrapper: PythonWrapperCodegen) -> None:
        """Write the call."""
        if _HELPER not in wrapper.header.getvalue():
            wrapper.header.splice(_HELPER)
        a, b = cast("list[ir.IRNode]", self.inputs)
        (m, k), n = a.get_size(), b.get_size()[1]
        sizes = [wrapper.codegen_sizevar(size) for size in (m, n, k)]
        pointers = [_pointer(x) for x in (a, b, self)]
        wrapper.writeline(f"rl_core_product({', '.join([*sizes, *pointers])});")  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _pointer(x: ir.IRNode) -> str:
    return f"(float*)({x.get_name()}.data_ptr()) + {x.get_layout().offset}"


_product = torch.ops.rl_core.product.default


def rewrite_products(graph: fx.Graph) -> None:
    """Rewrite the products of a graph for the CPU, in place."""
    for node in list(graph.nodes):
        rewrite = _REWRITES.get(node.target)
        if rewrite is None or node.kwargs:
            continue
        with graph.inserting_before(node):
            rewrite(_Builder(graph), node)


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


def _replace(node: fx.Node, result: fx.Node) -> None:
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)


def _without_bias(call: _Builder, node: fx.Node) -> None:
    result = _multiplied(call, *_nodes(node))
    if result is not None:
        _replace(node, result)


def _with_bias(call: _Builder, node: fx.Node) -> None:
    bias, a, b = _nodes(node)
    result = _multiplied(call, a, b)
    if result is not None:
        _replace(node, call(_aten.add.Tensor, result, bias))


def _multiplied(call: _Builder, a: fx.Node, b: fx.Node) -> fx.Node | None:
    """Multiply ``a (*E, M, K)`` by ``b (*E, K, N)``, or return None if nothing is gained."""
    if not _is_ours(a):
        return None
    (*members, rows, inner), columns = _value(a).shape, _value(b).shape[-1]
    if inner == 1:
        return call(_aten.mul.Tensor, a, b)
    if rows == 1 or columns == 1:  # the kernel would have weights transposed for a single row
        across = call(_aten.permute.default, b, [0, 2, 1] if members else [1, 0])
        sums = call(_aten.sum.dim_IntList, call(_aten.mul.Tensor, a, across), [-1])
        return call(_aten.unsqueeze.default, sums, -1 if columns == 1 else -2)
    if not members:
        return call(_product, a, b)
    if members[0] > _MOST_MEMBERS:
        return None
    parts = []
    for member in range(members[0]):
        own = [call(_aten.select.int, part, 0, member) for part in (a, b)]
        parts.append(call(_aten.unsqueeze.default, call(_product, *own), 0))
    return call(_aten.cat.default, parts)


def _nodes(node: fx.Node) -> list[fx.Node]:
    return [arg for arg in node.args if isinstance(arg, fx.Node)]


_REWRITES: Mapping[Any, Callable[[_Builder, fx.Node], None]] = {
    _aten.mm.default: _without_bias,
    _aten.bmm.default: _without_bias,
    _aten.addmm.default: _with_bias,
    _aten.baddbmm.default: _with_bias,
}
