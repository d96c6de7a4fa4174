"""Compiled graphs whose call costs little more than their arithmetic."""

import os
import shutil
import warnings
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch

from rl_core._short_cut import ShortCut
from rl_core.errors import ConfigError

ResultT = TypeVar("ResultT")


def compile_graph(
    function: Callable[..., ResultT],
    fixed: tuple[object, ...],
    varying: tuple[object, ...],
    device: torch.device,
) -> Callable[..., ResultT]:
    """Compile a function as one graph for arguments like these.

    On the CPU the graph is compiled ahead of time with a C++ wrapper and called without guards,
    which halves the cost of a small step; the caller keeps one graph per set of shapes. On a GPU
    it is captured as a CUDA graph.

    Args:
        function: pure but for in-place changes of its arguments.
        fixed: its first arguments, trees of tensors that are the same ones in every call.
        varying: its other arguments, trees of tensors to trace with.
        device: where they are.

    Returns:
        A function for varying arguments of these shapes only; it does not notice others.
    """
    if device.type != "cpu":
        return partial(torch.compile(function, fullgraph=True, mode="reduce-overhead"), *fixed)
    compiled = torch.compile(
        function,
        fullgraph=True,
        dynamic=False,
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
        return partial(compiled, *fixed)
    with warnings.catch_warnings(), torch._dynamo.config.patch(record_runtime_overhead=False):
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            graph = ahead_of_time(((*fixed, *varying), {}))
        except OSError:  # the function was typed into an interpreter and has no source file
            return partial(compiled, *fixed)
    graph.disable_guard_check()
    return ShortCut(partial(graph, *fixed))


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
