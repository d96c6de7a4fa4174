"""Batches of steps that were not finite come back from disk as they were."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_flatten

from rl_core.batch import ReplayBatch, RolloutBatch, SequenceStart
from rl_core.config import ComponentSpec, Recipe
from rl_core.errors import CheckpointError
from rl_core.gradients import FaultyStep
from rl_train.checkpoint import load_checkpoint
from rl_train.checkpoint.faulty_steps import load_faulty_step, save_faulty_step

RECIPE = Recipe(
    env=ComponentSpec("env", "any", {}),
    actor=ComponentSpec("actor", "any", {}),
    algorithm=ComponentSpec("algorithm", "any", {}),
    storage=ComponentSpec("storage", "any", {}),
)
START = SequenceStart(
    state={"policy": torch.ones(2, 3)},
    burn_in={"a": torch.zeros(1, 2, 4)},
    action=torch.zeros(2, 2),
    episode_start=torch.tensor([[True, False]]),
)
BATCH = ReplayBatch(
    observation={"a": torch.ones(2, 4), "b": torch.tensor([1, 2])},
    action=torch.tensor([0, 1]),
    reward=torch.tensor([[1.0], [torch.inf]]),
    num_steps=torch.tensor([1, 1]),
    terminated=torch.tensor([False, True]),
    next_observation={"a": torch.full((2, 4), torch.nan), "b": torch.tensor([3, 4])},
    weight=torch.ones(2),
    mask=torch.ones(2),
    index=torch.zeros(2, 2, dtype=torch.int64),
    start=START,
    extras={"log_prob": torch.zeros(2)},
)


@pytest.mark.parametrize("batch", [BATCH, replace(BATCH, start=None, extras={})])
def test_a_step_comes_back_as_it_was(batch: ReplayBatch, tmp_path: Path) -> None:
    step = FaultyStep(7, batch, {"normal": torch.arange(3.0)})
    path = tmp_path / "nonfinite" / "step-9"
    save_faulty_step(path, step, 9, "gradient step 7 was not finite", RECIPE)
    again = load_faulty_step(path, ReplayBatch)
    got, expected = (tree_flatten(one) for one in (again.batch, batch))
    assert got[1] == expected[1]
    torch.testing.assert_close(got[0], expected[0], rtol=0.0, atol=0.0, equal_nan=True)
    assert (again.number, again.noise["normal"].tolist()) == (7, [0.0, 1.0, 2.0])
    told = load_checkpoint(path)
    assert told.step == 9
    assert told.metadata == {
        "message": "gradient step 7 was not finite",
        "gradient_step": 7,
        "batch": "ReplayBatch",
        "not_finite": ["batch/reward", "batch/next_observation/a"],
    }


def test_another_kind_of_batch_is_refused(tmp_path: Path) -> None:
    save_faulty_step(tmp_path / "step-1", FaultyStep(1, BATCH, {}), 1, "it was not", RECIPE)
    with pytest.raises(CheckpointError, match="holds a ReplayBatch; expected a RolloutBatch"):
        load_faulty_step(tmp_path / "step-1", RolloutBatch)
    with pytest.raises(CheckpointError):
        load_faulty_step(tmp_path / "step-2", ReplayBatch)
