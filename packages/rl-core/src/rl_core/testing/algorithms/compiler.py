"""The compiler that `torch.compile` needs."""

import os
import shutil


def has_cpp_compiler() -> bool:
    """Say whether `torch.compile` can make code for the CPU."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))
