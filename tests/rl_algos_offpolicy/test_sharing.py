"""Which networks of an `OffPolicyActor` are one for all critics, and which each has for itself."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_algos_offpolicy import SAC, OffPolicyActor, OffPolicyActorConfig
from rl_core.nn.layers import LayerConfig
from rl_core.nn.torso import ObservationEncoder
from rl_testing.rollouts import make_replay_batch

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
BOX = spaces.Box(-2.0, 2.0, (2,), np.float32)
BODY = (LayerConfig("Linear", {"out_features": 5}),)


def _actor(space: spaces.Space[object], *, extractor: Any = None, **options: Any) -> OffPolicyActor:
    torch.manual_seed(0)
    config = OffPolicyActorConfig(hidden_sizes=(8,), num_critics=3, **options)
    return OffPolicyActor(space, BOX, config, observation_extractor=extractor)


def _encoders(actor: OffPolicyActor) -> list[nn.Module]:
    return list(actor.critics.encoders)


def _reached(actor: OffPolicyActor, critic: int, module: nn.Module) -> bool:
    """Whether the value of a critic depends on all parameters of a module."""
    space = actor.observation_space
    observation = (
        torch.rand(4, *space.shape) if space is VECTOR else torch.randint(255, (4, 36, 36, 1))
    )
    action = torch.rand(4, 2)
    state: dict[str, Tensor] = dict(actor.actor_initial_states(4))
    value = actor.q_values(observation, action, state)[critic].sum()
    gradients = torch.autograd.grad(value, list(module.parameters()), allow_unused=True)
    return all(gradient is not None and bool(gradient.any()) for gradient in gradients)


@pytest.mark.parametrize(
    ("space", "options"),
    [
        (IMAGE, {"image_features": 6}),
        (IMAGE, {"image_features": 6, "recurrent_net": "gru"}),
        (VECTOR, {"body": BODY}),
        (VECTOR, {"critic_body": BODY, "recurrent_net": "gru"}),
    ],
)
def test_critics_share_an_encoder_with_parameters_and_nothing_else(
    space: spaces.Space[object], options: dict[str, Any]
) -> None:
    actor = _actor(space, **options)
    (encoder,) = _encoders(actor)
    assert list(encoder.parameters())
    assert all(_reached(actor, critic, encoder) for critic in range(3))
    assert actor.policy is not None
    assert not any(_reached(actor, critic, actor.policy) for critic in range(3))
    # Their other parameters have a row for each critic, which no other one depends on.
    others = [p for name, p in actor.critics.named_parameters() if not name.startswith("encoder")]
    assert others
    assert all(len(parameter) == 3 for parameter in others)


def test_critics_of_vectors_share_no_parameters() -> None:
    for memory in ("none", "gru"):
        (encoder,) = _encoders(_actor(VECTOR, recurrent_net=memory))
        assert not list(encoder.parameters())


def test_encoders_that_are_given_as_what_makes_them_are_not_shared() -> None:
    actor = _actor(IMAGE, extractor=ObservationEncoder)
    encoders = _encoders(actor)
    assert len(encoders) == 3
    for k, encoder in enumerate(encoders):
        assert [_reached(actor, critic, encoder) for critic in range(3)] == [
            critic == k for critic in range(3)
        ]


def test_a_shared_encoder_learns_from_the_sum_of_all_critics_losses() -> None:
    actor = _actor(VECTOR, body=BODY)
    learner = SAC(actor)
    batch = make_replay_batch(learner, 1)
    noise = learner.draw_update_noise(batch)
    weight = next(_encoders(actor)[0].parameters())
    target = learner.target(batch, noise)
    expected = torch.zeros_like(weight)
    for critic in range(3):
        values = actor.q_values(batch.observation, batch.action, {})[critic]
        loss = 0.5 * ((values - target).square() * batch.weight).mean()
        expected += torch.autograd.grad(loss, [weight])[0]
    (gradient,) = torch.autograd.grad(learner.loss(batch, noise).loss, [weight])
    torch.testing.assert_close(gradient, expected)


def test_the_policys_loss_leaves_the_shared_encoder_alone() -> None:
    learner = SAC(_actor(VECTOR, body=BODY))
    batch = make_replay_batch(learner, 1)
    output = learner.compute_loss(batch)
    weight = next(_encoders(learner.actor)[0].parameters())
    before = copy.deepcopy(weight)
    gradients = torch.autograd.grad(output.metrics["loss/policy"], [weight], allow_unused=True)
    assert gradients[0] is None or not gradients[0].any()
    learner.gradient_step(batch)
    assert not torch.equal(weight, before)
