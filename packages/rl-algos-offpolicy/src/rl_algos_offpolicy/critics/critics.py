"""Action-value functions and their losses.

Several critics of one shape are one pipeline of exchangeable parts:

    observation ── encoder ─┐
                            ├─ torso ── recurrent core ── head ── Q, of each of C critics
    real action ── encoder ─┘

Only the encoder of observations and the head are always there. Parts of the project's own are
ensembles, which compute all critics by batched products; the user's run one critic after the other.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_algos_offpolicy.critics.distributional import ReturnDistribution
from rl_algos_offpolicy.critics.noisy import NoisyEnsembleMLP, draw_weight_noise
from rl_algos_offpolicy.recurrent import NetworkInputs, RecurrentInputs
from rl_core.batch import ReplayBatch
from rl_core.gradients import HyperParameters, masked_mean
from rl_core.nn.mlp import EnsembleMLP, Members, draw_dropout
from rl_core.nn.recurrent import RecurrentNet
from rl_core.nn.torso import NormalizingEncoder, feature_size, normalizes
from rl_core.returns import n_step_target
from rl_core.types import Observation


class Critics(nn.Module):
    """Q of an observation and a real action, or of an observation and every discrete action.

    Critics are independent but for a shared encoder: what it has to learn, such as convolutions, is
    computed once for all and learns from all critics' losses. Each critic has a recurrent state of
    its own; those of all make one row.

    Args:
        encoders: of observations, with ``out_features``: one per critic, or one that all share.
        head: from features to Q of the C critics, or to their advantages where they duel.
        value_stream: V of dueling critics (Wang et al. 2016, https://arxiv.org/abs/1511.06581),
            for discrete actions; None without.
        torso: layers between encoders and head: an ensemble, or one module per critic. None where
            the head has all layers.
        core: a recurrent network of C members after the torso, which has to be there then.
        takes_action: a real action is an input.
        action_encoders: of real actions, one per critic. Empty where an action goes in as it is.
        returns: what the head knows of the return of an action; None for its expectation.

    Attributes:
        is_recurrent: whether there is a recurrent core.
        num_critics: C.
        noise_size: K, how many numbers one critic's noisy weights or dropout take; 0 without.
    """

    state_name = "critics"

    def __init__(
        self,
        encoders: Sequence[nn.Module],
        head: EnsembleMLP | NoisyEnsembleMLP,
        value_stream: EnsembleMLP | NoisyEnsembleMLP | None = None,
        *,
        torso: EnsembleMLP | nn.ModuleList | None = None,
        core: RecurrentNet | None = None,
        takes_action: bool = False,
        action_encoders: Sequence[nn.Module] = (),
        returns: ReturnDistribution | None = None,
    ) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)
        self.action_encoders = nn.ModuleList(action_encoders)
        self.torso = torso
        self.core = core
        self.head = head
        self.value_stream = value_stream
        self.returns = returns
        self.is_recurrent = core is not None
        self.num_critics = head.num_members
        self.noise_size = sum(p.noise_size for p in (head, value_stream) if p is not None)
        self._takes_action = takes_action
        self._feature_size = feature_size(self.encoders[0])
        # Otherwise all critics are given the same features, which are not copied for each.
        self._is_per_critic = torso is not None or len(encoders) > 1 or len(action_encoders) > 0

    @property
    def state_size(self) -> int:
        """Numbers per environment in the recurrent states of all critics; 0 without a core."""
        return 0 if self.core is None else self.num_critics * self.core.state_size

    def forward(
        self,
        inputs: NetworkInputs,
        action: Tensor | None = None,
        noise: Tensor | None = None,
        members: Members = None,
    ) -> Tensor:
        """Return expected returns of given actions `(C, *batch)`, or of all n, `(C, *batch, n)`.

        Args:
            inputs: with any batch axes.
            action: shape `(*batch, ...)`; None evaluates all discrete actions.
            noise: see `outputs`.
            members: see `outputs`.
        """
        values = self.expected(self.outputs(inputs, action, noise, members))
        if action is None or self._takes_action:
            return values
        return of_action(values, action)

    def outputs(
        self,
        inputs: NetworkInputs,
        action: Tensor | None = None,
        noise: Tensor | None = None,
        members: Members = None,
    ) -> Tensor:
        """Return what is learned: expected returns, or the numbers of their distributions.

        Args:
            inputs: with any batch axes.
            action: shape `(*batch, A)`, real; discrete actions are all evaluated.
            noise: of noisy layers, shape `(C, K)`, or `(*batch, C, K)` for other weights in each
                row; None takes the mean weights. Of dropout, shape `(*batch, C, K)`; None drops
                nothing.
            members: which critics are asked, C of them where the shapes say C; None asks all. Not
                for noisy layers.

        Returns:
            Shape `(C, *batch)`, or `(C, *batch, n)` for all n discrete actions, with one more axis
            at the end where returns have a distribution.
        """
        if not isinstance(inputs, RecurrentInputs):
            features = self._torso_features(self.encode(inputs), action)
            return self._head_outputs(features, noise, members)
        assert self.core is not None
        features = self._torso_features(inputs.features, action).movedim(0, -3)
        features, _ = self.core.step(features, self._state_of_each(inputs.state))
        return self._head_outputs(features.movedim(-3, 0), noise, members)

    def expected(self, outputs: Tensor) -> Tensor:
        """Return the expected returns of `outputs`, for all or for given actions."""
        return outputs if self.returns is None else self.returns.expected(outputs)

    def encode(self, observation: Observation) -> Tensor:
        """Compute the observation's features, side by side where each critic has its own."""
        features = [encoder(observation) for encoder in self.encoders]
        return features[0] if len(features) == 1 else torch.cat(features, -1)

    def step(
        self, observation: Observation, state: Tensor, episode_start: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Evaluate all discrete actions, advancing the recurrent states.

        Args:
            observation: with batch axes `(N,)`, or `(T, N)`.
            state: shape `(N, S)`.
            episode_start: shape of the batch axes, bool: zero the state before these rows.

        Returns:
            Values `(C, *batch, n)`, and the state after each step, `(*batch, S)`.
        """
        features, states = self._run_core(self.encode(observation), None, state, episode_start)
        return self.expected(self._head_outputs(features)), states

    def advance(
        self, features: Tensor, action: Tensor, state: Tensor, episode_start: Tensor | None
    ) -> Tensor:
        """Return the recurrent states after each step, `(*batch, S)`.

        Args:
            features: shape `(N, F)` or `(T, N, F)`, of `encode`.
            action: shape of the batch axes, and that of a real action; discrete ones are not
                looked at.
            state: shape `(N, S)`, before the first step.
            episode_start: shape of the batch axes, bool: zero the state before these steps; None
                zeroes none.
        """
        return self._run_core(features, action, state, episode_start)[1]

    def draw_noise(self, batch_shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw the noise of noisy layers, or the factors of dropout, `(*batch_shape, C, K)`."""
        shape = (*batch_shape, self.num_critics, self.noise_size)
        if isinstance(self.head, NoisyEnsembleMLP):
            return draw_weight_noise(shape, generator)
        return draw_dropout(shape, self.head.dropout, generator)

    def update_normalization(self, observation: Observation, mask: Tensor | None = None) -> None:
        """Take observations into the encoders' running statistics, where they have any."""
        for encoder in self.encoders:
            if isinstance(encoder, NormalizingEncoder):
                encoder.update_normalization(observation, mask)

    @property
    def normalizes(self) -> bool:
        """Whether the encoders have running statistics."""
        return any(normalizes(encoder) for encoder in self.encoders)

    def _torso_features(self, features: Tensor, action: Tensor | None) -> Tensor:
        """Return what goes into core or head: `(*batch, H)` for all critics, or `(C, *batch, H)`.

        Args:
            features: shape `(*batch, F)`, of `encode`.
            action: shape `(*batch, A)`; not looked at where it is not an input.
        """
        if not self._takes_action:
            action = None
        if not self._is_per_critic:
            return features if action is None else torch.cat([features, action], -1)
        parts = [_split(features, self._feature_size).movedim(-2, 0)]  # (C or 1, *batch, F)
        if action is not None:
            own = [encoder(action) for encoder in self.action_encoders]
            parts.append(torch.stack(own) if own else action.unsqueeze(0))
        x = torch.cat([part.expand(self.num_critics, *part.shape[1:]) for part in parts], -1)
        if isinstance(self.torso, nn.ModuleList):
            return torch.stack([layers(own) for layers, own in zip(self.torso, x, strict=True)])
        return x if self.torso is None else self.torso(x, is_per_member=True)

    def _run_core(
        self, features: Tensor, action: Tensor | None, state: Tensor, episode_start: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the recurrent core's outputs `(C, *batch, H)` and states `(*batch, S)`."""
        assert self.core is not None
        inputs = self._torso_features(features, action).movedim(0, -3)
        outputs, states = self.core(inputs, self._state_of_each(state), episode_start)
        return outputs.movedim(-3, 0), states.transpose(-3, -2).flatten(-2)

    def _state_of_each(self, state: Tensor) -> Tensor:
        """Give each critic its own state, `(*T, C, N, S / C)`."""
        return _split(state, state.shape[-1] // self.num_critics).transpose(-3, -2)

    def _head_outputs(
        self, features: Tensor, noise: Tensor | None = None, members: Members = None
    ) -> Tensor:
        """Return `outputs` of what `_torso_features` or `_run_core` returned."""
        head_noise, value_noise = None, None
        if noise is not None:
            head_noise, value_noise = noise.tensor_split([self.head.noise_size], -1)
        options: dict[str, object] = {}
        if self._is_per_critic:
            options = {"is_per_member": True}
        elif members is not None:
            options = {"members": members}
        values: Tensor = self.head(features, head_noise, **options)
        axis = -1  # of actions
        if self.returns is not None:
            axis = -2
            values = values.reshape(*values.shape[:-1], -1, self.returns.num_outputs)
        if self.value_stream is not None:
            state_value = self.value_stream(features, value_noise, **options)
            if self.returns is not None:
                state_value = state_value.unsqueeze(-2)
            # Wang et al. 2016, Eq. (9): Q = V + A - mean of A over the actions
            values = state_value + values - values.mean(axis, keepdim=True)
        if self._is_per_critic and members is not None:
            values = values[members]
        return values.squeeze(axis) if self._takes_action else values


def of_action(outputs: Tensor, action: Tensor) -> Tensor:
    """Pick critics' outputs for given discrete actions.

    Args:
        outputs: shape `(C, *batch, n)`, with any axes after it.
        action: shape `(*batch)`, int.

    Returns:
        The same without the axis of actions.
    """
    dim = 1 + action.dim()
    index = action.reshape(1, *action.shape, *[1] * (outputs.dim() - dim))
    picked = outputs.gather(dim, index.expand(*outputs.shape[:dim], 1, *outputs.shape[dim + 1 :]))
    return picked.squeeze(dim)


def bootstrapped_target(batch: ReplayBatch, next_value: Tensor, hyper: HyperParameters) -> Tensor:
    r"""Return $y = \sum_{k<m} \gamma^k r_k + \gamma^m (1 - d) V(s_m)$, shape `(N,)`.

    Args:
        batch: with the rewards r of m steps, and whether they terminated, d.
        next_value: V, shape `(N,)`, of what follows.
        hyper: with ``gamma``, and what `scaled_reward` needs.
    """
    reward = scaled_reward(batch, hyper)
    return n_step_target(reward, batch.num_steps, batch.terminated, next_value, hyper["gamma"])


def scaled_reward(batch: ReplayBatch, hyper: HyperParameters) -> Tensor:
    """Return the batch's rewards as they are learned from, `(N, n)`: scaled, and then clipped.

    Args:
        batch: with the rewards.
        hyper: with ``reward_scale`` and, where rewards are clipped, ``clip_reward``.
    """
    reward = batch.reward * hyper["reward_scale"]
    if "clip_reward" not in hyper:
        return reward
    bound = hyper["clip_reward"]
    return reward.clamp(-bound, bound)


def weighted_mean(values: Tensor, batch: ReplayBatch) -> Tensor:
    """Average per-sample values by importance, over the samples that count.

    Args:
        values: shape `(N,)`.
        batch: whose weights and mask are used.

    Returns:
        0-dim.
    """
    return masked_mean(values * batch.weight, batch.mask)


def squared_error_loss(values: Tensor, target: Tensor, batch: ReplayBatch) -> Tensor:
    """Sum the critics' mean squared errors.

    Args:
        values: shape `(C, N)`, of each critic.
        target: shape `(N,)`.
        batch: whose weights and mask are used.

    Returns:
        0-dim.
    """
    return weighted_mean((values - target).square().sum(0), batch)


def absolute_error(values: Tensor, target: Tensor) -> Tensor:
    """Average the critics' absolute errors per sample, for priorities.

    Args:
        values: shape `(C, N)`.
        target: shape `(N,)`.

    Returns:
        Shape `(N,)`.
    """
    return (values - target).abs().mean(0)


def _split(row: Tensor, width: int) -> Tensor:
    """Cut the last axis into pieces of a width, `(*batch, pieces, width)`."""
    return row.reshape(*row.shape[:-1], -1, width)
