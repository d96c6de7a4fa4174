"""Compiled graphs, called without what PyTorch wraps around them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeAlias, TypeVar

from torch import Tensor

ResultT = TypeVar("ResultT")


class ShortCut(Generic[ResultT]):
    """A graph whose compiled code is called without what PyTorch wraps around it.

    The wrapping looks at arguments and keeps books that nobody reads here, which in a training loop
    costs 10 to 20 µs. The first call goes through it, and shows which tensors the code is given and
    what it answers: the arguments' own, and others that are the same in every call. Where that
    cannot be seen, all calls are like the first.

    Args:
        graph: of trees of tensors on the CPU; answers a tuple or dict of tensors.
    """

    def __init__(self, graph: Callable[..., ResultT]) -> None:
        self._graph = graph
        self._was_called = False
        self._code: Code | None = None
        self._choose: Callable[[list[Tensor]], Iterable[Tensor]] = list
        self._others: list[Tensor] = []
        self._answer: Callable[[Sequence[Tensor]], ResultT]

    def __call__(self, *arguments: object) -> ResultT:
        """Call the graph."""
        if self._code is not None:
            tensors = tensors_of(arguments)
            tensors += self._others
            return self._answer(self._code(list(self._choose(tensors))))
        if self._was_called:
            return self._graph(*arguments)
        self._was_called = True
        result, runs = _recorded(partial(self._graph, *arguments))
        if len(runs) == 1:
            self._learn(arguments, result, *runs[0])
        return result

    def _learn(
        self,
        arguments: tuple[object, ...],
        result: ResultT,
        code: "Code",
        inputs: Sequence[object],
        outputs: Sequence[object],
    ) -> None:
        """Take the short cut from now on, where there is one."""
        answer = _answer_of(result, outputs)
        given = [part for part in inputs if isinstance(part, Tensor)]
        if answer is None or len(given) < len(inputs) or len(given) < 2:
            return
        tensors = tensors_of(arguments)
        places = {id(tensor): place for place, tensor in enumerate(tensors)}
        self._others = [tensor for tensor in given if id(tensor) not in places]
        places |= {id(tensor): len(tensors) + n for n, tensor in enumerate(self._others)}
        self._choose = itemgetter(*(places[id(tensor)] for tensor in given))
        self._answer = answer
        self._code = code


Code: TypeAlias = Callable[[list[Tensor]], Sequence[Tensor]]
"""Compiled code; it takes its inputs out of the list."""


def _recorded(
    call: Callable[[], ResultT],
) -> tuple[ResultT, list[tuple[Code, list[object], list[object]]]]:
    """Call something, and say which compiled code it ran, with its inputs and outputs."""
    runs: list[tuple[Code, list[object], list[object]]] = []
    try:
        from torch._inductor.output_code import CompiledFxGraph
    except ImportError:  # another torch has other insides
        return call(), runs
    usual = CompiledFxGraph.__call__

    def record(graph: CompiledFxGraph, inputs: Sequence[Any]) -> Sequence[Any]:
        given = list(inputs)
        answered: Sequence[Any] = usual(graph, inputs)
        if graph.current_callable is not None:
            runs.append((graph.current_callable, given, list(answered)))
        return answered

    CompiledFxGraph.__call__ = record  # type: ignore[method-assign,assignment]  # for one call
    try:
        return call(), runs
    finally:
        CompiledFxGraph.__call__ = usual  # type: ignore[method-assign]  # as it was


def _answer_of(
    result: object, outputs: Sequence[object]
) -> Callable[[Sequence[Tensor]], Any] | None:
    """Return what makes of outputs a result like one, or None where it is made of other things."""
    if not isinstance(result, dict | tuple):
        return None
    parts = list(result.values()) if isinstance(result, dict) else list(result)
    places = {id(output): place for place, output in enumerate(outputs)}
    if not all(isinstance(part, Tensor) and id(part) in places for part in parts):
        return None
    chosen = [places[id(part)] for part in parts]
    if isinstance(result, dict):
        named = list(zip(result, chosen, strict=True))
        return lambda outputs: {name: outputs[place] for name, place in named}
    return lambda outputs: tuple([outputs[place] for place in chosen])


def tensors_of(tree: object) -> list[Tensor]:
    """Return the tensors in dataclasses, mappings and tuples, in order."""
    values: Iterable[object]
    if isinstance(tree, tuple):
        values = tree
    elif isinstance(tree, dict | Mapping):
        values = tree.values()
    else:
        kind = type(tree)
        reader = _READERS.get(kind) or _READERS.setdefault(kind, _field_reader(kind))
        values = reader(tree)
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif value:
            found += tensors_of(value)
    return found


_READERS: dict[type, Callable[[object], Iterable[object]]] = {}


def _field_reader(kind: type) -> Callable[[object], Iterable[object]]:
    """Return what reads all fields of a class's objects: those of a dataclass, else none."""
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else []
    if len(names) < 2:  # attrgetter answers no tuple then
        return lambda tree: [getattr(tree, name) for name in names]
    return attrgetter(*names)
