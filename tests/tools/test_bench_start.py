from pathlib import Path

import pytest
from bench import start
from bench.child import ChildError
from bench.measurement import Measurement


def test_each_side_is_a_command_of_its_own() -> None:
    folder = Path("folder")
    first, later, uncompiled, peer = (
        start.command("ppo-cartpole", side, folder) for side in start.SIDES
    )
    assert first[1:6] == ["-m", "rl_command", "train", "ppo", "CartPole-v1"]
    assert [word for word in later if word not in first] == ["folder/later"]
    assert uncompiled[-2:] == ["--trainer.compile", "off"]
    assert peer[1:] == [str(Path(start.__file__).resolve()), "--peer", "ppo-cartpole"]


def test_a_command_that_fails_is_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "command", lambda *words: ["false"])
    (tmp_path / "cache").mkdir()
    with pytest.raises(ChildError, match="exit status 1"):
        start._time("ppo-cartpole", "later", tmp_path)
    monkeypatch.setattr(start, "command", lambda *words: ["true"])
    assert start._time("ppo-cartpole", "later", tmp_path)["seconds"] > 0.0
    assert list(tmp_path.iterdir())
    start._time("ppo-cartpole", "first", tmp_path)
    assert not list(tmp_path.iterdir())


def test_times_are_shown_beside_the_peer_of_their_round() -> None:
    rounds = [
        {"first": {"rate": 1 / 30, "seconds": 30.0}, "sb3": {"rate": 1 / 60, "seconds": 60.0}},
        {"first": {"rate": 1 / 10, "seconds": 10.0}, "sb3": {"rate": 1 / 50, "seconds": 50.0}},
    ]
    found = Measurement(rounds, 0.0, "a machine; threads 1").as_dict()
    text = start.render({"ppo-cartpole": found})
    assert "| `ppo-cartpole` | the first time | 20.0 s | **0.35** (0.50, 0.20) |" in text
    assert "later" not in text
    assert "- `ppo-cartpole`: medians of 2 rounds, 1 thread." in text
    overview = start.overview({"Intel(R) Xeon(R) Processor": {"ppo-cartpole": found}})
    assert "| run | Intel Xeon |" in overview
    assert "| `ppo-cartpole`, the first time | 0.35 |\n\n" in overview
    assert start.render({}) == "Nothing was measured yet."
