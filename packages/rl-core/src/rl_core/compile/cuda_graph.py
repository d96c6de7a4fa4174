"""Graphs as what a GPU did in one call, which it repeats without waiting for Python."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rl_core.compile.library import CompileError
from rl_core.compile.trace import TracedGraph
from rl_core.errors import in_brief


class CudaGraph:
    """Calls a graph by repeating what the GPU did in one call.

    Small networks keep a GPU waiting for the next kernel to be started; here it starts all of them
    by itself. They are PyTorch's own, so nothing is compiled and the numbers are those of the
    uncompiled step.

    The GPU reads and changes captured tensors where they are. What is given is copied into memory
    of the replay's own, and what is returned is copied out of it.

    Args:
        traced: the graph.
        device: the GPU that its tensors are on.
    """

    def __init__(self, traced: TracedGraph, device: torch.device) -> None:
        self._device = device
        self._forward = traced.module.forward
        self._captured = traced.captured
        self._given: list[Tensor] = []
        self._returned: Sequence[Tensor] = ()
        self._graph: torch.cuda.CUDAGraph | None = None

    def finish(self, seconds: float | None = None) -> "CudaGraph":
        """Return what calls the graph, which is itself."""
        return self

    @torch.no_grad()
    def __call__(self, inputs: list[Tensor]) -> Sequence[Tensor]:
        """Return what the graph returns, and change what it changes.

        A call with copies in the place of captured tensors is not replayed. There has to be one
        before the first that is: libraries set themselves up in it, which nothing may do meanwhile.

        Args:
            inputs: as the graph takes them.

        Raises:
            CompileError: in the first call, when the GPU cannot repeat what the graph does, such as
                waiting for a number; nothing was changed.
        """
        count = len(inputs) - len(self._captured)
        given = inputs[:count]
        if any(a is not b for a, b in zip(inputs[count:], self._captured, strict=True)):
            return list(self._forward(*inputs))
        with torch.cuda.device(self._device):  # of several, the first one is the usual one
            if self._graph is None:
                self._graph = self._capture(given)
            elif given:
                torch._foreach_copy_(self._given, given)
            self._graph.replay()
            return [tensor.clone() for tensor in self._returned]

    def _capture(self, given: Sequence[Tensor]) -> torch.cuda.CUDAGraph:
        self._given = [tensor.clone() for tensor in given]
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._returned = self._forward(*self._given, *self._captured)
        except RuntimeError as error:
            raise CompileError(f"the GPU cannot repeat it: {in_brief(error)}") from error
        return graph
