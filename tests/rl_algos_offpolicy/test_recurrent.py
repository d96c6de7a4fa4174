"""Recurrent networks along sequences, against stepping them one row at a time."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_algos_offpolicy import (
    DDPG,
    DQN,
    SAC,
    TD3,
    DQNConfig,
    OffPolicyActor,
    OffPolicyActorConfig,
    SACConfig,
)
from rl_algos_offpolicy.actor import next_obs_inputs, obs_and_next_obs_inputs, obs_inputs
from rl_algos_offpolicy.recurrent import NetworkInputs, RecurrentInputs
from rl_core.algorithm import AnyAlgorithm
from rl_core.batch import ReplayBatch, SequenceStart
from rl_core.config import Linear
from rl_core.errors import ConfigError
from rl_core.types import State
from rl_testing.rollouts import make_replay_batch

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = spaces.Box(-2.0, 2.0, (2,), np.float32)
CATEGORIES = spaces.Discrete(3)
W, T, N_STEP, NUM_ENVS = 3, 4, 2, 5


def _actor(space: spaces.Space[object], **options: object) -> OffPolicyActor:
    torch.manual_seed(0)
    config = OffPolicyActorConfig(
        hidden_sizes=(8,), activation="tanh", recurrent_net="gru", recurrent_hidden_size=4
    )
    return OffPolicyActor(VECTOR, space, replace(config, **options))  # type: ignore[arg-type]


def _sac() -> SAC:
    return SAC(_actor(BOX))


def _discrete_sac() -> SAC:
    return SAC(_actor(CATEGORIES, recurrent_net="lstm"))


def _td3() -> TD3:
    return TD3(_actor(BOX, policy="deterministic", recurrent_net="lstm", recurrent_layers=2))


def _ddpg() -> DDPG:
    return DDPG(_actor(BOX, policy="deterministic", num_critics=1))


def _dqn() -> DQN:
    return DQN(_actor(CATEGORIES, policy="greedy", dueling=True))


def _categorical_dqn() -> DQN:
    options = {"dueling": True, "distribution": "categorical", "num_atoms": 5}
    return DQN(_actor(CATEGORIES, policy="greedy", **options))


ALGORITHMS = pytest.mark.parametrize(
    "make", [_sac, _discrete_sac, _td3, _ddpg, _dqn, _categorical_dqn]
)
Maker = Callable[[], Any]


class _Run:
    """An algorithm that acted for a while, and the rows from then on as a batch."""

    def __init__(self, algorithm: AnyAlgorithm, *, is_random: bool = False) -> None:
        num_rows = W + T + N_STEP
        generator = torch.Generator().manual_seed(1)
        self.observation = torch.randn(num_rows, NUM_ENVS, 3, generator=generator)
        self.start = torch.zeros(num_rows, NUM_ENVS, dtype=torch.bool)
        self.start[0, 0] = self.start[1, 1] = self.start[W, 2] = True
        noise = algorithm.draw_noise((num_rows, NUM_ENVS), generator)
        sizes = algorithm.actor.state_sizes
        state: State = {
            name: torch.randn(NUM_ENVS, size, generator=generator) for name, size in sizes.items()
        }
        self.states, actions = [], []
        with torch.no_grad():
            for row in range(num_rows):
                kept = ~self.start[row].unsqueeze(-1)
                self.states.append({name: part * kept for name, part in state.items()})
                inputs = self.observation[row], state, noise[row]
                start = self.start[row]
                output = algorithm.acting_step(*inputs, episode_start=start)
                action, before, state = output.action, state, output.state
                if is_random:
                    actor, seen = algorithm.actor, self.observation[row]
                    action = actor.random_actions(NUM_ENVS, generator, seen)
                    state = actor.remember_action(seen, action, before, state, start)
                actions.append(action)
        self.action = torch.stack(actions)
        # What is stored of environment 3 begins in row 2, in the middle of its episode.
        begins = self.start[: W + 1].clone()
        begins[2, 3] = True
        rows = begins.int().argmax(0).tolist()
        first = {
            name: torch.stack([self.states[row][name][env] for env, row in enumerate(rows)])
            for name in state
        }
        num_steps = torch.randint(1, N_STEP + 1, (T, NUM_ENVS), generator=generator)
        self.batch = ReplayBatch(
            observation=self.observation[W : W + T],
            action=self.action[W : W + T],
            reward=torch.randn(T, NUM_ENVS, N_STEP, generator=generator),
            num_steps=num_steps,
            terminated=torch.rand(T, NUM_ENVS, generator=generator) < 0.3,
            next_observation=self.observation[W + T :],
            weight=torch.ones(T, NUM_ENVS),
            mask=torch.ones(T, NUM_ENVS),
            index=torch.zeros(NUM_ENVS, 2, dtype=torch.int64),
            start=SequenceStart(
                state=first,
                burn_in=self.observation[:W],
                action=self.action[: W + T + N_STEP - 1],
                episode_start=begins,
            ),
        )


@ALGORITHMS
@pytest.mark.parametrize("is_random", [False, True])
def test_states_along_a_sequence_are_those_of_acting(make: Maker, is_random: bool) -> None:
    algorithm = make()
    run = _Run(algorithm, is_random=is_random)
    networks = {"critics": algorithm.actor.critics, "policy": algorithm.actor.policy}
    for name in algorithm.actor.state_sizes:
        inputs = obs_inputs(networks[name], run.batch)
        assert isinstance(inputs, RecurrentInputs)
        for row in range(T):
            expected = run.states[W + row][name]
            torch.testing.assert_close(inputs.state[row], expected)
        after = next_obs_inputs(networks[name], run.batch)
        assert isinstance(after, RecurrentInputs)
        for row in range(T):
            for env in range(NUM_ENVS):
                later = W + row + int(run.batch.num_steps[row, env])
                torch.testing.assert_close(after.state[row, env], run.states[later][name][env])


@ALGORITHMS
def test_values_along_a_sequence_are_those_of_single_rows(make: Maker) -> None:
    algorithm = make()
    run, actor = _Run(algorithm), algorithm.actor
    values = actor.q_values(obs_inputs(actor.critics, run.batch), run.batch.action, {})
    assert values.shape == (actor.config.num_critics, T, NUM_ENVS)
    for row in range(T):
        alone = actor.q_values(run.observation[W + row], run.action[W + row], run.states[W + row])
        torch.testing.assert_close(values[:, row], alone)
    if actor.policy is not None:
        modes = actor.policy(obs_inputs(actor.policy, run.batch)).mode()
        none = torch.zeros(NUM_ENVS, dtype=torch.bool)
        for row in range(T):
            step = run.observation[W + row], run.states[W + row], none
            torch.testing.assert_close(modes[row], actor.distribution(*step)[0].mode())


@ALGORITHMS
def test_one_pass_over_a_sequence_finds_what_two_do(make: Maker) -> None:
    algorithm = make()
    actor, batch = algorithm.actor, _Run(algorithm).batch
    networks = [actor.critics] if actor.policy is None else [actor.critics, actor.policy]
    for network in networks:
        now, after = obs_and_next_obs_inputs(network, batch)
        expected_now, expected_after = obs_inputs(network, batch), next_obs_inputs(network, batch)
        for found, expected in ((now, expected_now), (after, expected_after)):
            assert isinstance(found, RecurrentInputs)
            assert isinstance(expected, RecurrentInputs)
            torch.testing.assert_close(found.features, expected.features)
            torch.testing.assert_close(found.state, expected.state)
        assert isinstance(after, RecurrentInputs)
        assert not after.state.requires_grad
        assert not after.features.requires_grad
        torch.testing.assert_close(_gradients(network, now), _gradients(network, expected_now))


def _gradients(network: nn.Module, inputs: NetworkInputs) -> tuple[Tensor, ...]:
    assert isinstance(inputs, RecurrentInputs)
    total = inputs.state.square().sum() + inputs.features.sum()
    parameters = list(network.parameters())
    return torch.autograd.grad(total, parameters, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("make", [_dqn, _categorical_dqn])
def test_the_network_that_learns_runs_over_a_sequence_once(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = make()
    batch = _Run(algorithm).batch
    network = algorithm.actor.critics
    lengths = []
    advance = network.advance

    def counted(features: Tensor, *others: object) -> Tensor:
        lengths.append(len(features))
        states: Tensor = advance(features, *others)
        return states

    monkeypatch.setattr(network, "advance", counted)
    noise = algorithm.draw_update_noise(batch)
    shared = algorithm.compute_loss(batch, noise)
    assert lengths == [W, T + N_STEP - 1]
    target = type(algorithm).target
    monkeypatch.setattr(algorithm, "target", lambda *known: target(algorithm, *known[:2]))
    apart = algorithm.compute_loss(batch, noise)
    assert lengths[2:] == 2 * [W, T + N_STEP - 1]
    torch.testing.assert_close(shared.loss, apart.loss)
    torch.testing.assert_close(shared.samples["td_error"], apart.samples["td_error"])


@pytest.mark.parametrize("of_parts", [DQN, SAC])
def test_observations_of_parts_are_encoded_alike(of_parts: type[DQN] | type[SAC]) -> None:
    """The same numbers in two entries give the same loss."""
    space, policy = (CATEGORIES, "greedy") if of_parts is DQN else (BOX, "stochastic")
    parts = spaces.Dict({name: spaces.Box(-1.0, 1.0, (n,)) for name, n in (("a", 1), ("b", 2))})
    whole = of_parts(_actor(space, policy=policy))
    torch.manual_seed(0)
    split = of_parts(OffPolicyActor(parts, space, whole.actor.config))
    for one, other in zip(split.actor.parameters(), whole.actor.parameters(), strict=True):
        assert torch.equal(one, other)

    def cut(observation: object) -> dict[str, Tensor]:
        assert isinstance(observation, Tensor)
        return {"a": observation[..., :1], "b": observation[..., 1:]}

    batch = _Run(whole).batch
    assert batch.start is not None
    in_parts = replace(
        batch,
        observation=cut(batch.observation),
        next_observation=cut(batch.next_observation),
        start=replace(batch.start, burn_in=cut(batch.start.burn_in)),
    )
    noise = whole.draw_update_noise(batch)
    losses = whole.compute_loss(batch, noise).loss, split.compute_loss(in_parts, noise).loss
    torch.testing.assert_close(*losses)


def test_target_networks_warm_up_by_themselves() -> None:
    algorithm = _dqn()
    run, critics = _Run(algorithm), algorithm.target_critics
    with torch.no_grad():
        for parameter in critics.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    assert run.batch.start is not None
    state = first = run.batch.start.state["critics"]
    begins, values = run.batch.start.episode_start, []
    for row in range(W + T + N_STEP):
        start = run.start[row]
        if row <= W:
            state = torch.where(begins[row].unsqueeze(-1), first, state)
        found, state = critics.step(run.observation[row], state, start)
        values.append(found)
    after = critics(next_obs_inputs(critics, run.batch))
    for row in range(T):
        for env in range(NUM_ENVS):
            later = W + row + int(run.batch.num_steps[row, env])
            torch.testing.assert_close(after[:, row, env], values[later][:, env])
    online = algorithm.actor.critics(next_obs_inputs(algorithm.actor.critics, run.batch))
    assert not torch.allclose(online, after)


def test_a_sequence_without_rows_before_it_begins_in_the_stored_state() -> None:
    algorithm = _sac()
    run, critics = _Run(algorithm), algorithm.actor.critics
    start = run.batch.start
    assert start is not None
    bare = SequenceStart(
        state=run.states[W],
        burn_in=run.observation[:0],
        action=run.action[W : W + T + N_STEP - 1],
        episode_start=run.start[W : W + 1],  # where one begins, its state is zero already
    )
    warmed, begun = (obs_inputs(critics, replace(run.batch, start=one)) for one in (start, bare))
    assert isinstance(warmed, RecurrentInputs)
    assert isinstance(begun, RecurrentInputs)
    torch.testing.assert_close(begun.state, warmed.state)


@ALGORITHMS
def test_nothing_is_learned_from_the_rows_before_a_sequence(make: Maker) -> None:
    algorithm = make()
    batch = _Run(algorithm).batch
    start = batch.start
    assert start is not None
    burn_in, inside = start.burn_in, batch.observation
    assert isinstance(burn_in, Tensor)
    assert isinstance(inside, Tensor)
    burn_in.requires_grad_()
    inside.requires_grad_()
    loss = algorithm.compute_loss(replace(batch, start=replace(start, burn_in=burn_in))).loss
    before, within = torch.autograd.grad(loss, [burn_in, inside], allow_unused=True)
    assert before is None
    assert within.abs().sum(-1).gt(0.0).all()


@ALGORITHMS
def test_gradients_flow_back_in_time(make: Maker) -> None:
    algorithm = make()
    batch = _Run(algorithm).batch
    inside = batch.observation
    assert isinstance(inside, Tensor)
    inside.requires_grad_()
    inputs = obs_inputs(algorithm.actor.critics, batch)
    last = algorithm.actor.q_values(inputs, batch.action, {})[:, -1].sum()
    (gradient,) = torch.autograd.grad(last, inside)
    assert gradient.abs().sum(-1).gt(0.0).all()


@pytest.mark.parametrize("make", [_sac, _discrete_sac, _td3, _ddpg])
def test_the_policys_loss_reaches_no_critic(make: Maker) -> None:
    algorithm = make()
    batch = _Run(algorithm).batch
    algorithm.policy_loss(batch, algorithm.draw_update_noise(batch)).loss.backward()
    assert any(p.grad is not None and p.grad.any() for p in algorithm.policy.parameters())
    critics = algorithm.actor.critics.parameters()
    assert not any(p.grad is not None and p.grad.any() for p in critics)


@ALGORITHMS
def test_padding_counts_for_nothing(make: Maker) -> None:
    algorithm = make()
    batch = _Run(algorithm).batch
    mask = batch.mask.clone()
    mask[2:, 0] = mask[3:, 1] = 0.0  # a short sequence ends, and what follows it is kept
    num_steps = torch.where(mask > 0.0, torch.ones_like(batch.num_steps), N_STEP)
    batch = replace(batch, mask=mask, num_steps=num_steps)

    def spoil(column: Tensor, is_late: int) -> Tensor:
        spoiled = column.clone()
        padded = torch.zeros(T, NUM_ENVS, dtype=torch.bool)
        padded[2 + is_late :, 0] = padded[3 + is_late :, 1] = True
        spoiled[padded] = 1 if column.dtype == torch.int64 else -0.7
        return spoiled

    assert isinstance(batch.observation, Tensor)
    other = replace(
        batch,
        observation=spoil(batch.observation, is_late=1),
        action=spoil(batch.action, is_late=0),
        reward=spoil(batch.reward, is_late=0),
    )
    noise = algorithm.draw_update_noise(batch)
    losses = [algorithm.compute_loss(one, noise) for one in (batch, other)]
    assert losses[0].loss.item() == losses[1].loss.item()
    counted = [loss.samples["td_error"][mask > 0.0] for loss in losses]
    assert losses[0].samples["td_error"].shape == (T, NUM_ENVS)
    assert torch.equal(*counted)
    everything = [
        algorithm.compute_loss(replace(one, mask=torch.ones_like(mask)), noise).loss
        for one in (batch, other)
    ]
    assert everything[0] != everything[1]


@pytest.mark.parametrize("make", [_sac, _discrete_sac])
def test_the_temperature_learns_from_no_padding(make: Maker) -> None:
    algorithm = make()
    with torch.no_grad():
        for parameter in algorithm.policy.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape))
    batch = _Run(algorithm).batch
    mask = batch.mask.clone()
    mask[1:, 1:] = 0.0
    batch = replace(batch, mask=mask, num_steps=torch.ones_like(batch.num_steps))
    assert isinstance(batch.observation, Tensor)
    spoilt = batch.observation.clone()
    spoilt[2:, 1:] = 3.0
    noise = algorithm.draw_update_noise(batch)
    gradients, metrics = [], []
    for observation in (batch.observation, spoilt):
        output = algorithm.compute_loss(replace(batch, observation=observation), noise)
        gradients.append(torch.autograd.grad(output.loss, algorithm.temperature.log)[0])
        metrics.append({name: part.detach().item() for name, part in output.metrics.items()})
    assert gradients[0].abs() > 0.0
    assert torch.equal(*gradients)
    assert metrics[0] == metrics[1]


def test_every_critic_has_a_state_that_advances_by_itself() -> None:
    algorithm = TD3(_actor(BOX, policy="deterministic", num_critics=3))
    run = _Run(algorithm)
    size = algorithm.actor.state_sizes["critics"]
    assert size == 3 * 4
    before, after = (run.states[row]["critics"].chunk(3, -1) for row in (W, W + 1))
    for critic in range(3):
        assert not torch.equal(after[critic], before[critic])
        assert not torch.equal(after[critic], after[critic - 1])
    # A critic's state is its own affair: another state of the second changes no other value.
    state = {name: part.clone() for name, part in run.states[W].items()}
    state["critics"][:, 4:8] += 1.0
    observation, action = run.observation[W], run.action[W]
    values = algorithm.actor.q_values(observation, action, run.states[W])
    moved = algorithm.actor.q_values(observation, action, state)
    assert [bool((moved[k] != values[k]).any()) for k in range(3)] == [False, True, False]


def test_critics_states_depend_on_the_actions_taken() -> None:
    algorithm = _td3()
    actor, start = algorithm.actor, torch.zeros(2, dtype=torch.bool)
    observation, state = torch.zeros(2, 3), actor.actor_initial_states(2)
    done = torch.tensor([[0.5, 0.5], [-0.5, 0.5]])
    after = actor.remember_action(observation, done, state, {}, start)["critics"]
    assert not torch.equal(after[0], after[1])


def test_an_episode_start_forgets_policy_and_critics() -> None:
    for make in (_sac, _td3, _dqn):
        algorithm = make()
        actor = algorithm.actor
        observation = torch.ones(2, 3)
        noise = algorithm.draw_noise((2,), torch.Generator().manual_seed(0))
        full = {name: torch.randn(2, size) for name, size in actor.state_sizes.items()}
        start = torch.tensor([True, False])
        one, other = (
            algorithm.acting_step(observation, state, noise, episode_start=start)
            for state in (full, actor.actor_initial_states(2))
        )
        for name in actor.state_sizes:
            torch.testing.assert_close(one.state[name][0], other.state[name][0])
            assert not torch.allclose(one.state[name][1], other.state[name][1])


def test_the_smallest_window_has_nothing_to_run_over() -> None:
    algorithm = _sac()
    batch = make_replay_batch(algorithm, seed=0, size=4, n=1, num_rows=1)
    assert algorithm.loss(batch, algorithm.draw_update_noise(batch)).loss.isfinite()


def test_noisy_networks_are_not_recurrent() -> None:
    with pytest.raises(ConfigError, match="noisy does not go with recurrent_net"):
        _actor(CATEGORIES, policy="greedy", noisy=True)


def test_recurrent_actors_and_storages_must_fit() -> None:
    recurrent = _dqn()
    plain = DQN(
        _actor(CATEGORIES, policy="greedy", recurrent_net="none", recurrent_hidden_size=None)
    )
    with pytest.raises(ConfigError, match=r"set storage\.sequences"):
        recurrent.gradient_step(make_replay_batch(plain, seed=0))
    with pytest.raises(ConfigError, match="the actor is not recurrent"):
        plain.gradient_step(make_replay_batch(recurrent, seed=0))


@pytest.mark.parametrize("smoothness", [0.1, Linear(0.0, 0.1)])
def test_smooth_actions_do_not_go_with_recurrent_actors(smoothness: float | Linear) -> None:
    with pytest.raises(ConfigError, match="do not go with recurrent actors"):
        SAC(_actor(BOX), SACConfig(temporal_smoothness=smoothness))


def test_dqn_hand_computed_with_a_recurrent_core() -> None:
    """One critic that counts: its state is a fixed function of the number of rows seen."""
    actor = _actor(
        CATEGORIES, policy="greedy", num_critics=1, hidden_sizes=(), recurrent_hidden_size=1
    )
    critics = actor.critics
    with torch.no_grad():
        for parameter in critics.parameters():
            nn.init.zeros_(parameter)
        assert critics.core is not None
        # An open update gate of sigmoid(0) = 1/2 and a candidate of tanh(∞) = 1: h ← (1 + h) / 2.
        gates = critics.core.input_layers[0].bias
        assert isinstance(gates, Tensor)
        gates[..., 2] = 50.0
        critics.head.weights[0][:, 0] = 1.0
    algorithm = DQN(actor, DQNConfig(gamma=0.5, loss="square", double=False))
    batch = ReplayBatch(
        observation=torch.zeros(2, 1, 3),
        action=torch.zeros(2, 1, dtype=torch.int64),
        reward=torch.tensor([[[1.0]], [[2.0]]]),
        num_steps=torch.ones(2, 1, dtype=torch.int64),
        terminated=torch.tensor([[False], [True]]),
        next_observation=torch.zeros(1, 1, 3),
        weight=torch.ones(2, 1),
        mask=torch.ones(2, 1),
        index=torch.zeros(1, 2, dtype=torch.int64),
        start=SequenceStart(
            state={"critics": torch.zeros(1, 1)},
            burn_in=torch.zeros(1, 1, 3),
            action=torch.zeros(3, 1, dtype=torch.int64),
            episode_start=torch.zeros(2, 1, dtype=torch.bool),
        ),
    )
    # After the rows 0, 1, 2 the state is 1/2, 3/4, 7/8: Q of the sequence's rows is 3/4 and 7/8.
    assert algorithm.target(batch, {}).flatten().tolist() == pytest.approx([1.0 + 0.5 * 7 / 8, 2.0])
    errors = (3 / 4 - (1.0 + 7 / 16), 7 / 8 - 2.0)
    expected = 0.5 * (errors[0] ** 2 + errors[1] ** 2) / 2
    output = algorithm.loss(batch, {})
    assert output.loss.item() == pytest.approx(expected)
    assert output.samples["td_error"].flatten().tolist() == pytest.approx([-e for e in errors])
