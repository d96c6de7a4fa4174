"""Compiled graphs whose call costs little more than their arithmetic."""

import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import TypeVar

import torch
from torch import Tensor

from rl_core.errors import ConfigError

ResultT = TypeVar("ResultT")


def compile_graph(
    function: Callable[..., ResultT],
    arguments: tuple[object, ...],
    device: torch.device,
) -> Callable[..., ResultT]:
    """Compile a function as one graph for arguments like these.

    On the CPU the graph is compiled ahead of time with a C++ wrapper and called without guards,
    which halves the cost of a small step; the caller keeps one graph per set of shapes. On a GPU
    it is captured as a CUDA graph.

    Args:
        function: pure but for in-place changes of its arguments.
        arguments: trees of tensors to trace with; the function runs on them once.
        device: where they are.

    Returns:
        A function for arguments of these shapes only; it does not notice others.
    """
    if device.type != "cpu":
        return torch.compile(function, fullgraph=True, mode="reduce-overhead")
    compiled = torch.compile(
        function,
        fullgraph=True,
        options={
            "cpp_wrapper": True,
            # The exponential's vector form costs half the hyperbolic tangent's; off by 1e-7.
            "cpp.use_decompose_tanh": True,
            **_product_pass(),
            "guard_filter_fn": torch.compiler.skip_all_guards_unsafe,
        },
    )
    ahead_of_time = getattr(compiled, "aot_compile", None)
    if ahead_of_time is None:
        return compiled
    with warnings.catch_warnings(), torch._dynamo.config.patch(record_runtime_overhead=False):
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            graph = ahead_of_time((arguments, {}))
        except OSError:  # the function was typed into an interpreter and has no source file
            return compiled
    graph.disable_guard_check()
    unguarded: Callable[..., ResultT] = graph
    return unguarded


def _product_pass() -> dict[str, Callable[..., object]]:
    """Return the compiler's option that rewrites matrix products, where it can be had."""
    try:
        from rl_core._products import ProductPass, has_kernel
    except (ImportError, AttributeError):  # another torch has other insides
        return {}
    return {"post_grad_custom_post_pass": ProductPass()} if has_kernel() else {}


def check_compiler(device: torch.device) -> None:
    """Make sure that there is what compiling for a device needs.

    Raises:
        ConfigError: when the CPU is compiled for and no C++ compiler is found.
    """
    if device.type == "cpu" and not has_cpp_compiler():
        raise ConfigError(
            "compile='on' needs a C++ compiler and finds none; install g++ or clang++ (or name "
            "one in the environment variable CXX), or use compile='off'"
        )


def has_cpp_compiler() -> bool:
    """Say whether `torch.compile` can make code for the CPU."""
    named = os.environ.get("CXX")
    return any(shutil.which(name) for name in ([named] if named else ["g++", "clang++"]))


def compilation_error(what: str, error: Exception) -> ConfigError:
    """Say in one line why compiling failed."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Torch's first line only names the backend.
    reason = next((line for line in lines if not line.endswith("raised:")), repr(error))
    return ConfigError(
        f"compiling {what} failed ({reason}); make sure that a C++ compiler (g++ or clang++) "
        "works, or use compile='off'"
    )


def tensor_shapes(tree: object) -> tuple[object, ...]:
    """Return the shapes and dtypes of the tensors in a dataclass or mapping, in order."""
    if isinstance(tree, Mapping):
        values: Iterable[object] = tree.values()
    else:
        kind = type(tree)
        reader = _READERS.get(kind) or _READERS.setdefault(kind, _field_reader(kind))
        values = reader(tree)
    return tuple(
        [
            (value.shape, value.dtype) if isinstance(value, Tensor) else tensor_shapes(value)
            for value in values
        ]
    )


_READERS: dict[type, Callable[[object], Iterable[object]]] = {}


def _field_reader(kind: type) -> Callable[[object], Iterable[object]]:
    """Return what reads all fields of a class's objects: those of a dataclass, else none."""
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else []
    if len(names) < 2:  # attrgetter answers no tuple then
        return lambda tree: [getattr(tree, name) for name in names]
    return attrgetter(*names)
