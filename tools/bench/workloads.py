"""The workloads of the speed benchmark."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

SYSTEMS: Mapping[str, str] = {
    "ours": "ours, compiled",
    "ours-eager": "ours, uncompiled",
    "sb3": "Stable-Baselines3",
    "sbx": "SBX (JAX)",
}
"""What is measured, in the order of a round; a title for each."""

PRODUCTS = "products"
"""What a round has beside the systems: the machine's matrix products."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PPOSettings:
    """Hyper-parameters of PPO, the same for every system.

    Attributes:
        num_envs: environments stepping together.
        num_steps: rows per rollout.
        minibatch_size: samples per minibatch.
        num_epochs: passes over each rollout.
        hidden_sizes: widths of the tanh layers of policy and value function, one network each.
        image_net: read images by one NatureCNN for both, behind which these layers come.
        lstm_size: units of an LSTM in each of both, behind these layers in ours and before them in
            the peers'; None leaves it out.
        learning_rate: of Adam.
        gamma: discount.
        gae_lambda: of the advantages.
        clip_range: of the ratio.
        value_coef: factor of the value function's mean squared error.
        entropy_coef: factor of the entropy.
        max_grad_norm: bound of the gradient's norm.
    """

    num_envs: int
    num_steps: int
    minibatch_size: int
    num_epochs: int
    hidden_sizes: tuple[int, ...] = (64, 64)
    image_net: bool = False
    lstm_size: int | None = None
    learning_rate: float = 3e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    value_coef: float = 0.5
    entropy_coef: float = 0.0
    max_grad_norm: float = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class TRPOSettings:
    """Hyper-parameters of TRPO, the same for every system: the defaults of sb3-contrib.

    Attributes:
        num_envs: environments stepping together.
        num_steps: rows per rollout.
        minibatch_size: samples per minibatch of the value function.
        num_epochs: its passes over each rollout.
        hidden_sizes: widths of the tanh layers of policy and value function, one network each.
        learning_rate: of the value function's Adam.
        gamma: discount.
        gae_lambda: of the advantages.
        max_kl: bound of the divergence.
        cg_steps: iterations of the conjugate gradients.
        cg_damping: of the Hessian.
        num_backtracks: steps that the line search tries.
        backtrack_ratio: by which each is shorter.
    """

    num_envs: int = 1
    num_steps: int = 2048
    minibatch_size: int = 128
    num_epochs: int = 10
    hidden_sizes: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    gamma: float = 0.99
    gae_lambda: float = 0.95
    max_kl: float = 0.01
    cg_steps: int = 15
    cg_damping: float = 0.1
    num_backtracks: int = 10
    backtrack_ratio: float = 0.8


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplaySettings:
    """Hyper-parameters of an algorithm that learns from replay, the same for every system.

    One environment, and gradient steps after each of its steps.

    Attributes:
        algorithm: ``dqn``, ``td3``, ``sac`` or ``droq``, each with its paper's other options.
        hidden_sizes: widths of the ReLU layers of every network.
        minibatch_size: samples per gradient step.
        learning_rate: of Adam, for every network.
        buffer_size: transitions kept.
        learning_starts: transitions before the first gradient step.
        gamma: discount.
        tau: how far soft targets move.
        target_update_every: gradient steps between copies of DQN's target.
        gradient_steps: after each step of the environment; DroQ's policy moves with the last.
        critic_dropout: of DroQ's critics, whose hidden layers are normalized.
    """

    algorithm: Literal["dqn", "td3", "sac", "droq"]
    hidden_sizes: tuple[int, ...]
    minibatch_size: int
    learning_rate: float = 3e-4
    buffer_size: int = 100_000
    learning_starts: int = 1000
    gamma: float = 0.99
    tau: float = 0.005
    target_update_every: int = 500
    gradient_steps: int = 1
    critic_dropout: float = 0.0


Settings: TypeAlias = PPOSettings | TRPOSettings | ReplaySettings
"""Any algorithm's hyper-parameters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Something whose speed is compared.

    Attributes:
        env: Gymnasium id.
        settings: hyper-parameters, whose type names the algorithm.
        title: for the table.
        systems: which of `SYSTEMS` can do it.
        unit: of the rate.
        threads: what systems are given unless the command line says otherwise; small networks are
            fastest with one, on every side.
        warm_up_marks: updates before the measured span.
        vectorization: of our environments; the peers have their `DummyVecEnv`, or their
            `SubprocVecEnv` for images.
    """

    env: str
    settings: Settings
    title: str
    systems: tuple[str, ...] = tuple(SYSTEMS)
    unit: str = "steps/s"
    threads: int = 1
    warm_up_marks: int = 3
    vectorization: Literal["auto", "envpool"] = "auto"

    @property
    def has_product_limit(self) -> bool:
        """Whether matrix products limit it: with replay, and with images."""
        settings = self.settings
        return isinstance(settings, ReplaySettings) or (
            isinstance(settings, PPOSettings) and settings.image_net
        )


WORKLOADS: Mapping[str, Workload] = {
    "ppo-cartpole": Workload(
        env="CartPole-v1",
        settings=PPOSettings(num_envs=8, num_steps=128, minibatch_size=256, num_epochs=4),
        title="PPO `CartPole-v1`, 8 envs, 128 steps, batch 256, 4 epochs, 64x64 tanh",
        warm_up_marks=8,
    ),
    "ppo-cartpole-many": Workload(
        env="CartPole-v1",
        settings=PPOSettings(num_envs=2048, num_steps=32, minibatch_size=16_384, num_epochs=4),
        title="PPO `CartPole-v1`, 2048 envs, 32 steps, batch 16384, 4 epochs, 64x64 tanh",
        systems=("ours", "ours-eager", "sb3"),
        warm_up_marks=2,
    ),
    "ppo-halfcheetah": Workload(
        env="HalfCheetah-v5",
        settings=PPOSettings(num_envs=1, num_steps=2048, minibatch_size=64, num_epochs=10),
        title="PPO `HalfCheetah-v5`, 1 env, 2048 steps, batch 64, 10 epochs, 64x64 tanh",
    ),
    "ppo-pong": Workload(
        env="ALE/Pong-v5",
        settings=PPOSettings(
            num_envs=8,
            num_steps=128,
            minibatch_size=256,
            num_epochs=4,
            hidden_sizes=(),
            image_net=True,
            learning_rate=2.5e-4,
            clip_range=0.1,
            entropy_coef=0.01,
        ),
        title="PPO `ALE/Pong-v5`, 8 envs of EnvPool beside SB3's `SubprocVecEnv`, 128 steps, batch "
        "256, 4 epochs, NatureCNN",
        systems=("ours", "ours-eager", "sb3"),
        threads=2,
        vectorization="envpool",
    ),
    "recurrent-ppo-cartpole": Workload(
        env="CartPole-v1",
        settings=PPOSettings(
            num_envs=8, num_steps=128, minibatch_size=256, num_epochs=4, lstm_size=256
        ),
        title="PPO `CartPole-v1`, LSTM of 256, 8 envs, 128 steps, batch 256, 4 epochs, 64x64 tanh, "
        "beside sb3-contrib",
        systems=("ours", "ours-eager", "sb3"),
    ),
    "trpo-halfcheetah": Workload(
        env="HalfCheetah-v5",
        settings=TRPOSettings(),
        title="TRPO `HalfCheetah-v5`, 1 env, 2048 steps, 15 products, batch 128, 10 epochs, 64x64 "
        "tanh, beside sb3-contrib",
        systems=("ours", "ours-eager", "sb3"),
    ),
    "dqn-cartpole": Workload(
        env="CartPole-v1",
        settings=ReplaySettings(algorithm="dqn", hidden_sizes=(120, 84), minibatch_size=128),
        title="DQN `CartPole-v1`, 1 env, batch 128, one update a step, 120x84",
        warm_up_marks=300,
    ),
    "td3-halfcheetah": Workload(
        env="HalfCheetah-v5",
        settings=ReplaySettings(algorithm="td3", hidden_sizes=(256, 256), minibatch_size=256),
        title="TD3 `HalfCheetah-v5`, 1 env, batch 256, one update a step, delay 2, 256x256",
        threads=2,
        warm_up_marks=100,
    ),
    "sac-halfcheetah": Workload(
        env="HalfCheetah-v5",
        settings=ReplaySettings(algorithm="sac", hidden_sizes=(256, 256), minibatch_size=256),
        title="SAC `HalfCheetah-v5`, 1 env, batch 256, one update a step, 256x256",
        threads=2,
        warm_up_marks=100,
    ),
    "droq-hopper": Workload(
        env="Hopper-v5",
        settings=ReplaySettings(
            algorithm="droq",
            hidden_sizes=(256, 256),
            minibatch_size=256,
            gradient_steps=20,
            critic_dropout=0.01,
        ),
        title="DroQ `Hopper-v5`, 1 env, batch 256, 20 updates a step, dropout 0.01, 256x256",
        systems=("ours", "ours-eager", "sbx"),
        threads=2,
        warm_up_marks=5,
    ),
}
"""By the name that the command line takes."""
