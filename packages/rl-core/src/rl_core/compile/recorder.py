"""Writes down the operations of a function as a graph."""

import operator
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

_READS_VALUE = "it asks for a tensor's value ({}), which differs from call to call"


_pause = threading.local()


class TraceError(Exception):
    """A function cannot be written down as one graph that always computes the same as it does."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Writes down all operations of torch, which run on copies of the tensors from outside.

    It is below autograd and `torch.func`, so that gradients and batches have become operations.

    Attributes:
        captured: tensors from outside that are not inputs, in the order in which they were met.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self.captured: list[Tensor] = []
        self._graph = fx.Graph()
        self._last_placeholder: fx.Node | None = None
        self._nodes: dict[int, fx.Node] = {}
        self._copies: dict[int, Tensor] = {}
        self._kept: list[Tensor] = []  # so that no other tensor gets the id of one of them
        self._inputs: list[Tensor] = []
        self._written: set[int] = set()  # memory of copies

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from importing its compiler, only to tell it to leave the mode alone."""
        return False

    def add_input(self, tensor: Tensor) -> Tensor:
        """Return a copy of an input, for the function to be called with."""
        own = copied(tensor)
        self._add_placeholder(f"arg{len(self._nodes)}", own)
        self._inputs.append(own)
        return own

    def finish(self, outputs: Sequence[Tensor]) -> fx.Graph:
        """Return a graph that takes inputs and captured tensors, and returns a list."""
        self._graph.output([self._nodes[id(part)] for part in outputs])
        self._graph.eliminate_dead_code()
        return self._graph

    def written(self) -> list[Tensor]:
        """Return which of the captured tensors were changed in place; all where inputs were."""
        if any(memory_of(part) in self._written for part in self._inputs):
            return self.captured
        return [part for part in self.captured if memory_of(self._copy(part)) in self._written]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Write an operation down, and run it on copies."""
        kwargs = kwargs or {}
        if getattr(_pause, "is_on", False):
            return func(*args, **kwargs)
        _check_operation(func, args, kwargs)
        nodes = tree_map_only(Tensor, self._node, (args, kwargs))
        node = self._graph.call_function(func, *nodes)
        originals = {id(self._copy(part)): part for part in _tensors((args, kwargs))}
        copied_args, copied_kwargs = tree_map_only(Tensor, self._copy, (args, kwargs))
        self._written |= _written_memory(func, copied_args, copied_kwargs)
        result = func(*copied_args, **copied_kwargs)
        if isinstance(result, Tensor):
            return self._made(result, originals, node)
        if not isinstance(result, tuple | list):
            return result
        parts = [
            self._made(part, originals, node, index) if isinstance(part, Tensor) else part
            for index, part in enumerate(result)
        ]
        return type(result)(parts)

    def _made(
        self, tensor: Tensor, originals: Mapping[int, Tensor], node: fx.Node, *index: int
    ) -> Tensor:
        """Return an operation's result: a new tensor, or the one that it changed."""
        if id(tensor) in originals:
            return originals[id(tensor)]
        if index:
            node = self._graph.call_function(operator.getitem, (node, *index))
        self._nodes[id(tensor)] = node
        self._kept.append(tensor)
        return tensor

    def _node(self, tensor: Tensor) -> fx.Node:
        if id(tensor) not in self._nodes:
            self.captured.append(tensor)
            self._copies[id(tensor)] = copied(tensor)
            self._add_placeholder(f"captured_{len(self.captured)}", tensor)
        return self._nodes[id(tensor)]

    def _copy(self, tensor: Tensor) -> Tensor:
        return self._copies.get(id(tensor), tensor)

    def _add_placeholder(self, name: str, tensor: Tensor) -> None:
        last = self._last_placeholder
        with self._graph.inserting_after(last):  # at the beginning where there is none
            self._last_placeholder = self._nodes[id(tensor)] = self._graph.placeholder(name)
        self._kept.append(tensor)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Run operations within a block for real: what they make comes from outside of a graph."""
    _pause.is_on = True
    try:
        yield
    finally:
        _pause.is_on = False


class NoValues(TorchFunctionMode):
    """Refuses what gets at a tensor's numbers without an operation that could be recorded."""

    _reads = frozenset({Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__})

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call any other function."""
        if func in self._reads:
            raise TraceError(_READS_VALUE.format(f"Tensor.{func.__name__}"))
        return func(*args, **(kwargs or {}))


def _tensors(tree: object) -> list[Tensor]:
    return [part for part in tree_leaves(tree) if isinstance(part, Tensor)]


def copied(tensor: Tensor) -> Tensor:
    """Copy a tensor with its strides, also where it holds a number more than once."""
    span = tensor.detach().as_strided((_span(tensor),), (1,))
    return span.clone().as_strided(tensor.shape, tensor.stride(), 0)


def _draws(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Tell whether an operation draws random numbers; attention does for its dropout alone."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return "dropout_p" not in names or given.get("dropout_p", 0.0) > 0.0


def _check_operation(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse what is not the same in each call of a graph."""
    if _draws(func, args, kwargs):
        raise TraceError(
            f"it draws random numbers ({func}), which compiled code would draw otherwise; draw "
            "them in draw_update_noise or draw_noise"
        )
    if torch.Tag.data_dependent_output in func.tags:
        raise TraceError(_READS_VALUE.format(func))
    depends = torch.Tag.dynamic_output_shape in func.tags
    if func is torch.ops.aten.index.Tensor:  # by masks, not by places
        depends = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    if depends:
        raise TraceError(f"the shape of a result depends on values ({func})")


def check_apart(captured: Sequence[Tensor], written: Sequence[Tensor]) -> None:
    """Refuse what is changed and shares memory: compiled code takes each tensor for its own."""
    changed = set(map(id, written))
    spans = sorted(
        (part.data_ptr(), part.data_ptr() + _span(part) * part.element_size(), id(part) in changed)
        for part in captured
        if part.numel()
    )
    ends = {False: 0, True: 0}  # of what lies before, apart by whether it is changed
    for start, end, is_changed in spans:
        if start < ends[True] or (is_changed and start < ends[False]):
            raise TraceError(
                "it reads the same memory by two tensors and changes it; reach parameters through "
                "their modules only"
            )
        ends[is_changed] = max(ends[is_changed], end)


def memory_of(tensor: Tensor) -> int:
    """Identify the memory that a tensor lies in."""
    return tensor.untyped_storage().data_ptr()


def _written_memory(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> set[int]:
    """Return the memory that an operation changes."""
    if not func._schema.is_mutable:
        return set()
    named = {form.name: part for form, part in zip(func._schema.arguments, args, strict=False)}
    changed = [
        {**named, **kwargs}.get(form.name)
        for form in func._schema.arguments
        if form.alias_info is not None and form.alias_info.is_write
    ]
    return set(map(memory_of, _tensors(changed)))


def _span(tensor: Tensor) -> int:
    """Return how many numbers lie from a tensor's first to its last in memory, both included."""
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
