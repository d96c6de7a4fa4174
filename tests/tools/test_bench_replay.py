from pathlib import Path

import pytest
from bench import replay, replay_run
from bench.child import Json
from bench.measurement import Measurement, write_results
from bench.replay_operations import OPERATIONS
from bench.replay_table import memory_table, replay_overview, replay_table


def cells(table: str, row: int = 0) -> list[str]:
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [cell.strip() for cell in lines[2 + row].strip("|").split("|")]


def figures(rate: float) -> dict[str, float]:
    return {"rate": rate, "transitions": 1_000_000.0}


def test_an_operation_is_compared_with_the_peers_that_can_do_it() -> None:
    rounds = [
        {"ours": figures(20_000.0), "sb3": figures(10_000.0)},
        {"ours": figures(10_000.0), "sb3": figures(4_000.0)},
    ]
    measurement = Measurement(rounds, 3.0, "a machine; threads 1")
    text = replay_table({"uniform": measurement})
    assert cells(text, 0) == [
        "`uniform`",
        "ours",
        "66.7 µs",  # of the median rate, 15,000 a second
        "**2.25** (2.00, 2.50)",
        "",
        "1,000,000",
    ]
    assert cells(text, 1) == ["`uniform`", "Stable-Baselines3", "142.9 µs", "", "", "1,000,000"]
    assert "- `uniform`: medians of 2 rounds of 3 s, 1 thread." in text
    overview = replay_overview({"one": {"uniform": measurement}})
    assert "| `uniform` beside Stable-Baselines3 | 2.25 |\n\n- `uniform`: draw 256" in overview
    assert "`insert`" not in text


def test_a_system_that_failed_is_said_to() -> None:
    text = replay_table({"insert": Measurement([{"ours": figures(1e6)}], 1.0, "m")})
    assert cells(text, 0)[2:5] == ["1.0 µs", "-", "-"]
    assert cells(text, 2) == ["`insert`", "cpprb", "failed", "", "", "-"]


def test_nothing_measured_is_said() -> None:
    assert replay_table({}) == "Nothing was measured yet."


@pytest.mark.parametrize(
    ("count", "verdict"), [(110e6, "reached"), (110e6 + 1, "missed"), (None, "missed")]
)
def test_memory_is_compared_with_what_is_allowed(count: float | None, verdict: str) -> None:
    measured = {"halfcheetah": {"sb3": 172e6} | ({} if count is None else {"ours": count})}
    text = memory_table(measured)
    memory = "failed" if count is None else "110 MB"
    assert cells(text, 0)[1:] == ["ours", memory, f"at most 110 MB: {verdict}"]
    assert cells(text, 1)[1:] == ["Stable-Baselines3", "172 MB", ""]
    assert "Atari" not in text


@pytest.mark.parametrize("name", OPERATIONS)
def test_our_buffer_does_every_operation(name: str) -> None:
    operation = OPERATIONS[name]
    size = 1500  # more than one episode, so that the oldest are overwritten
    found = replay_run.measure(name, "ours", size, seconds=0.0)
    assert found["rate"] > 0.0
    num_episodes = 30 if operation.is_relabeled else 2
    assert size - num_episodes <= found["transitions"] <= size


def test_bytes_of_a_million_lie_on_the_line_through_smaller_buffers() -> None:
    per_row = (17 + 6) * 4 + 4 + 1  # a reward and the flags
    found = replay_run.count_bytes("halfcheetah", "ours", 1_000_000)
    assert found == {"bytes": 1_000_001 * per_row}


def test_tables_are_written_from_what_was_recorded(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "replay.json"
    page.write_text("<!-- replay:begin -->\n<!-- replay:end -->\n", encoding="utf-8")
    measurement = Measurement([{"ours": figures(1e4), "sb3": figures(1e4)}], 3.0, "a machine")
    memory: dict[str, Json] = {"halfcheetah": {"ours": 97e6}}
    write_results(results, {"a processor": {"uniform": measurement.as_dict(), "memory": memory}})
    assert replay.main(["--table", "--results", str(results), "--page", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "| `uniform` | ours | 100.0 µs |" in text
    assert "| ours | 97 MB | at most 110 MB: reached |" in text
