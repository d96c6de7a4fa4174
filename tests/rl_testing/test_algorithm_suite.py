"""What the suite of algorithms accepts, and what it catches."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rl_core.actor import ActionOutput
from rl_core.algorithm import AnyAlgorithm, UpdateSchedule
from rl_core.batch import Rollout, RolloutBatch
from rl_core.gradients import LossOutput, Noise
from rl_core.nn.distributions import Distribution
from rl_core.stateful import StateReader
from rl_core.storage import HasRollouts, Storage
from rl_core.types import Observation, State, StateDict
from rl_testing.actors import OBSERVATION_SPACES
from rl_testing.algorithms import AlgorithmSuite
from rl_testing.toy import ToyActor, ToyActorCritic


class Counting(ToyActorCritic):
    """Weighs its loss by the number of its updates so far."""

    updates = 0

    def before_epochs(self, storage: Storage[RolloutBatch]) -> Mapping[str, Tensor]:
        self.updates += 1
        return {}

    def loss(self, batch: RolloutBatch, noise: Noise) -> LossOutput:
        output = super().loss(batch, noise)
        return replace(output, loss=(1 + self.updates) * output.loss)


class CountingAfterwards(Counting):
    """Counts an update when it is over."""

    def before_epochs(self, storage: Storage[RolloutBatch]) -> Mapping[str, Tensor]:
        return {}

    def after_epochs(self, storage: Storage[RolloutBatch]) -> Mapping[str, Tensor]:
        self.updates += 1
        return {}


class CountingSteps(ToyActorCritic):
    """Reports how many minibatches it ever learned from, as a metric of the update."""

    steps = 0

    def loss(self, batch: RolloutBatch, noise: Noise) -> LossOutput:
        self.steps += 1
        return super().loss(batch, noise)

    def after_epochs(self, storage: Storage[RolloutBatch]) -> Mapping[str, Tensor]:
        return {"toy/steps": torch.tensor(self.steps)}


class KeepingItsGraph(ToyActorCritic):
    """Acts as if it were to be differentiated through."""

    def acting_step(self, *args: Any, **kwargs: Any) -> ActionOutput:
        output = super().acting_step(*args, **kwargs)
        weight = next(self.actor.parameters()).sum()
        return replace(output, env_action=output.env_action + 0.0 * weight)


class LearningByItself(ToyActorCritic):
    """Takes its gradient steps where no callback sees them."""

    def update(self, storage: Storage[RolloutBatch]) -> dict[str, float]:
        assert isinstance(storage, HasRollouts)
        columns, _ = self.prepare(storage.rollout())
        storage.attach(columns)
        for batch in storage.generate_batches(1, None):
            self.gradient_step(batch)
        storage.after_update()
        return {}


class SavingItsCount(Counting):
    """Does it right."""

    def more_state(self) -> StateDict:
        return {"updates": self.updates}

    def load_more_state(self, state: StateDict) -> None:
        self.updates = StateReader(state, "more").count("updates")


class HoldingAParameter(ToyActorCritic):
    """Learns an offset that belongs to no module."""

    def __init__(self, actor: ToyActor) -> None:
        super().__init__(actor)
        self.offset = nn.Parameter(torch.tensor(1.0))

    def loss(self, batch: RolloutBatch, noise: Noise) -> LossOutput:
        output = super().loss(batch, noise)
        return replace(output, loss=output.loss + self.offset.square())


class HoldingALayer(ToyActorCritic):
    """Learns a layer that `make_modules` does not return."""

    def __init__(self, actor: ToyActor) -> None:
        super().__init__(actor)
        self.layer = nn.Linear(1, 1)

    def loss(self, batch: RolloutBatch, noise: Noise) -> LossOutput:
        output = super().loss(batch, noise)
        return replace(output, loss=output.loss + self.layer.weight.square().sum())


class DiscountingByItsConfig(ToyActorCritic):
    def prepare(self, rollout: Rollout) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        columns, metrics = super().prepare(rollout)
        gamma = cast("float", self.config.gamma)
        return {**columns, "advantage": gamma * columns["advantage"]}, metrics


class WritingIntoItsRollout(ToyActorCritic):
    def prepare(self, rollout: Rollout) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        rollout.reward.mul_(0.5)
        return super().prepare(rollout)


class DrawingFromAllsGenerator(ToyActorCritic):
    """Shakes its weights by numbers that no checkpoint brings back."""

    @torch.no_grad()
    def before_epochs(self, storage: Storage[RolloutBatch]) -> Mapping[str, Tensor]:
        next(self.actor.parameters()).add_(torch.randn(()))
        return {}


class DrawingFromNumpys(ToyActorCritic):
    """The same with another library's."""

    @torch.no_grad()
    def before_epochs(self, storage: Storage[RolloutBatch]) -> Mapping[str, Tensor]:
        next(self.actor.parameters()).add_(float(np.random.rand()))
        return {}


class ValuingDeath(ToyActorCritic):
    """Takes episodes for going on."""

    def prepare(self, rollout: Rollout) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        return super().prepare(replace(rollout, terminated=torch.zeros_like(rollout.terminated)))


class DyingWhenCut(ToyActorCritic):
    """Takes time limits for deaths."""

    def prepare(self, rollout: Rollout) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        return super().prepare(replace(rollout, terminated=rollout.terminated | rollout.truncated))


class SummingResets(ToyActorCritic):
    """Adds to each return what rows that only reset are rewarded."""

    def prepare(self, rollout: Rollout) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        columns, metrics = super().prepare(rollout)
        resets = rollout.reward.where(~rollout.valid, 0.0).sum()
        return {**columns, "value_target": columns["value_target"] + resets}, metrics


class WeighingByItsConfig(ToyActorCritic):
    def loss(self, batch: RolloutBatch, noise: Noise) -> LossOutput:
        output = super().loss(batch, noise)
        return replace(output, loss=cast("float", self.config.gamma) * output.loss)


class CuttingInTwoWays(ToyActorCritic):
    @property
    def schedule(self) -> UpdateSchedule:
        return UpdateSchedule(num_minibatches=2, minibatch_size=8)


class CuttingInNoWay(ToyActorCritic):
    @property
    def schedule(self) -> UpdateSchedule:
        return UpdateSchedule()


class CountingAllRows(ToyActorCritic):
    """Averages over rows that only reset, too."""

    def loss(self, batch: RolloutBatch, noise: Noise) -> LossOutput:
        return super().loss(replace(batch, mask=torch.ones_like(batch.mask)), noise)


class ShiftedActor(ToyActor):
    """Shifts what it sees by a number that is no buffer."""

    def __init__(
        self, observation_space: gymnasium.Space[object], action_space: gymnasium.Space[object]
    ) -> None:
        super().__init__(observation_space, action_space)
        self.shift = 10.0 * float(torch.randn(()))

    def distribution(
        self, observation: Observation, state: State, episode_start: Tensor | None = None
    ) -> tuple[Distribution, State]:
        assert isinstance(observation, Tensor)
        return super().distribution(observation + self.shift, state, episode_start)


def _make(
    kind: type[ToyActorCritic], seed: int, actor: type[ToyActor] = ToyActor
) -> ToyActorCritic:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return kind(actor(OBSERVATION_SPACES["vector"], gymnasium.spaces.Discrete(3)))


class TestSavingItsCount(AlgorithmSuite):
    has_compile_test = False

    def make_algorithm(self, seed: int) -> AnyAlgorithm:
        return _make(SavingItsCount, seed)


UPDATES = "test_a_whole_update_is_saved"
CUTS = "test_its_schedule_cuts_rollouts_in_one_way"
PREPARES = "test_preparing_a_rollout_gives_the_columns_of_a_batch"
OWNS = "test_every_parameter_of_the_loss_belongs_to_a_module"
ENDS = "test_ends_of_episodes_are_told_apart"
MASKS = "test_a_row_that_does_not_count_teaches_nothing"
READS = "test_scheduled_options_are_read_from_hyper"
WATCH = "test_callbacks_within_updates_are_called"
HINT = "after a restore; is the field in state_fields / more_state"


@pytest.mark.parametrize(
    ("algorithm", "test", "message"),
    [
        (Counting, UPDATES, f"the state after an update.* differs, {HINT}"),
        (CountingAfterwards, UPDATES, f"the state after an update.* differs, {HINT}"),
        (CountingSteps, UPDATES, rf"what update\(\) returned.toy/steps: 2.0; expected 4.0, {HINT}"),
        (HoldingAParameter, OWNS, r"a parameter in self.offset, which none.*make_modules\(\)"),
        (HoldingALayer, OWNS, r"a parameter in self.layer, which none.*make_modules\(\)"),
        (DiscountingByItsConfig, READS, r"config.gamma is read .*self.hyper\['gamma'\] instead"),
        (WeighingByItsConfig, READS, r"config.gamma is read .*self.hyper\['gamma'\] instead"),
        (WritingIntoItsRollout, PREPARES, r"the rollout after prepare\(\)"),
        (
            DrawingFromAllsGenerator,
            UPDATES,
            r"global generator of torch.* draw from self.generator",
        ),
        (
            KeepingItsGraph,
            "test_acting_returns_what_it_declares",
            r"returns 'env_action' with its graph; decorate",
        ),
        (DrawingFromNumpys, UPDATES, r"global generator of numpy"),
        (ValuingDeath, ENDS, "bootstraps from what follows a terminated step"),
        (DyingWhenCut, ENDS, "does not bootstrap where an episode is truncated"),
        (SummingResets, ENDS, "takes the reward of a row that only resets"),
        (CountingAllRows, MASKS, r"average with masked_mean\(..., batch.mask\)"),
        (LearningByItself, WATCH, "called nobody at epoch_end, epoch_start, minibatch_end, minib"),
        (CuttingInTwoWays, CUTS, "num_minibatches=2 and minibatch_size=8; let it give just one"),
        (CuttingInNoWay, CUTS, "num_minibatches=None and minibatch_size=None; let it give just"),
    ],
)
def test_the_suite_catches(algorithm: type[ToyActorCritic], test: str, message: str) -> None:
    class Suite(AlgorithmSuite):
        def make_algorithm(self, seed: int) -> AnyAlgorithm:
            return _make(algorithm, seed)

    with pytest.raises(AssertionError, match=f"(?s){message}"):
        getattr(Suite(), test)()


def test_the_suite_catches_an_actor_whose_weights_are_not_all() -> None:
    class Suite(AlgorithmSuite):
        def make_algorithm(self, seed: int) -> AnyAlgorithm:
            return _make(ToyActorCritic, seed, ShiftedActor)

    with pytest.raises(AssertionError, match=r"a worker acts otherwise.*parameter or buffer"):
        Suite().test_weights_carry_over()
