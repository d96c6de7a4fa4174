import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_core import plugins
from rl_core.actor import Actor
from rl_core.algorithm import Algorithm, DefaultRecipe, EnvSpec, UpdateSchedule
from rl_core.batch import RolloutBatch
from rl_core.config import Config, ScheduledNonNegative
from rl_core.errors import ConfigError
from rl_core.gradients import LossOutput, Noise, ParameterGroup
from rl_core.nn.distributions import DiagonalGaussian, Distribution
from rl_core.storage import TensorSpec
from rl_core.types import Observation, State
from rl_meta import MAMLTRPO, MAMLVPG, MAMLTRPOConfig, MAMLVPGConfig
from rl_meta.baseline import baseline_features, episode_steps, fit_baseline

BOX = spaces.Box(-9.0, 9.0, (1,))


class Place(Actor):
    """A Gaussian policy around one number, whatever is observed."""

    def __init__(self) -> None:
        super().__init__(BOX, BOX)
        self.policy = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.policy.weight, 0.5)

    @property
    def policy_modules(self) -> tuple[str, ...]:
        return ("policy",)

    @property
    def action_spec(self) -> TensorSpec:
        return TensorSpec((1,), torch.float32)

    def distribution(
        self, observation: Observation, state: State, episode_start: Tensor | None = None
    ) -> tuple[Distribution, State]:
        assert isinstance(observation, Tensor)
        mean = self.policy(torch.ones_like(observation))
        return DiagonalGaussian(mean, torch.zeros_like(mean)), {}

    def to_env_action(self, action: Tensor) -> Tensor:
        return action

    def draw_noise(self, batch_shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.randn(*batch_shape, 1, generator=generator)


@dataclass(frozen=True, kw_only=True, slots=True)
class QuadraticConfig(Config):
    learning_rate: ScheduledNonNegative = 0.1


class Quadratic(Algorithm[QuadraticConfig, RolloutBatch]):
    """Minimizes half the squared distance of the place to the mean observation."""

    @property
    def schedule(self) -> UpdateSchedule:
        return UpdateSchedule(num_minibatches=1)

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        raise NotImplementedError

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        return (ParameterGroup(name="all", modules=("actor",)),)

    def loss(self, batch: RolloutBatch, noise: Noise) -> LossOutput:
        assert isinstance(self.actor, Place)
        assert isinstance(batch.observation, Tensor)
        return LossOutput(0.5 * (self.actor.policy.weight - batch.observation).square().mean())


class NoGradientSteps(Quadratic):
    exchanges_gradients = False


@pytest.fixture(autouse=True)
def _inner(monkeypatch: pytest.MonkeyPatch) -> None:
    classes = {"vpg": Quadratic, "none": NoGradientSteps}
    monkeypatch.setattr(plugins, "load", lambda _, name: classes[name])
    monkeypatch.setattr("rl_meta.maml._INNER_OPTIONS", {})


def _batch(*targets: list[float]) -> RolloutBatch:
    """Return one sample for each step and task."""
    observation = torch.tensor(targets).view(len(targets), -1, 1, 1)
    ones = torch.ones(observation.shape[:3])
    return RolloutBatch(
        observation=observation,
        action=observation,
        log_prob=ones,
        value=ones,
        advantage=ones,
        value_target=ones,
        mask=ones,
        episode_start=ones.bool(),
        state={},
    )


@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize("num_steps", [1, 2])
def test_the_meta_gradient_is_that_worked_out_by_hand(first_order: bool, num_steps: int) -> None:
    # theta' = theta - a (theta - c) shrinks the distance by 1 - a, and so does each step its
    # derivative, unless that is left out.
    actor, rate, theta = Place(), 0.25, 0.5
    config = MAMLVPGConfig(inner_lr=rate, first_order=first_order, num_grad_updates=num_steps)
    algorithm = MAMLVPG(actor, config)
    adapting, judged = [1.0, -2.0], [0.0, 3.0]
    algorithm.loss(_batch(*[adapting] * num_steps, judged), {}).loss.backward()  # type: ignore[no-untyped-call]  # of torch
    expected = 0.0
    for goal, target in zip(adapting, judged, strict=True):
        adapted = goal + (theta - goal) * (1.0 - rate) ** num_steps
        derivative = 1.0 if first_order else (1.0 - rate) ** num_steps
        expected += 0.5 * (adapted - target) * derivative
    assert actor.policy.weight.grad is not None
    assert actor.policy.weight.grad.item() == pytest.approx(expected, rel=1e-5)


def test_step_sizes_can_be_learned() -> None:
    actor = Place()
    algorithm = MAMLVPG(actor, MAMLVPGConfig(inner_lr=0.25, learn_inner_lr=True, outer_lr=0.1))
    batch = _batch([1.0], [3.0])
    algorithm.loss(batch, {}).loss.backward()  # type: ignore[no-untyped-call]  # of torch
    # dL/da = -(theta' - target) (theta - goal), with theta' = 0.5 + 0.25 * 0.5
    (size,) = [p for n, p in algorithm.named_parameters().items() if n.startswith("step_sizes")]
    assert size.grad is not None
    assert size.grad.item() == pytest.approx(-(0.625 - 3.0) * (0.5 - 1.0), rel=1e-5)
    algorithm.gradient_step(batch)
    assert size.item() == pytest.approx(0.35, abs=1e-3)


def test_an_algorithm_without_a_loss_of_its_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="inner_algorithm='none'"):
        MAMLVPG(Place(), MAMLVPGConfig(inner_algorithm="none"))


def test_adaptation_needs_data() -> None:
    algorithm = MAMLTRPO(Place(), MAMLTRPOConfig(num_grad_updates=2))
    with pytest.raises(ConfigError, match="num_grad_updates=2 gradient steps"):
        algorithm.adapt_policy(algorithm.get_exploration_policy(), [])


def test_the_baseline_is_the_ridge_solution_of_each_task() -> None:
    observation = torch.linspace(-1.0, 1.0, 40).view(2, 20, 1)
    step = torch.arange(20).expand(2, 20)
    features = baseline_features(observation, step)
    assert features.shape == (2, 20, 6)
    torch.testing.assert_close(
        features[0, 10],
        torch.tensor([-0.4872, 0.2373, 0.1, 0.01, 0.001, 1.0]).double(),
        atol=1e-4,
        rtol=0.0,
    )
    truth = torch.tensor([[1.0, 2.0, 0.0, 0.0, 0.0, 3.0], [-1.0, 0.0, 5.0, 0.0, 0.0, 0.5]]).double()
    returns = (features * truth.unsqueeze(1)).sum(-1)
    mask = torch.ones(2, 20, dtype=torch.bool)
    mask[0, 3], returns[0, 3] = False, 1e6  # does not count
    weights = fit_baseline(features, returns, mask, 1e-10)
    fitted = (features * weights.unsqueeze(1)).sum(-1)
    torch.testing.assert_close(fitted[mask], returns[mask], atol=1e-4, rtol=0.0)


def test_the_baseline_keeps_observations_within_ten() -> None:
    features = baseline_features(torch.tensor([[20.0, -30.0]]), torch.tensor([0]))
    assert features[0, :4].tolist() == [10.0, -10.0, 100.0, 100.0]


def test_the_baseline_of_many_features_is_fitted_with_several_threads() -> None:
    """In a process of its own, since torch 2.13 hangs when it solves a batch of this size."""
    code = (
        "import torch; from rl_meta.baseline import fit_baseline; torch.set_num_threads(2);"
        "features, returns = torch.eye(200).double().expand(4, 200, 200), torch.ones(4, 200);"
        "weights = fit_baseline(features, returns, returns > 0, 1.0);"
        "assert bool((weights == 0.5).all())"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_steps_count_from_the_beginning_of_each_episode() -> None:
    start = torch.tensor([[1, 0], [0, 1], [1, 0], [0, 0]], dtype=torch.bool)
    assert episode_steps(start).tolist() == [[0, 0], [1, 0], [0, 1], [1, 2]]
