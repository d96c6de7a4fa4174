"""Functions of tensors, compiled: traced as graphs, made into libraries, called without guards."""

from rl_core.compile.compiler import check_compiler as check_compiler
from rl_core.compile.compiler import has_cpp_compiler as has_cpp_compiler
from rl_core.compile.function import CompiledFunction as CompiledFunction
from rl_core.compile.function import CompiledFunctions as CompiledFunctions
from rl_core.compile.function import CompileMode as CompileMode
from rl_core.compile.trace import is_tracing as is_tracing
from rl_core.compile.trace import tensors_of as tensors_of
