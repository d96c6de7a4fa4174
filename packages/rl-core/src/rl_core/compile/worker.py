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
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import torch
import torch._inductor.compile_fx  # once for all graphs, whereas aot_compile imports it when called
from torch import fx
from torch._inductor import codecache, cpp_builder
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch._inductor.cpu_vec_isa import VecISA
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.decomposition import select_decomp_table
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from rl_core.compile import products, scalars
from rl_core.compile.cache import LIBRARY, MADE
from rl_core.compile.library import SPEC
from rl_core.compile.process import ERRORS
from rl_core.compile.products import has_kernel, rewrite_products
from rl_core.compile.scalars import compute_scalars_once
from rl_core.compile.trace import TensorForm

_END_OF_RUNTIME = '} // extern "C"\n'
_HEADERS = {
    # What all graphs' kernels use.
    "torch/csrc/inductor/cpp_prefix.h": "#include <torch/csrc/inductor/cpp_prefix.h>\n",
    # Torch's would bring a runtime that takes the C++ compiler longer than a graph.
    "torch/csrc/inductor/aoti_include/cpu.h": Path(__file__)
    .with_name("runtime.h")
    .read_text(encoding="utf-8"),
}
"""Headers by torch's name for them."""

_MANY_GRAPHS = 2
"""When so many graphs were compiled, more are to be expected, and headers are compiled once."""

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
            errors.seek(0)
            errors.truncate()  # of warnings that came before
            print(_reason(error), file=errors)
    os._exit(0)


def _reason(error: Exception) -> str:
    """Say in one line why compiling failed: what the C++ compiler says first."""
    lines = [line.strip() for line in str(error).rpartition("\nOutput:\n")[2].splitlines()]
    said = [line for line in lines if "error" in line.lower()] or [line for line in lines if line]
    return said[0] if said else type(error).__name__


def compile_folder(folder: Path) -> None:
    """Compile the graph that a folder describes, into the same folder."""
    spec = json.loads((folder / SPEC).read_text(encoding="utf-8"))
    torch.set_num_threads(spec["threads"])
    forms = [TensorForm(**form) for form in spec["forms"]]
    with (
        patch.object(cpp_builder, "run_compile_cmd", _run_command),
        patch.object(codecache, "_precompile_header", _precompile_header),
        patch.object(VecISA, "check_build", _lacks_extension),
        patch.object(CppWrapperCpu, "generate_input_output_runtime_checks", _no_checks),
    ):
        made = _compile(spec["source"], forms, folder)
    shutil.move(made, folder / MADE / LIBRARY)


class _Rewrites(CustomGraphPass):
    """Changes a graph before the compiler writes its code.

    Args:
        multiplies: call the kernel for products.
    """

    def __init__(self, multiplies: bool) -> None:
        self._multiplies = multiplies

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite a graph in place."""
        if self._multiplies:
            rewrite_products(graph)
        compute_scalars_once(graph)

    def uuid(self) -> Any:
        """Identify what is changed, for the compiler's cache."""
        return self._multiplies, get_hash_for_files((products.__file__, scalars.__file__))


def _compile(source: str, forms: list[TensorForm], folder: Path) -> str:
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
                "post_grad_custom_post_pass": _Rewrites(has_kernel()),
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


def _lacks_extension(isa: VecISA, code: str) -> bool:
    """Say that the processor has no instructions for small integers and halves: graphs use none.

    Torch would compile and load a trial of each, for each graph.
    """
    return False


def _precompile_header(header: str, hashable_cmd_line: str = "", **options: Any) -> str:
    """Write a header, and begin to compile it where many graphs will need it; return its path.

    Until it is compiled, the C++ compiler reads its text: compiling it takes as long as two graphs.
    """
    text = _HEADERS[header]
    flags = cpp_builder.CppTorchDeviceOptions(**options, precompiling=True)
    compiler = cpp_builder.get_compiler_version_info(flags.get_compiler())
    command = cpp_builder.CppBuilder("", header, flags).get_command_line()
    name = hashlib.sha256(repr((command, compiler, torch.__version__, text)).encode()).hexdigest()
    own = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    path = own / f"{name}.h"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        part = own / f"{name}.{os.getpid()}"
        part.write_text(text, encoding="utf-8")
        part.rename(path)
    if len(list(own.parent.glob(f"*/{LIBRARY}"))) >= _MANY_GRAPHS:
        builder = cpp_builder.CppBuilder(str(path), str(path), flags)
        words = shlex.split(_quoted(builder.get_command_line()))
        _begin(Path(builder.get_target_file_path()), words)
    return str(path)


def _begin(made: Path, words: list[str]) -> None:
    """Begin to make a file by a command, unless it is there or another process is at it."""
    with made.with_suffix(".lock").open("w") as lock, suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not made.exists():
            part = f"{made}.part"
            compiles = shlex.join(part if word == str(made) else word for word in words)
            script = f"{compiles} && {shlex.join(['mv', part, str(made)])}"
            subprocess.Popen(script, shell=True, pass_fds=[lock.fileno()])  # keeps the lock


def _run_command(command: str, cwd: str) -> None:
    """Run one of the commands that make a library, whose runtime is in the header."""
    command = _quoted(command)
    for word in shlex.split(command):
        if word.endswith(".wrapper.cpp"):
            wrapper = Path(word)
            _, model = wrapper.read_text(encoding="utf-8").split(_END_OF_RUNTIME)
            wrapper.write_text(model, encoding="utf-8")
    _run_compiler(command, cwd)


def _quoted(command: str) -> str:
    """Quote the folders in a command, which torch writes as they are."""
    own = str(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).parent)
    for folder in (own, sys.prefix, sys.base_prefix):
        if shlex.quote(folder) != folder:
            command = command.replace(folder, shlex.quote(folder))
    return command


if __name__ == "__main__":
    serve(Connection(sys.stdin.fileno()))
