r"""PPO that explores by random network distillation, with a value function for each reward.

Source: Burda et al. 2018, https://arxiv.org/abs/1810.12894, sections 2.3 and 2.4.

(1) $A_t = c_E \hat A^E_t + c_I \hat A^I_t$, the advantages of both streams by one estimator

(2) $L = L^{PPO}(A) + \tfrac{c_1}{2} \mathbb{E}_t[(V^I_\theta(s_t) - V^{I,target}_t)^2] + L^\psi$,
    the intrinsic value clipped where the extrinsic one is

The extrinsic stream ends with episodes; the intrinsic one does not, and has a discount of its own.
$L^\psi$ is Eq. (2) of `rl_algos_onpolicy.rnd.rnd`.

Deviations from the paper: extrinsic rewards are not clipped, but scaled by the default recipe; the
sum is normalized as PPO does it. The predictor has an optimizer of its own, and its gradient no
bound: ``max_grad_norm`` is that of policy and value functions. With ``normalize_streams`` each
stream is normalized before they are added, whatever its scale. Where the extrinsic reward is
always the same this makes the noise of its value function twice as large as all that is new.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from rl_algos_onpolicy.actor import OnPolicyActor
from rl_algos_onpolicy.advantages import advantage_columns, normalized_advantage
from rl_algos_onpolicy.ppo import PPO, PPOConfig
from rl_algos_onpolicy.rnd.rnd import INTRINSIC_REWARD, RND, Novelty, RNDConfig
from rl_core.actor import Actor
from rl_core.algorithm import DefaultRecipe, EnvSpec, PolicyLossAddOn
from rl_core.algorithm.hyper import checked_config
from rl_core.batch import Rollout, RolloutBatch
from rl_core.config import ComponentSpec, ScheduledNonNegative
from rl_core.errors import ConfigError
from rl_core.gradients import LossOutput, Noise, ParameterGroup
from rl_core.returns import Steps, estimate, explained_variance, normalize

_VALUE, _TARGET = "intrinsic_value", "intrinsic_value_target"


@dataclass(frozen=True, kw_only=True, slots=True)
class RNDPPOConfig(PPOConfig):
    """Options of `RNDPPO`, besides those of `PPOConfig`.

    Attributes:
        extrinsic_coef: weight of the advantages by the environment's rewards (c_E).
        intrinsic_coef: weight of the advantages by intrinsic rewards (c_I).
        normalize_streams: give the advantages of each stream a mean of 0 and a standard deviation
            of 1 before they are added.
        rnd: networks and intrinsic rewards. Its running statistics follow what is seen even
            where ``learning_rate`` is 0, because the rewards are made of them.
    """

    extrinsic_coef: ScheduledNonNegative = 2.0
    intrinsic_coef: ScheduledNonNegative = 1.0
    normalize_streams: bool = False
    rnd: RNDConfig = field(default_factory=RNDConfig)

    def __post_init__(self) -> None:
        PPOConfig.__post_init__(self)
        if self.entropy_method == "max" and self.normalize_streams:
            raise ConfigError(
                "entropy_method='max' rewards entropy, which normalized streams would take out "
                "again; set normalize_streams=False, or use 'regularized'"
            )


class RNDPPO(PPO):
    """PPO with intrinsic rewards.

    Args:
        actor: one with an intrinsic value function, such as `OnPolicyActor` with
            ``intrinsic_value``.
        config: options.
        add_ons: extra terms for the policy loss.
        target: instead of the default network, see `Novelty`.
        predictor: instead of the default network.

    Raises:
        ConfigError: when the actor has no intrinsic value function, or an add-on is an ``RND``.
    """

    config_type = RNDPPOConfig
    config: RNDPPOConfig
    actor: OnPolicyActor

    def __init__(
        self,
        actor: Actor,
        config: RNDPPOConfig | None = None,
        *,
        add_ons: PolicyLossAddOn | Sequence[PolicyLossAddOn] = (),
        target: nn.Module | None = None,
        predictor: nn.Module | None = None,
    ) -> None:
        config = checked_config(self, config)
        given = tuple(add_ons) if isinstance(add_ons, Sequence) else (add_ons,)
        if any(isinstance(add_on, RND) for add_on in given):
            raise ConfigError(
                "RNDPPO has intrinsic rewards of its own; leave the add-on 'rnd' out, or take PPO "
                "with it"
            )
        # The rewards are a stream of their own here, and nothing is added to the extrinsic ones.
        self._rnd = RND(0.0, config.rnd, target=target, predictor=predictor)
        self._rnd.is_internal = True
        super().__init__(actor, config, add_ons=(*given, self._rnd))

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Take PPO's, with an intrinsic value function and scaled extrinsic rewards.

        Both value functions share the bound of the gradient's norm with the policy, so that large
        rewards would leave it no room to move.
        """
        recipe = PPO.default_recipe(env)
        actor = {**recipe.actor.kwargs, "intrinsic_value": True}
        return replace(
            recipe,
            actor=ComponentSpec("actor", recipe.actor.name, actor),
            trainer={**recipe.trainer, "scale_rewards": True},
        )

    @property
    def novelty(self) -> Novelty:
        """Target and predictor, with their statistics."""
        return self._rnd.novelty

    def resolve_config(self, config: PPOConfig) -> PPOConfig:
        """Refuse an actor without a second value function."""
        actor = self.actor
        if not isinstance(actor, OnPolicyActor) or not actor.config.intrinsic_value:
            raise ConfigError(
                "RNDPPO needs an OnPolicyActor with a second value function; set "
                "actor.intrinsic_value to true"
            )
        return config

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """Give the predictor an optimizer of its own, with the same learning rate."""
        predictor = ParameterGroup(
            name="predictor",
            modules=(f"add_ons.{len(self.add_ons) - 1}",),
            optimizer=self.config.optimizer,
        )
        return (predictor, self.actor_group())

    def prepare(self, rollout: Rollout) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Eq. (1), and the value targets of both streams."""
        columns, metrics = advantage_columns(
            self.actor,
            rollout,
            self.config,
            self.hyper,
            normalizes=False,
            keeps_policy=self.config.surrogate == "kl-penalty",
        )
        value, next_value = self.intrinsic_values(rollout)
        valid, never = rollout.valid, torch.zeros_like(rollout.terminated)
        # Rows that are not steps neither discount nor shorten what comes after them.
        intrinsic, target = estimate(
            Steps(rollout.extras[INTRINSIC_REWARD], value, next_value, never, never),
            torch.where(valid, self.config.rnd.gamma_intrinsic, 1.0),
            torch.where(valid, self.hyper["gae_lambda"], 1.0),
            advantage=self.config.advantage_estimator,
            value_target=self.config.value_target,
        )
        streams = (columns["advantage"], intrinsic)
        if self.config.normalize_streams:
            streams = (normalize(streams[0], valid), normalize(streams[1], valid))
        advantage = (  # Eq. (1)
            self.hyper["extrinsic_coef"] * streams[0] + self.hyper["intrinsic_coef"] * streams[1]
        )
        return (
            {
                **columns,
                "advantage": normalized_advantage(advantage, valid, self.config),
                _VALUE: value,
                _TARGET: target,
            },
            {
                **metrics,
                "value/intrinsic_explained_variance": explained_variance(value, target, valid),
            },
        )

    @torch.no_grad()
    def intrinsic_values(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Return intrinsic values of each step and of the one after it, each `(T, B)`.

        In rows that are not steps both are those of the next step. After the rollout's last step
        comes the observation that follows the rollout, whatever it is. Where that step ended its
        episode, or the last row only reset, it is seen from a new state, as the next step will be.
        """
        actor = self.actor
        value, after = actor.intrinsic_value(
            rollout.observation, rollout.state, rollout.episode_start
        )
        ended = rollout.terminated[-1] | rollout.truncated[-1] | ~rollout.valid[-1]
        state = {name: states[-1] for name, states in after.items()}
        last, _ = actor.intrinsic_value(rollout.next_observation, state, ended)
        values = torch.cat([value, last.unsqueeze(0)])
        end = torch.full_like(rollout.valid[:1], len(value), dtype=torch.int64)
        rows = torch.arange(len(value), device=value.device).unsqueeze(1)
        steps = torch.cat([torch.where(rollout.valid, rows, end), end])
        values = values.gather(0, steps.flip(0).cummin(0).values.flip(0))
        return values[:-1], values[1:]

    def loss(self, batch: RolloutBatch, noise: Noise) -> LossOutput:
        """Eq. (2); the add-on of `rnd` brings its last term, with those of other add-ons."""
        now = self.actor.evaluate_actions(
            batch.observation, batch.action, batch.state, batch.episode_start
        )
        assert now.intrinsic_value is not None
        output = self.loss_of(batch, now)
        intrinsic = self.value_term(
            now.intrinsic_value, batch.extras[_VALUE], batch.extras[_TARGET], batch.mask
        )
        return replace(
            output,
            loss=output.loss + self.hyper["value_loss_coef"] * intrinsic,
            metrics={**output.metrics, "loss/intrinsic_value": intrinsic},
        )
