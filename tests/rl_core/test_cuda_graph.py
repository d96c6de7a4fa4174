"""Graphs that a GPU replays, with a recorder that needs none."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import Tensor

from rl_core.compile.cuda_graph import CudaGraph
from rl_core.compile.function import CompiledFunction
from rl_core.compile.trace import trace


class Recording:
    """Computes anew what was captured, in the memory that it was captured in."""

    def __init__(self) -> None:
        self.repeat: Callable[[], None] = lambda: None
        self.num_replays = 0

    def replay(self) -> None:
        self.num_replays += 1
        self.repeat()


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[Recording]:
    made: list[Recording] = []

    def new() -> Recording:
        made.append(Recording())
        return made[-1]

    @contextmanager
    def capturing(graph: Recording) -> Iterator[None]:
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", new)
    monkeypatch.setattr(torch.cuda, "graph", capturing)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    return made


def _replay(recordings: list[Recording], weight: Tensor, given: Sequence[Tensor]) -> CudaGraph:
    """Return a replay of ``given * weight``, and of adding 1 to ``weight``."""

    def function(x: Tensor) -> list[Tensor]:
        product = x * weight
        weight.add_(1.0)
        return [product]

    replay = CudaGraph(trace(function, given), weight.device)
    forward = replay._forward

    def record(*tensors: Tensor) -> list[Tensor]:
        """Return what is computed; what is captured changes nothing until it is replayed."""
        before = [tensor.clone() for tensor in tensors]
        returned = list(forward(*tensors))
        if not recordings or recordings[-1].num_replays:
            return returned
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)

        def repeat() -> None:
            for old, new in zip(returned, forward(*tensors), strict=True):
                old.copy_(new)

        recordings[-1].repeat = repeat
        return returned

    replay._forward = record
    return replay


def test_a_replay_reads_what_is_given_and_changes_what_was_captured(
    recordings: list[Recording],
) -> None:
    weight, x = torch.tensor([2.0, 3.0]), torch.tensor([1.0, 1.0])
    replay = _replay(recordings, weight, [x])
    (first,) = replay([x, weight])
    (second,) = replay([10.0 * x, weight])
    assert recordings[0].num_replays == 2
    assert first.tolist() == [2.0, 3.0]  # not overwritten by the second call
    assert second.tolist() == [30.0, 40.0]
    assert weight.tolist() == [4.0, 5.0]
    assert x.tolist() == [1.0, 1.0]


def test_copies_in_the_place_of_what_was_captured_are_not_replayed(
    recordings: list[Recording],
) -> None:
    weight, x = torch.tensor([2.0]), torch.tensor([5.0])
    replay, copied = _replay(recordings, weight, [x]), weight.clone()
    (product,) = replay([x, copied])
    assert recordings == []
    assert (product.tolist(), copied.tolist(), weight.tolist()) == ([10.0], [3.0], [2.0])


def test_what_a_gpu_cannot_repeat_goes_on_uncompiled(
    recordings: list[Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def refusing(graph: Recording) -> Iterator[None]:
        yield
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", refusing)
    function = CompiledFunction(lambda _, x: {"y": x * 2.0}, "the step", torch.device("cuda"))
    function.mode = "auto"
    with pytest.warns(RuntimeWarning) as told:
        assert function(None, torch.ones(2)) is None
    assert str(told[0].message) == (
        "compiling the step failed (the GPU cannot repeat it: RuntimeError: operation not "
        "permitted when stream is capturing); set trainer.compile to 'off'; going on uncompiled"
    )
    assert function(None, torch.ones(2)) is None
    assert [each.num_replays for each in recordings] == [0]
