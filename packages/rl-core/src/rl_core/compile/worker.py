"""The program that compiles one graph, in a process of its own.

So the compiler takes none of the run's memory, a signal ends it at once, and several graphs compile
side by side. This is the only module that calls ``torch._inductor``.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from rl_core.compile.cache import LIBRARY, MADE
from rl_core.compile.library import SPEC
from rl_core.compile.trace import TensorForm


def main(folder: Path) -> None:
    """Compile the graph that a folder describes, into the same folder."""
    spec = json.loads((folder / SPEC).read_text(encoding="utf-8"))
    torch.set_num_threads(spec["threads"])
    forms = [
        TensorForm(tuple(form["shape"]), tuple(form["stride"]), form["dtype"], form["device"])
        for form in spec["forms"]
    ]
    try:
        made = _compile(spec["source"], forms, folder, _product_options())
    except Exception:  # the pass relies on the compiler's insides
        made = _compile(spec["source"], forms, folder, {})
    shutil.move(made, folder / MADE / LIBRARY)


def _compile(source: str, forms: list[TensorForm], folder: Path, options: dict[str, Any]) -> str:
    import torch._inductor
    from torch._inductor.decomposition import select_decomp_table

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


def _product_options() -> dict[str, Any]:
    """Return the compiler's option that rewrites matrix products, where there is a kernel."""
    from rl_core.compile.products import ProductPass, has_kernel

    return {"post_grad_custom_post_pass": ProductPass()} if has_kernel() else {}


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
