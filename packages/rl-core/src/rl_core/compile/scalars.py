"""Numbers of compiled graphs, each computed once.

The compiler writes what a number is made of into every loop that uses it. Adam's loop, for one,
took two roots and two quotients anew for every sixteen parameters, and waited for them: half of its
time.
"""

from functools import partial
from operator import is_not

import torch
from torch import Tensor, fx
from torch._inductor import ir
from torch._inductor.lowering import register_lowering


@torch.library.custom_op("rl_core::once", mutates_args=())
def once(number: Tensor) -> Tensor:
    """Return a 0-dim tensor as it is."""
    return number.clone()


@once.register_fake
def _once_form(number: Tensor) -> Tensor:
    return torch.empty_like(number)


@register_lowering(torch.ops.rl_core.once.default, type_promotion_kind=None)
def _lower_once(number: ir.TensorBox) -> ir.TensorBox:
    number.realize()
    return number


def compute_scalars_once(graph: fx.Graph) -> None:
    """Let loops over tensors read the numbers that a graph computes for them, in place."""
    for node in list(graph.nodes):
        if node.op != "call_function" or not _is_scalar(node):
            continue
        if all(_is_scalar(user) or user.op == "output" for user in node.users):
            continue
        with graph.inserting_after(node):
            kept = graph.call_function(torch.ops.rl_core.once.default, (node,))
        kept.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(kept, delete_user_cb=partial(is_not, kept))


def _is_scalar(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dim() == 0 and value.device.type == "cpu"
