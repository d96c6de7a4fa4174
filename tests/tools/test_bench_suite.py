import argparse
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest
from bench import replay, speed
from bench.child import ChildError, Json
from bench.machine import processor
from bench.markdown import folded
from bench.measurement import (
    Figures,
    Found,
    Measurement,
    measure_in_turn,
    measurements_of,
    read_results,
    write_results,
)
from bench.suite import run_suite, suite_parser


class Parts:
    """Two parts; the second one fails, or is interrupted."""

    def __init__(self, *, is_interrupted: bool = False) -> None:
        self.measured: list[str] = []
        self.is_interrupted = is_interrupted

    def first(self, options: argparse.Namespace) -> Found:
        self.measured.append("first")
        return Found({"seconds": options.seconds}, is_complete=True)

    def second(self, options: argparse.Namespace) -> Found:
        self.measured.append("second")
        if self.is_interrupted:
            raise KeyboardInterrupt
        return Found({"rounds": options.rounds}, is_complete=False)

    def run(self, folder: Path, *arguments: str) -> int:
        parts = {"first": self.first, "second": self.second}
        page = folder / "page.md"
        page.write_text("<!-- toy:begin -->\n<!-- toy:end -->\n", encoding="utf-8")
        parser = suite_parser("toy", None, parts, seconds=2.5)
        where = ["--results", str(folder / "toy.json"), "--page", str(page)]
        return run_suite("toy", parts, render, parser.parse_args([*arguments, *where]), overview)


def overview(results: Mapping[str, Mapping[str, Json]]) -> str:
    return f"of {', '.join(results)}"


def render(results: Mapping[str, Json]) -> str:
    return f"kept {results}"


def test_parts_are_measured_in_order_and_kept(tmp_path: Path) -> None:
    parts = Parts()
    assert parts.run(tmp_path) == 1  # the second one is not complete
    assert parts.measured == ["first", "second"]
    kept = {"first": {"seconds": 2.5}, "second": {"rounds": 3}}
    assert read_results(tmp_path / "toy.json") == {processor(): kept}
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert f"of {processor()}\n\n{folded(processor(), f'kept {kept}')}" in page


def test_only_what_is_asked_for_is_measured_anew(tmp_path: Path) -> None:
    others: dict[str, Json] = {"another processor": {"first": 2}}
    write_results(tmp_path / "toy.json", {**others, processor(): {"second": 1}})
    parts = Parts()
    assert parts.run(tmp_path, "--only", "first", "--seconds", "1") == 0
    assert parts.measured == ["first"]
    kept: dict[str, Json] = {"second": 1, "first": {"seconds": 1.0}}
    assert read_results(tmp_path / "toy.json") == {**others, processor(): kept}


def test_a_table_is_made_of_what_is_kept(tmp_path: Path) -> None:
    write_results(tmp_path / "toy.json", {"one": {"second": 1}, "another": {"first": 2}})
    parts = Parts()
    assert parts.run(tmp_path, "--table") == 0
    assert parts.measured == []
    details = [folded("another", "kept {'first': 2}"), folded("one", "kept {'second': 1}")]
    content = "\n\n".join(("of another, one", *details))
    assert content in (tmp_path / "page.md").read_text(encoding="utf-8")


def test_an_interruption_keeps_what_was_measured_to_its_end(tmp_path: Path) -> None:
    assert Parts(is_interrupted=True).run(tmp_path) == 130
    assert read_results(tmp_path / "toy.json") == {processor(): {"first": {"seconds": 2.5}}}
    assert "kept" not in (tmp_path / "page.md").read_text(encoding="utf-8")


def test_a_system_that_fails_leaves_a_gap_in_its_round(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> Figures:
        raise ChildError("no")

    def describe(figures: Figures) -> str:
        return f"{figures['rate']}"

    systems = {"ours": lambda: {"rate": 2.0}, "sb3": lambda: {"rate": 4.0}}
    whole = measure_in_turn("toy", systems, 2, 5.0, "a machine", describe)
    one = {"ours": {"rate": 2.0}, "sb3": {"rate": 4.0}}
    assert whole == Found(Measurement([one, one], 5.0, "a machine").as_dict(), is_complete=True)
    broken = {**systems, "sbx": fail}
    partial = measure_in_turn("toy", broken, 1, 5.0, "a machine", describe)
    assert "toy round 1: sbx failed: no" in capsys.readouterr().out
    assert partial == Found(Measurement([one], 5.0, "a machine").as_dict(), is_complete=False)
    found = measurements_of({"toy": whole.values, "import": {}}, ["toy", "other"])
    assert found == {"toy": Measurement([one, one], 5.0, "a machine")}


@pytest.mark.parametrize("program", [speed, replay])
def test_a_part_that_is_not_there_is_refused(
    program: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        program.main(["--only", "nothing"])
    assert "invalid choice: 'nothing'" in capsys.readouterr().err
