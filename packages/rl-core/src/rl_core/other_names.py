"""What options and algorithms of other libraries are called here, for suggestions in errors."""

from collections.abc import Mapping

_THEIRS: Mapping[str, str] = {
    "checkpoint_every": "checkpoint_freq save_freq",
    "clip_range": "clip_coef eps_clip",
    "config": "hyperparams params",
    "critic_learning_rate": "q_lr",
    "device": "cuda",
    "dqn": "ddqn double-dqn qr-dqn qrdqn",
    "entropy_coef": "ent_coef entropy_coefficient",
    "envs": "environments",
    "epsilon": "exploration_fraction",
    "gae_lambda": "lambda",
    "gamma": "discount_factor gamma_discount",
    "hidden_sizes": "net_arch policy_kwargs",
    "initial_temperature": "alpha ent_coef",
    "learn_temperature": "autotune",
    "learning_rate": "lr",
    "loggers": "tensorboard_log track wandb",
    "max_kl": "target_kl",
    "minibatch_size": "batch_size mini_batch_size",
    "normalize_advantage": "norm_adv",
    "normalize_observations": "norm_obs normalize",
    "num_envs": "n_env n_envs",
    "num_epochs": "n_epochs update_epochs",
    "num_minibatches": "gradient_steps n_minibatches nminibatches num_mini_batch num_minibatch",
    "num_steps": "n_steps nsteps rollout_length step_per_collect",
    "n_step": "n_steps nsteps",
    "num_test_episodes": "n_eval_episodes",
    "policy_delay": "policy_frequency",
    "policy_learning_rate": "learning_rate lr policy_lr",
    "ppo": "maskable-ppo maskableppo ppo-lstm ppo_lstm recurrent-ppo recurrentppo",
    "progress": "verbose",
    "run_dir": "log_dir log_folder save_dir",
    "scale_rewards": "norm_reward",
    "size": "buffer_size memory_size",
    "target_update_every": "target_update_freq target_update_interval",
    "test_every": "eval_freq",
    "total_steps": "max_steps n n_timesteps num_timesteps timesteps total_timesteps",
    "episodes": "n",
    "update_after": "learning_starts",
    "update_every": "step_per_collect train_freq train_frequency",
    "use_clipped_value_loss": "clip_range_vf clip_vloss",
    "value_loss_coef": "vf_coef",
}
"""By our name: those that Stable-Baselines3, CleanRL or Tianshou use; likelier meanings first."""

OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    other: tuple(ours for ours, names in _THEIRS.items() if other in names.split())
    for other in " ".join(_THEIRS.values()).split()
}
"""By a name in another library: ours, the likeliest first."""
