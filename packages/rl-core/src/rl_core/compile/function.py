"""A function of trees of tensors that is compiled for each kind of arguments it meets."""

import copy
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from rl_core.compile.compiler import InProcess, compilation_error
from rl_core.compile.cuda_graph import CudaGraph
from rl_core.compile.library import Compilation, CompileError, Run, is_supported
from rl_core.compile.process import has_cpp_compiler
from rl_core.compile.recorder import copied, memory_of
from rl_core.compile.trace import TracedGraph, check_same, flatten, rebuild, trace
from rl_core.stateful import StateReader
from rl_core.types import StateDict

CompileMode = Literal["auto", "on", "off"]
"""Whether functions are compiled; with ``auto`` they run uncompiled where that fails."""

Result: TypeAlias = Mapping[str, Tensor]
"""What a compiled function returns."""

_POLL_SECONDS = 0.1

_THEN = ";"
"""Stands between the graphs that are in use and those that will be, in a saved state."""


@dataclass(slots=True)
class _Graph:
    """A function traced for one kind of arguments, and what runs it once it is compiled."""

    traced: TracedGraph
    names: list[str]
    compilation: Compilation | InProcess | CudaGraph
    run: Run | None = None
    num_checks: int = 0
    memory: frozenset[int] = frozenset()


class CompiledFunction:
    """Calls a function compiled where it can, and says so where it cannot.

    A graph is chosen by all that it was traced with: shapes, dtypes and names of the arguments, and
    numbers among them. Arguments are made contiguous. Tensors that the function reads elsewhere,
    such as parameters, are read anew in every call; whoever exchanges them calls `forget`. Where a
    graph might compute something else (under autocast, or given the memory that it changes) the
    function is left to run uncompiled.

    Graphs that do the same are compiled once in a process, and kept on disk.

    Args:
        function: from a first argument that is not a tree, and trees of tensors, to named tensors.
            It may change tensors in place.
        what: what it is called in messages.
        device: where its tensors are.

    Attributes:
        mode: whether to compile.
        waits: whether calls wait for the compiler. Otherwise they run uncompiled until `adopt`, so
            that the compiler works beside them.
        is_stopping: asked while something waits; True ends `wait`, but no call, which would run
            uncompiled and differ by rounding from that of a run that was not stopped.
        told: reasons for which it runs uncompiled, of which the user was told already.
        met: digests of the graphs that were met and not adopted yet.
        adopted: digests of the graphs that were adopted. Both are part of a run's state, so that a
            resumed run computes from its first call on as the interrupted one did.
    """

    def __init__(self, function: Callable[..., Result], what: str, device: torch.device) -> None:
        self.mode: CompileMode = "off"
        self.waits = True
        self.is_stopping: Callable[[], bool] = _never
        self.told: set[str] = set()
        self.met: set[str] = set()
        self.adopted: set[str] = set()
        self._function = function
        self._what = what
        self._device = device
        self._device_type = device.type
        self.forget()

    def __deepcopy__(self, memo: dict[int, Any]) -> "CompiledFunction":
        """Return one for a copy of the function, which finds what was compiled for this one."""
        made = CompiledFunction(copy.deepcopy(self._function, memo), self._what, self._device)
        made.mode, made.waits = self.mode, self.waits
        made.met, made.adopted = set(self.met), set(self.adopted)
        return made

    def __len__(self) -> int:
        """Return for how many kinds of arguments there are graphs."""
        return len(self._graphs)

    def forget(self) -> None:
        """Trace anew: tensors or modules of the function were exchanged."""
        self._graphs: dict[Hashable, _Graph] = {}
        self._new: list[_Graph] = []
        self._awaited: list[_Graph] = []

    def __call__(self, static: Hashable, *trees: object) -> Result | None:
        """Call the function compiled.

        Args:
            static: its first argument.
            *trees: its other arguments.

        Returns:
            What it returns; None where it has to run uncompiled, and nothing was done.

        Raises:
            ConfigError: when compiling fails and was asked for.
        """
        if self.mode == "off" or torch.is_autocast_enabled(self._device_type):
            return None
        tensors, rest = flatten(trees)
        given = [t if t.is_contiguous() else t.contiguous() for t in tensors]
        key = (static, *rest, *[(t.shape, t.dtype) for t in given])
        try:
            graph = self._graphs.get(key)
        except TypeError as error:  # something among the arguments that is not a tensor
            self._fail(TypeError(f"{error}; make it a tensor, or leave it out of the batch"))
            return None
        if graph is None:
            graph = self._meet(key, static, trees, given)
            if graph is None:
                return None
        run = graph.run or self._awaited_run(graph)
        if run is None:
            return None
        if graph.memory and not graph.memory.isdisjoint(map(memory_of, given)):
            return None
        inputs = given + graph.traced.captured
        if graph.num_checks < 2 and not self._check(graph, run, static, trees, given):
            return None
        try:
            results = run(inputs)
        except CompileError as error:  # a GPU cannot repeat it, and has done nothing so far
            self._fail(error)
            return None
        return dict(zip(graph.names, results, strict=True))

    def adopt(self) -> None:
        """Use from now on what was met so far: later calls wait for it."""
        self.adopted |= self.met
        self.met.clear()
        self._awaited += self._new
        self._new = []

    def wait(self) -> None:
        """Wait for what was adopted, unless `is_stopping` says otherwise."""
        while self._awaited and self._finish(self._awaited[-1], may_stop=True):
            self._awaited.pop()

    def _meet(
        self, key: Hashable, static: Hashable, trees: tuple[object, ...], given: list[Tensor]
    ) -> _Graph | None:
        """Trace the function for arguments of a new kind, and have the graph compiled."""
        try:
            traced, names = self._trace(static, trees, given)
            compilation = self._compilation(traced)
        except Exception as error:
            self._fail(error)
            return None
        graph = _Graph(traced, names, compilation, memory=frozenset(map(memory_of, traced.written)))
        self._graphs[key] = graph
        self._new.append(graph)
        self.met.add(traced.digest)
        return graph

    def _trace(
        self, static: Hashable, trees: tuple[object, ...], given: list[Tensor]
    ) -> tuple[TracedGraph, list[str]]:
        names: list[str] = []

        def function(*tensors: Tensor) -> list[Tensor]:
            result = self._function(static, *rebuild(trees, iter(tensors)))
            names[:] = result
            return list(result.values())

        return trace(function, given), names

    def _compilation(self, traced: TracedGraph) -> Compilation | InProcess | CudaGraph:
        if self._device.type == "cuda":
            return CudaGraph(traced, self._device)
        is_on_cpu = self._device.type == "cpu"
        if is_on_cpu and is_supported():
            return Compilation.of(traced)
        if is_on_cpu and not has_cpp_compiler():
            raise CompileError("no C++ compiler was found")
        return InProcess(traced, self._device)

    def _awaited_run(self, graph: _Graph) -> Run | None:
        """Return what runs a graph if it may be used, once it was waited for."""
        if self.waits or graph.traced.digest in self.adopted:
            self._finish(graph)
        return graph.run

    def _finish(self, graph: _Graph, may_stop: bool = False) -> bool:
        """Wait for a graph, and say whether it is there."""
        while graph.run is None:
            try:
                graph.run = graph.compilation.finish(_POLL_SECONDS)
            except Exception as error:
                self._fail(error)
                return False
            if graph.run is None and self.is_stopping() and may_stop:
                return False
        return True

    def _check(
        self,
        graph: _Graph,
        run: Run,
        static: Hashable,
        trees: tuple[object, ...],
        given: list[Tensor],
    ) -> bool:
        """Check a graph's numbers in its first call, and in the second what it was traced from."""
        graph.num_checks += 1
        try:
            if graph.num_checks == 1:
                _check_numbers(graph, run, given + graph.traced.captured)
            else:
                traced, _ = self._trace(static, trees, given)
                check_same(traced, graph.traced)
        except Exception as error:
            self._fail(error)
            return False
        return True

    def _fail(self, error: Exception) -> None:
        """Go on uncompiled with one warning, or raise where compiling was asked for."""
        mode, self.mode = self.mode, "off"
        self.forget()
        failure = compilation_error(self._what, error, self._device)
        if mode == "on":
            self.mode = mode
            raise failure from error
        if str(error) not in self.told:
            warnings.warn(f"{failure}; going on uncompiled", RuntimeWarning, stacklevel=4)
            self.told.add(str(error))


class CompiledFunctions:
    """The functions of an algorithm that are compiled, together.

    Args:
        functions: by name.
    """

    def __init__(self, functions: Mapping[str, CompiledFunction]) -> None:
        self._functions = functions
        told: set[str] = set()
        for function in functions.values():
            function.told = told

    def set_mode(self, mode: CompileMode) -> None:
        """Say whether they are compiled."""
        for function in self._functions.values():
            function.mode = mode

    @contextmanager
    def in_background(self, is_stopping: Callable[[], bool]) -> Iterator[None]:
        """Let the compiler work beside the run within a block.

        What is to be compiled runs uncompiled until `adopt` and `wait`.

        Args:
            is_stopping: asked while something waits for the compiler; True ends the waiting.
        """
        for function in self._functions.values():
            function.waits, function.is_stopping = False, is_stopping
        try:
            yield
        finally:
            for function in self._functions.values():
                function.waits, function.is_stopping = True, _never

    def adopt(self) -> None:
        """Use from now on what was met since the last call; see `wait`."""
        for function in self._functions.values():
            function.adopt()

    def wait(self) -> None:
        """Wait for the compiler where something that it still works on was adopted."""
        for function in self._functions.values():
            function.wait()

    def state_dict(self) -> StateDict:
        """Return which graphs are in use, and which will be after the next `adopt`."""
        return {
            name: f"{' '.join(sorted(each.adopted))}{_THEN}{' '.join(sorted(each.met))}"
            for name, each in self._functions.items()
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Use the same graphs, from the first call on."""
        saved = StateReader(state, "algorithm/compiled")
        for name, function in self._functions.items():
            adopted, _, met = saved.text(name).partition(_THEN)
            function.adopted, function.met = set(adopted.split()), set(met.split())


_checked: set[str] = set()
"""Digests of the graphs whose numbers were compared in this process."""

_TOLERANCE = 0.02
"""Part of what a tensor changes by which rounding may be off; a wrong product is off by 1."""


def _check_numbers(graph: _Graph, run: Run, inputs: list[Tensor]) -> None:
    """Compare a graph's results, and what it changes, with those of its operations.

    Raises:
        CompileError: when they differ by more than rounding.
    """
    if graph.traced.digest in _checked:
        return
    forward = graph.traced.module.forward
    expected = _results(forward, inputs)
    perturbed = _results(forward, [_perturbed(part) for part in inputs])
    got = _results(lambda *tensors: run(list(tensors)), inputs)
    before = [*[torch.zeros_like(part) for part in got[: len(graph.names)]], *inputs]
    if not all(map(_agree, before, expected, perturbed, got)):
        raise CompileError(
            "compiled and uncompiled results differ; please report this with the processor and "
            "torch's version"
        )
    _checked.add(graph.traced.digest)


def _results(call: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return what a call returns for copies of tensors, and what it makes of the copies."""
    copies = [copied(tensor) for tensor in inputs]  # with strides, which a library relies on
    with torch.no_grad():
        return [*call(*copies), *copies]


def _perturbed(tensor: Tensor) -> Tensor:
    """Return a tensor whose numbers are off by about one millionth."""
    if not tensor.is_floating_point():
        return tensor
    generator = torch.Generator(tensor.device).manual_seed(0)
    noise = torch.randn(tensor.shape, generator=generator, device=tensor.device)
    return tensor * (1.0 + 1e-6 * noise).to(tensor.dtype)


def _agree(before: Tensor, expected: Tensor, perturbed: Tensor, got: Tensor) -> bool:
    """Say whether a tensor changed as expected, but for what rounding can do.

    Args:
        before: what it was, or zeros.
        expected: what it became, one operation after the other.
        perturbed: the same from perturbed inputs. It shows what depends on rounding, such as the
            steps that Adam makes of gradients which are nothing but rounding.
        got: what it became compiled.
    """
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return False
    if not expected.is_floating_point():
        before, expected, perturbed, got = (
            part.float() for part in (before, expected, perturbed, got)
        )
    elif not torch.equal(expected.isfinite(), got.isfinite()):
        return False
    finite = expected.isfinite() & before.isfinite() & perturbed.isfinite()
    off, moved, size, sensitive = (
        torch.where(finite, part, 0.0).double().norm()
        for part in (got - expected, expected - before, expected, perturbed - expected)
    )
    return bool(off <= _TOLERANCE * moved + 1e-5 * size + 10.0 * sensitive + 1e-6)


def _never() -> bool:
    return False
