"""Actions that are continuous and categorical at once, from the environment to the command."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import rl_train
from rl_command.main import main
from rl_core.compile import has_cpp_compiler
from rl_core.errors import SpaceError
from rl_core.seeding import numpy_generator_state, set_numpy_generator_state
from rl_core.types import Array, StateDict
from rl_testing.stateful import check_same_state

TINY = ["--num-envs=4", "--actor.hidden-sizes=8", "--storage.num-steps=32", "--trainer.compile=off"]


class Aim(gymnasium.Env[Array, Any]):
    """Shows a place and which of two tools reaches it; an episode has eight steps."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Dict(
        {
            "tool": spaces.Discrete(2, start=1),
            "aim": spaces.Tuple([spaces.Box(-1.0, 1.0, (1,), np.float32), spaces.MultiBinary(1)]),
        }
    )
    shown = np.zeros(2, np.float32)
    steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._show(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        (place,), (fires,) = action["aim"]
        is_right = (action["tool"] == 2) == (self.shown[1] > 0.0)
        reward = float(fires and is_right) * (1.0 - 0.5 * abs(float(place - self.shown[0])))
        self.steps += 1
        return self._show(), reward, self.steps == 8, False, {}

    def state_dict(self) -> StateDict:
        shown = torch.from_numpy(self.shown)
        return {
            "random": numpy_generator_state(self.np_random),
            "shown": shown,
            "steps": self.steps,
        }

    def load_state_dict(self, state: Any) -> None:
        set_numpy_generator_state(self.np_random, state["random"])
        self.shown, self.steps = state["shown"].numpy().copy(), state["steps"]

    def _show(self) -> Array:
        self.shown = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        return self.shown.copy()


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    gymnasium.register("Aim-v0", entry_point=lambda **kwargs: Aim())
    yield
    del gymnasium.registry["Aim-v0"]


@pytest.mark.parametrize("name", ["ppo", "trpo", "rnd-ppo"])
def test_a_run_by_name_resumes_bit_for_bit_and_is_evaluated(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run, steps in (("whole", 256), ("first", 128)):
        words = [name, "Aim-v0", *TINY, f"--total-steps={steps}", f"--run-dir={tmp_path / run}"]
        assert main(["train", *words]) == 0
    assert main(["resume", str(tmp_path / "first"), "--total-steps=256"]) == 0
    whole, resumed = (rl_train.load(tmp_path / run) for run in ("whole", "first"))
    check_same_state(resumed.algorithm.state_dict(), whole.algorithm.state_dict())
    capsys.readouterr()
    results = []
    for run in ("whole", "first"):
        assert main(["eval", str(tmp_path / run), "--episodes=5", "--json"]) == 0
        results.append(json.loads(capsys.readouterr().out)["returns"])
    assert results[0] == results[1]


@pytest.mark.slow
@pytest.mark.skipif(not has_cpp_compiler(), reason="no C++ compiler")
def test_compiled_runs_learn_the_same() -> None:
    weights = []
    for mode in ("off", "on"):
        agent = rl_train.make(
            "ppo", "Aim-v0", num_envs=4, num_steps=32, hidden_sizes=(8,), seed=1, compile=mode
        )
        agent.train(total_steps=384)
        weights.append(torch.cat([part.flatten() for part in agent.actor.parameters()]))
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["dqn", "ddpg", "td3", "sac", "bc"])
def test_algorithms_that_cannot_refuse_them(name: str) -> None:
    with pytest.raises(SpaceError, match=r"action space HybridSpace\(.* is not supported"):
        rl_train.make(name, "Aim-v0")
