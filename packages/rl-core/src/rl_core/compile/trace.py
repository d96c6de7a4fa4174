"""A function of trees of tensors as a graph that can be compiled, and shared between agents.

Trees are dataclasses, mappings, tuples and lists, however deep.

Torch's own tracers would import its compiler, in some two seconds.
"""

import copy
import hashlib
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, fx

from rl_core.compile.recorder import NoValues, Recorder, TraceError, check_apart

_tracing = threading.local()
tracing_lock = threading.RLock()
"""Held while a function is traced, which torch knows of the whole process, not of a thread."""


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

    @classmethod
    def of_contiguous(cls, tensor: Tensor) -> "TensorForm":
        """Describe a contiguous tensor, whose axes of size 1 may have any stride."""
        stride = torch.empty(tensor.shape, device="meta").stride()
        return replace(cls.of(tensor), stride=stride)

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
        written: those of them that it changes in place.
        digest: identifies what is computed, whoever computes it.
    """

    module: fx.GraphModule
    source: str
    forms: tuple[TensorForm, ...]
    captured: list[Tensor]
    written: list[Tensor]
    digest: str


def trace(function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> TracedGraph:
    """Write down what a function does, by running it once on copies of its inputs.

    Args:
        function: of tensors; it may change them, and others, in place. Copies are changed instead.
        inputs: contiguous; two of them may be one tensor, and are two in the graph.

    Raises:
        TraceError: when it draws random numbers, asks for a tensor's value, has results whose
            shapes depend on values, or reads one memory by two tensors and changes it.
        Exception: whatever the function raises.
    """
    recorder = Recorder()
    with tracing_lock, _tracing_on():
        given = [recorder.add_input(tensor) for tensor in inputs]
        with NoValues(), recorder:
            # Outputs are new memory, so that none of them is an input or part of one.
            outputs = [part.clone() for part in function(*given)]
    graph = recorder.finish(outputs)
    captured, written = recorder.captured, recorder.written()
    check_apart(captured, written)
    forms = (*map(TensorForm.of_contiguous, inputs), *map(TensorForm.of, captured))
    source = graph.python_code("self").src
    digest = hashlib.sha256(f"{source}\n{forms}".encode()).hexdigest()
    if digest not in _modules:
        _modules[digest] = fx.GraphModule(torch.nn.Module(), graph)
    return TracedGraph(_modules[digest], source, forms, captured, written, digest)


_modules: dict[str, fx.GraphModule] = {}
"""By digest: torch keeps the source of each of them for good."""


def check_same(traced: TracedGraph, before: TracedGraph) -> None:
    """Make sure that a function is the graph that was written down, not the one of a single call.

    Args:
        traced: of a later call.
        before: of an earlier one.

    Raises:
        TraceError: when they compute something else. Numbers that are not tensors, and tensors that
            Python makes of numbers, are constants of a graph.
    """
    pairs = zip(traced.captured, before.captured, strict=False)
    if traced.digest != before.digest or not all(_is_same(a, b) for a, b in pairs):
        raise TraceError(
            "it does something else in its second call: what is not a tensor, and what Python "
            "makes a tensor of, such as torch.tensor([a, b]), would stay as it was in the first; "
            "use torch.stack, and keep what changes in tensors"
        )


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Say whether two tensors of one form lie in the same memory, or are equal constants."""
    both_nan = (one != one) & (other != other)
    return one.data_ptr() == other.data_ptr() or bool(((one == other) | both_nan).all())


@contextmanager
def _tracing_on() -> Iterator[None]:
    _tracing.is_on = True
    try:
        with torch.inference_mode(False), torch.no_grad():
            yield
    finally:
        _tracing.is_on = False


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
        if type(part) is Tensor or isinstance(part, Tensor):  # the first is common, and cheaper
            tensors.append(part)
        else:
            rest.append(len(tensors))  # where it stands among them
            if part is None:
                rest.append(None)
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
