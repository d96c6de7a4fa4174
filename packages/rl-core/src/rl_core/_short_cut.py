"""Compiled graphs, called without what PyTorch wraps around them."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Generic, TypeAlias, TypeVar

from torch import Tensor

from rl_core._trees import tensors_of

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
        self._call = self._look

    def __call__(self, *arguments: object) -> ResultT:
        """Call the graph."""
        return self._call(*arguments)

    def _look(self, *arguments: object) -> ResultT:
        """Call the graph, and take the short cut from now on where there is one."""
        self._call = self._graph
        result, runs = _recorded(partial(self._graph, *arguments))
        if len(runs) == 1:
            self._call = _direct_call(arguments, result, *runs[0]) or self._graph
        return result


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


def _direct_call(
    arguments: tuple[object, ...],
    result: object,
    code: Code,
    inputs: Sequence[object],
    outputs: Sequence[object],
) -> Callable[..., Any] | None:
    """Return what calls code as a graph called it, or None where that cannot be seen.

    Args:
        arguments: of the graph.
        result: of the graph.
        code: what it ran.
        inputs: what the code was given.
        outputs: what the code answered.
    """
    answer = _answer_of(result, outputs)
    given = [part for part in inputs if isinstance(part, Tensor)]
    if answer is None or len(given) < len(inputs) or len(given) < 2:
        return None
    tensors = tensors_of(arguments)
    places = {id(tensor): place for place, tensor in enumerate(tensors)}
    others = [tensor for tensor in given if id(tensor) not in places]
    places |= {id(tensor): len(tensors) + n for n, tensor in enumerate(others)}
    choose = itemgetter(*(places[id(tensor)] for tensor in given))

    def call(*arguments: object) -> object:
        return answer(code(list(choose(tensors_of(arguments) + others))))

    return call


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
