"""The program that compiles graphs. It imports the compiler once and forks for each graph.

So the compiler takes none of the run's memory, a signal ends it at once, and several graphs compile
side by side. This is the only module that calls ``torch._inductor``.
"""

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import signal
import sys
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import torch
import torch._inductor.compile_fx  # once for all graphs, whereas aot_compile imports it when called
from torch import fx
from torch._inductor import cpp_builder
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch._inductor.decomposition import select_decomp_table
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from rl_core.compile.cache import LIBRARY, MADE
from rl_core.compile.library import ERRORS, SPEC
from rl_core.compile.products import ProductPass, has_kernel
from rl_core.compile.trace import TensorForm

_END_OF_RUNTIME = '} // extern "C"\n'
_MODEL_BASE = "template class torch::aot_inductor::AOTInductorModelBase<AOTInductorModel>;\n"
_HEADERS = f"""\
#include <torch/csrc/inductor/aoti_include/cpu.h>
#include <torch/csrc/inductor/aoti_runtime/model.h>
using torch::aot_inductor::AOTInductorModel;
extern {_MODEL_BASE}"""

_run_compiler = cpp_builder.run_compile_cmd


def serve(requests: Connection) -> None:
    """Compile what is asked for, until nothing is for a while.

    Args:
        requests: each is the folder of a graph, and a file that is closed when it is compiled.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    while requests.poll(180.0):
        try:
            folder, until = requests.recv_bytes(), recv_handle(requests)
        except EOFError:  # the process that asked has ended
            os.killpg(0, signal.SIGKILL)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _compile_and_end(Path(os.fsdecode(folder)))
        os.close(until)


def _compile_and_end(folder: Path) -> NoReturn:
    """Compile the graph that a folder describes into the same folder, and end."""
    with (folder / ERRORS).open("w", encoding="utf-8") as errors:
        os.dup2(errors.fileno(), sys.stderr.fileno())
        try:
            compile_folder(folder)
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=errors)
    os._exit(0)


def compile_folder(folder: Path) -> None:
    """Compile the graph that a folder describes, into the same folder."""
    spec = json.loads((folder / SPEC).read_text(encoding="utf-8"))
    torch.set_num_threads(spec["threads"])
    forms = [TensorForm(**form) for form in spec["forms"]]
    products = {"post_grad_custom_post_pass": ProductPass()} if has_kernel() else {}
    try:
        with (
            patch.object(cpp_builder, "run_compile_cmd", _build),
            patch.object(CppWrapperCpu, "generate_input_output_runtime_checks", _no_checks),
        ):
            made = _compile(spec["source"], forms, folder, products)
    except Exception:  # all of this relies on the compiler's insides
        made = _compile(spec["source"], forms, folder, {})
    shutil.move(made, folder / MADE / LIBRARY)


def _compile(source: str, forms: list[TensorForm], folder: Path, options: dict[str, Any]) -> str:
    names: dict[str, Any] = {name: entry.obj for name, entry in fx.graph._custom_builtins.items()}
    exec(source, names)  # written by the process that started this one

    def function(*tensors: torch.Tensor) -> Any:
        return names["forward"](None, *tensors)

    with torch.no_grad():
        inputs = tuple(form.empty() for form in forms)
        graph = make_fx(
            functionalize(function, remove="mutations"),
            tracing_mode="fake",
            decomposition_table=select_decomp_table(),
        )(*inputs)
        made = torch._inductor.aot_compile(
            graph,
            inputs,
            options={
                # The exponential's vector form costs half the hyperbolic tangent's; off by 1e-7.
                "cpp.use_decompose_tanh": True,
                "aot_inductor.output_path": str(folder / "build"),
                **options,
            },
        )
    assert isinstance(made, str)
    return made


def _no_checks(wrapper: CppWrapperCpu) -> None:
    """Write no checks of the inputs: they are those that the graph was traced with."""
    wrapper.prefix.splice_aot(
        "static bool _check_aoti_runtime_check_inputs_env() { return false; }\n"
        "static void __check_inputs_outputs(AtenTensorHandle*, AtenTensorHandle*) {}\n"
    )


def _build(command: str, cwd: str) -> None:
    """Compile or link; what all libraries have in common is compiled once.

    Each begins with torch's runtime, which takes the C++ compiler longer than a graph.
    """
    words = shlex.split(command)
    wrapper = next((Path(word) for word in words if word.endswith(".wrapper.cpp")), None)
    if wrapper is None:
        _run_compiler(command, cwd)
        return
    runtime, model = wrapper.read_text(encoding="utf-8").split(_END_OF_RUNTIME)
    made = words[words.index("-o") + 1]

    def compile_part(text: str, source: Path, target: str) -> None:
        source.write_text(text, encoding="utf-8")
        changed = {str(wrapper): str(source), made: target}
        _run_compiler(shlex.join(changed.get(word, word) for word in words), cwd)

    runtime += f"{_END_OF_RUNTIME}using torch::aot_inductor::AOTInductorModel;\n{_MODEL_BASE}"
    flags = [word for word in words if word not in (str(wrapper), made)]
    name = hashlib.sha256(repr((runtime, flags)).encode()).hexdigest()
    shared = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / f"{name}.o"
    with shared.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # others wait for it, instead of doing the same
        if not shared.exists():
            part = shared.with_suffix(".part")
            compile_part(runtime, shared.with_suffix(".cpp"), str(part))
            part.rename(shared)
    compile_part(_HEADERS + model, wrapper, f"{made}.part")
    joined = [words[0], "-r", "-nostdlib", f"{made}.part", str(shared), "-o", made]
    _run_compiler(shlex.join(joined), cwd)


if __name__ == "__main__":
    serve(Connection(sys.stdin.fileno()))
