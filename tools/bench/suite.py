"""Benchmarks of several parts that are measured one after the other, kept, and tabulated."""

import argparse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias, cast

from bench.child import Json, termination_interrupts
from bench.machine import hardware
from bench.markdown import PAGE, folded, table, write_block
from bench.measurement import Found, read_results, write_results

_RESULTS = Path(__file__).resolve().parent / "results"

Part: TypeAlias = Callable[[argparse.Namespace], Found]
"""Measures one part, as the command line's options say."""


def suite_parser(
    name: str, description: str | None, parts: Iterable[str], seconds: float | None = None
) -> argparse.ArgumentParser:
    """Return the options that all suites have.

    Args:
        name: of the suite.
        description: of the suite.
        parts: names of its parts.
        seconds: length of the measured span, where the command line says nothing; None where whole
            runs are measured.
    """
    results = _RESULTS / f"{name}.json"
    parser = argparse.ArgumentParser(prog=name, description=description)
    parser.add_argument("--only", action="append", choices=list(parts), help="may be repeated")
    parser.add_argument("--rounds", type=int, default=3)
    if seconds is not None:
        parser.add_argument(
            "--seconds", type=float, default=seconds, help="measured span of each system"
        )
    parser.set_defaults(device="cpu")
    parser.add_argument("--table", action="store_true", help="measure nothing, rewrite the table")
    parser.add_argument("--results", type=Path, default=results, help="where figures are kept")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the table is written")
    return parser


def run_suite(
    name: str,
    parts: Mapping[str, Part],
    render: Callable[[Mapping[str, Json]], str],
    options: argparse.Namespace,
    overview: Callable[[Mapping[str, Mapping[str, Json]]], str] | None,
) -> int:
    """Measure the chosen parts, keep each when it ends, and write the block of the page.

    Args:
        name: of the suite and of its block.
        parts: by name, in their order.
        render: makes Markdown of everything that is kept, by part.
        options: of `suite_parser`.
        overview: makes Markdown of what each kind of processor measured, by its name, which stands
            above the details of each; ratios depend on the processor, and on the GPU if there is
            one. None where they do not, and the last measurement of each part is all that is kept.

    Returns:
        An exit status; 1 when something failed.
    """
    chosen = [] if options.table else options.only or list(parts)
    status = 0
    try:
        with termination_interrupts():
            for part in parts:
                if part not in chosen:
                    continue
                found = parts[part](options)
                # read only now: a command beside this one may have measured other parts meanwhile
                results = read_results(options.results)
                if overview:
                    kind = hardware(options.device)
                    own = cast("dict[str, Json]", results.get(kind, {}))
                    results[kind] = {**own, part: found.values}
                else:
                    results[part] = found.values
                write_results(options.results, results)
                if not found.is_complete:
                    status = 1
    except KeyboardInterrupt:
        print("stopped; what was measured to its end is kept", flush=True)
        return 130
    results = read_results(options.results)
    content = render_by_processor(results, render, overview) if overview else render(results)
    print(f"\n{content}\n")
    write_block(options.page, name, content)
    return status


def render_by_processor(
    results: Mapping[str, Json],
    render: Callable[[Mapping[str, Json]], str],
    overview: Callable[[Mapping[str, Mapping[str, Json]]], str],
) -> str:
    """Render an overview, and below it what each kind of processor measured."""
    if not results:
        return "Nothing was measured yet."
    known = cast("dict[str, Mapping[str, Json]]", dict(sorted(results.items())))
    details = [folded(name, render(found)) for name, found in known.items()]
    return "\n\n".join((overview(known), *details))


def processor_table(head: str, columns: Mapping[str, Mapping[str, str]]) -> str:
    """Render what each kind of processor measured side by side.

    Args:
        head: of the first column.
        columns: by processor the cells by their row, ``-`` for what was not measured.
    """
    rows = [
        [name, *(cells[name] for cells in columns.values())]
        for name in next(iter(columns.values()))
        if any(cells[name] != "-" for cells in columns.values())
    ]
    titles = [name.replace("(R)", "").replace(" Processor", "") for name in columns]
    return table([head, *titles], rows, left=1)
