"""Functions of tensors, compiled: traced as graphs, made into libraries, called without guards.

The package itself imports no PyTorch, so that the compiler can start before that is imported.
"""

from rl_core.compile.process import has_cpp_compiler as has_cpp_compiler
from rl_core.compile.process import start_early as start_early
