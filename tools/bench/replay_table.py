"""The tables of the replay benchmark."""

from collections.abc import Mapping

from bench.markdown import table
from bench.measurement import Measurement, overview_cell, ratio_cell, settings_lines
from bench.replay_operations import DATA, MEMORY, OPERATIONS, SYSTEMS
from bench.suite import processor_table

_PEERS = ("sb3", "cpprb")


def replay_overview(measurements: Mapping[str, Mapping[str, Measurement]]) -> str:
    """Render how fast ours is beside its peers, and what the operations are.

    Args:
        measurements: by processor, and by name of the operation.
    """
    columns = {
        processor: {
            f"`{name}` beside {SYSTEMS[peer]}": overview_cell(found.get(name), "ours", peer)
            for name, operation in OPERATIONS.items()
            for peer in _PEERS
            if peer in operation.systems
        }
        for processor, found in measurements.items()
    }
    titles = [f"- `{name}`: {operation.title}" for name, operation in OPERATIONS.items()]
    return "\n\n".join((processor_table("operation", columns), "\n".join(titles)))


def replay_table(measurements: Mapping[str, Measurement]) -> str:
    """Render all operations that were measured, in the order of the registry.

    Args:
        measurements: by name of the operation.
    """
    known = {name: measurements[name] for name in OPERATIONS if name in measurements}
    rows = [
        _row(name, system, found)
        for name, found in known.items()
        for system in OPERATIONS[name].systems
    ]
    if not rows:
        return "Nothing was measured yet."
    header = ["operation", "system", "time", "x SB3", "x cpprb", "transitions"]
    return "\n\n".join((table(header, rows, left=2), settings_lines(known)))


def memory_table(measured: Mapping[str, Mapping[str, float]]) -> str:
    """Render what a million transitions take.

    Args:
        measured: bytes by system, by name of the transitions.
    """
    rows: list[list[str]] = []
    for name, systems in MEMORY.items():
        for system in systems if name in measured else ():
            count = measured[name].get(system)
            allowed = DATA[name].allowed_bytes if system == "ours" else None
            rows.append(
                [
                    DATA[name].title,
                    SYSTEMS[system],
                    "failed" if count is None else _bytes(count),
                    _verdict(count, allowed),
                ]
            )
    return table(["a million transitions", "system", "memory", "target"], rows, left=2)


def _row(name: str, system: str, measurement: Measurement) -> list[str]:
    rate = measurement.median(system, "rate")
    stored = measurement.median(system, "transitions")
    compared = [peer for peer in _PEERS if system == "ours" and peer in OPERATIONS[name].systems]
    return [
        f"`{name}`",
        SYSTEMS[system],
        "failed" if rate is None else f"{1e6 / rate:,.1f} µs",
        *(
            ratio_cell(measurement.ratios(system, peer)) if peer in compared else ""
            for peer in _PEERS
        ),
        "-" if stored is None else f"{stored:,.0f}",
    ]


def _verdict(count: float | None, allowed: float | None) -> str:
    if allowed is None:
        return ""
    is_kept = count is not None and count <= allowed
    return f"at most {_bytes(allowed)}: {'reached' if is_kept else 'missed'}"


def _bytes(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
