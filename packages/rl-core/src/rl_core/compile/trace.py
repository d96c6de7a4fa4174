"""A function of trees of tensors as a graph that can be compiled, and shared between agents.

Trees are dataclasses, mappings, tuples and lists, however deep.

This is the only module that uses ``make_fx`` and fake tensors, which torch keeps under
``torch.fx.experimental`` and ``torch._subclasses``.
"""

import copy
import hashlib
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

_tracing = threading.local()
tracing_lock = threading.RLock()
"""Held while a function is traced, which torch knows of the whole process, not of a thread."""


class TraceError(Exception):
    """A function cannot be written down as one graph that always computes the same as it does."""


def is_tracing() -> bool:
    """Say whether a function is being traced in this thread, so that code may suit the graph."""
    return getattr(_tracing, "is_on", False)


@dataclass(frozen=True, slots=True)
class TensorForm:
    """What a graph has to know of a tensor.

    Attributes:
        shape: its sizes.
        stride: its strides.
        dtype: such as ``float32``.
        device: such as ``cpu``.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str

    @classmethod
    def of(cls, tensor: Tensor) -> "TensorForm":
        """Describe a tensor."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        return cls(tuple(tensor.shape), tensor.stride(), dtype, str(tensor.device))

    def empty(self) -> Tensor:
        """Make a tensor of this form."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return torch.empty_strided(self.shape, self.stride, dtype=dtype, device=self.device)


@dataclass(frozen=True, slots=True)
class TracedGraph:
    """A function as the source of its operations.

    Two agents whose functions do the same have graphs with one digest; what differs is captured.

    Attributes:
        module: which takes the function's inputs, then what it captured, and returns a list.
        source: the module's code, of nothing but torch's operations.
        forms: of all that it takes.
        captured: tensors that the function found elsewhere than among its inputs, such as
            parameters: read, and changed, anew in every call.
        writes: whether it changes any of them in place.
        digest: identifies what is computed, whoever computes it.
    """

    module: fx.GraphModule
    source: str
    forms: tuple[TensorForm, ...]
    captured: list[Tensor]
    writes: bool
    digest: str


def trace(function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> TracedGraph:
    """Write down what a function does with tensors like these, without doing it.

    Args:
        function: of tensors; it may change them, and others, in place.
        inputs: contiguous; only their forms are looked at, so that two of them may be one tensor.

    Raises:
        TraceError: when it draws random numbers, or reads one memory by two tensors and changes it.
        Exception: whatever the function raises, such as torch's when it asks for a tensor's value.
    """
    modes = FakeTensorMode(allow_non_fake_inputs=True), _RealTensorsStay()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    with tracing_lock, _tracing_on(), modes[0], modes[1]:
        fakes = [TensorForm.of(tensor).empty() for tensor in inputs]
        # Outputs are new memory, so that none of them is an input or part of one.
        traced = make_fx(lambda *given: [part.clone() for part in function(*given)])(*fakes)
    captured = _lift_constants(traced)
    writes = _check_operations(traced)
    if writes:
        _check_apart(captured)
    forms = tuple(TensorForm.of(tensor) for tensor in (*inputs, *captured))
    digest = hashlib.sha256(f"{traced.code}\n{forms}".encode()).hexdigest()
    return TracedGraph(traced, traced.code, forms, captured, writes, digest)


class _RealTensorsStay(TorchDispatchMode):  # type: ignore[no-untyped-call]  # likewise
    """Lets operations that change nothing but captured tensors leave these as they are."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call an operation, on a fake view where it would change a real tensor."""
        kwargs = kwargs or {}
        tensors = [part for part in tree_leaves((args, kwargs)) if isinstance(part, Tensor)]
        if not func._schema.is_mutable or any(isinstance(part, FakeTensor) for part in tensors):
            return func(*args, **kwargs)
        alias = torch.ops.aten.alias.default
        func(*tree_map_only(Tensor, alias, args), **tree_map_only(Tensor, alias, kwargs))
        return args[0]


@contextmanager
def _tracing_on() -> Iterator[None]:
    _tracing.is_on = True
    try:
        with torch.no_grad():
            yield
    finally:
        _tracing.is_on = False


def _lift_constants(traced: fx.GraphModule) -> list[Tensor]:
    """Let a module take what it captured after its inputs, and return that."""
    graph = traced.graph
    last = next(node for node in reversed(graph.nodes) if node.op == "placeholder")
    lifted: dict[str, fx.Node] = {}
    captured: list[Tensor] = []
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        name = str(node.target)
        if name not in lifted:
            tensor = getattr(traced, name)
            if not isinstance(tensor, Tensor) or isinstance(tensor, FakeTensor):
                raise TraceError(f"it keeps a {type(tensor).__name__} beside tensors")
            captured.append(tensor)
            with graph.inserting_after(last):
                last = lifted[name] = graph.placeholder(f"captured_{len(captured)}")
        node.replace_all_uses_with(lifted[name])
        graph.erase_node(node)
    traced.recompile()
    return captured


def _check_operations(traced: fx.GraphModule) -> bool:
    """Refuse operations that draw random numbers, and say whether any changes a tensor."""
    writes = False
    for node in traced.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if torch.Tag.nondeterministic_seeded in node.target.tags:
            raise TraceError(
                f"it draws random numbers ({node.target}), which compiled code would draw "
                "otherwise; draw them in draw_update_noise or draw_noise"
            )
        writes = writes or node.target._schema.is_mutable
    return writes


def _check_apart(captured: Sequence[Tensor]) -> None:
    """Refuse tensors that share memory: compiled code takes each for memory of its own."""
    spans = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + _span(tensor))
        for tensor in captured
        if tensor.numel()
    )
    for (_, end), (start, _) in pairwise(spans):
        if start < end:
            raise TraceError(
                "it reads the same memory by two tensors and changes it; reach parameters through "
                "their modules only"
            )


def _span(tensor: Tensor) -> int:
    """Return how many bytes lie between a tensor's first and last number, both included."""
    steps = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.element_size()


TreeT = TypeVar("TreeT")


def tensors_of(tree: object) -> list[Tensor]:
    """Return the tensors in a tree, in order; of a tensor itself."""
    return flatten(tree)[0]


def flatten(tree: object) -> tuple[list[Tensor], list[Hashable]]:
    """Return the tensors in a tree, in order, and all else that tells it from other trees."""
    tensors: list[Tensor] = []
    rest: list[Hashable] = []
    _flatten(tree, tensors, rest)
    return tensors, rest


def rebuild(tree: TreeT, tensors: Iterator[Tensor]) -> TreeT:
    """Return a tree like another one, with other tensors in the order of `flatten`."""
    if isinstance(tree, Tensor):
        return next(tensors)  # type: ignore[return-value]  # a tensor for a tensor
    if isinstance(tree, tuple | list):
        return type(tree)([rebuild(part, tensors) for part in tree])
    if isinstance(tree, Mapping):
        return {name: rebuild(part, tensors) for name, part in tree.items()}  # type: ignore[return-value]
    if is_dataclass(tree):
        made = copy.copy(tree)
        for field in fields(tree):
            part = rebuild(getattr(tree, field.name), tensors)
            object.__setattr__(made, field.name, part)  # it may be frozen
        return made
    return tree


def _flatten(tree: object, tensors: list[Tensor], rest: list[Hashable]) -> None:
    kind = type(tree)
    read = _READERS.get(kind) or _READERS.setdefault(kind, _reader(kind))
    parts = read(tree, rest)
    for part in parts:
        if type(part) is Tensor:  # the common case, and the cheaper check
            tensors.append(part)
        elif part is None:
            rest.append(None)
        elif isinstance(part, Tensor):
            tensors.append(part)
        else:
            _flatten(part, tensors, rest)


_Reader: TypeAlias = Callable[[Any, list[Hashable]], Iterable[object]]
"""Returns what an object is made of, and notes what else tells it from others."""

_READERS: dict[type, _Reader] = {}


def _reader(kind: type) -> _Reader:
    """Return what takes apart the objects of a class."""
    if issubclass(kind, Tensor):
        return lambda tree, rest: (tree,)
    if issubclass(kind, tuple | list):
        return _read_sequence
    if issubclass(kind, Mapping):
        return _read_mapping
    if not is_dataclass(kind):
        return _read_nothing
    names = [field.name for field in fields(kind)]
    # attrgetter returns no tuple of fewer than two
    fields_of = (
        attrgetter(*names) if len(names) > 1 else lambda tree: [getattr(tree, n) for n in names]
    )

    def read_fields(tree: Any, rest: list[Hashable]) -> Iterable[object]:
        rest.append(kind)
        parts: Iterable[object] = fields_of(tree)
        return parts

    return read_fields


def _read_sequence(tree: Sequence[object], rest: list[Hashable]) -> Iterable[object]:
    rest.append(len(tree))
    return tree


def _read_mapping(tree: Mapping[str, object], rest: list[Hashable]) -> Iterable[object]:
    rest.append(tuple(tree))
    return tree.values()


def _read_nothing(tree: Hashable, rest: list[Hashable]) -> Iterable[object]:
    rest += (type(tree), tree)
    return ()
