import contextlib
import shlex
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from bench.peers import linear_schedule
from bench.plan import (
    PlanError,
    PlanRow,
    Run,
    load_plan,
    load_plans,
    options_digest,
    select_rows,
    select_runs,
)

PLANS = Path(__file__).resolve().parents[2] / "tools" / "bench" / "plans"

PLAN = """
[[row]]
algorithm = "ppo"
env = "CartPole-v1"
steps = 100_000
seeds = [3, 4]
target = 475
[row.ours.storage]
num_steps = 32
[row.sb3]
n_steps = 32

[[row]]
algorithm = "vpg"
env = "Acrobot-v1"
steps = 1000
seeds = [0]
target = -95.5
[row.ours]
"""

SAME = {
    ("env", "num_envs"): "n_envs",
    ("storage", "num_steps"): "n_steps",
    ("algorithm", "learning_rate"): "learning_rate",
    ("algorithm", "gamma"): "gamma",
    ("algorithm", "gae_lambda"): "gae_lambda",
    ("algorithm", "num_epochs"): "n_epochs",
    ("algorithm", "minibatch_size"): "batch_size",
    ("algorithm", "clip_range"): "clip_range",
    ("algorithm", "entropy_coef"): "ent_coef",
    ("algorithm", "max_grad_norm"): "max_grad_norm",
    ("algorithm", "policy_learning_rate"): "learning_rate",
    ("algorithm", "value_learning_rate"): "learning_rate",
    ("algorithm", "critic_learning_rate"): "learning_rate",
    ("algorithm", "temperature_learning_rate"): "learning_rate",
    ("algorithm", "update_after"): "learning_starts",
    ("algorithm", "tau"): "tau",
    ("algorithm", "start_steps"): "learning_starts",
    ("algorithm", "policy_delay"): "policy_delay",
    ("algorithm", "reward_scale"): "reward_scale",
    ("storage", "size"): "buffer_size",
    ("storage", "n_step"): "n_steps",
}

SAME_TRPO = {
    ("algorithm", "max_kl"): "target_kl",
    ("algorithm", "cg_steps"): "cg_max_steps",
    ("algorithm", "cg_damping"): "cg_damping",
    ("algorithm", "num_backtracks"): "line_search_max_iter",
    ("algorithm", "value_learning_rate"): "learning_rate",
    ("algorithm", "num_epochs"): "n_critic_updates",
}
PER_DIMENSION = {"target_kl", "cg_damping"}
"""What sb3-contrib takes for a divergence that is averaged over the dimensions of real actions."""

NETWORK = {
    "hidden_sizes": "net_arch",
    "activation": "activation_fn",
    "critic_dropout": "dropout_rate",
    "critic_layer_norm": "layer_norm",
}

TRANSLATED = {"normalize", "policy_kwargs", "vf_coef", "gradient_steps", "target_update_interval"}
TRANSLATED |= {
    "library",
    "noise_std",
    "exploration_fraction",
    "exploration_final_eps",
    "train_freq",
    "hindsight",
    "name",
    "policy",
    "mask_velocity",
    "vectorizer",
}
"""What `check_same` compares in other ways, and how often targets move, which is counted in steps
of the environment there and in gradient steps here."""


def write(directory: Path, text: str) -> Path:
    path = directory / "plan.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_plan_gives_each_seed_with_all_systems_in_turn(tmp_path: Path) -> None:
    rows = load_plan(write(tmp_path, PLAN))
    runs = select_runs(rows, ("ours", "sb3"))
    assert [(run.algorithm, run.seed, run.system) for run in runs] == [
        ("ppo", 3, "ours"),
        ("ppo", 3, "sb3"),
        ("ppo", 4, "ours"),
        ("ppo", 4, "sb3"),
        ("vpg", 0, "ours"),
    ]
    assert runs[0].options == {"storage": {"num_steps": 32}}
    assert runs[1].options == {"n_steps": 32}
    assert rows[1].target == -95.5


@pytest.mark.parametrize(("pattern", "count"), [("ppo/CartPole", 4), ("acrobot", 1), ("*/*-v1", 5)])
def test_a_pattern_chooses_rows(tmp_path: Path, pattern: str, count: int) -> None:
    rows = load_plan(write(tmp_path, PLAN))
    assert len(select_runs(select_rows(rows, pattern), ("ours", "sb3"))) == count


NOTED = """
[[row]]
algorithm = "dqn"
env = "LunarLander-v3"
steps = 1000
seeds = [0]
target = 200
[row.ours]

[[row]]
algorithm = "dqn"
env = "LunarLander-v3"
note = "double, prioritised"
steps = 1000
seeds = [0]
target = 200
[row.ours]
"""


@pytest.mark.parametrize(
    ("pattern", "notes"),
    [
        ("dqn/LunarLander-v3", [""]),
        ("DQN/lunarlander-v3 double, prioritised", ["double, prioritised"]),
        ("dqn/LunarLander-v3 double", ["double, prioritised"]),
        ("prioritised", ["double, prioritised"]),
        ("lunar*", ["", "double, prioritised"]),
    ],
)
def test_a_note_tells_rows_apart(tmp_path: Path, pattern: str, notes: list[str]) -> None:
    rows = select_rows(load_plan(write(tmp_path, NOTED)), pattern)
    assert [row.note for row in rows] == notes


def test_a_run_names_itself_with_its_note(tmp_path: Path) -> None:
    plain, noted = select_runs(load_plan(write(tmp_path, NOTED)), ("ours",))
    assert str(plain) == "ours dqn/LunarLander-v3, 1,000 steps, seed 0"
    assert str(noted) == "ours dqn/LunarLander-v3 double, prioritised, 1,000 steps, seed 0"


def test_a_pattern_that_no_row_has_is_refused(tmp_path: Path) -> None:
    rows = load_plan(write(tmp_path, NOTED))
    message = "'dueling'; there are 'dqn/LunarLander-v3', 'dqn/LunarLander-v3 double, prioritised'"
    with pytest.raises(PlanError, match=message):
        select_rows(rows, "dueling")


def test_rows_that_nothing_tells_apart_are_refused(tmp_path: Path) -> None:
    plan = write(tmp_path, NOTED.replace('note = "double, prioritised"', ""))
    with pytest.raises(PlanError, match="'dqn/LunarLander-v3' is there twice; give one a note"):
        load_plans([plan])


def test_the_command_of_a_row_selects_its_runs_alone() -> None:
    rows = load_plans(sorted(PLANS.glob("*.toml")))
    for row in rows:
        words = shlex.split(row.command)
        assert words[:-1] == ["hatch", "run", "bench:learning", "--only"]
        assert select_rows(rows, words[-1]) == [row]


def test_every_published_row_is_a_preset_that_no_other_row_has() -> None:
    rows = load_plans(sorted(PLANS.glob("*.toml")))
    commands = [row.train_command for row in rows]
    assert all(command.startswith("rl train ") for command in commands)
    assert len(set(commands)) == len(commands)
    assert "rl train dqn CartPole-v1 --preset plain-three-steps" in commands


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps = 100_000", 'steps = "many"', "row 1 has steps='many'"),
        ("target = 475", "target = '475'", "row 1 has target='475'"),
        ("target = 475", "at_most = true", "at_most without a number"),
        ("seeds = [3, 4]", "seeds = [3, 3]", "each once"),
        ("seeds = [3, 4]", "seeds = []", "each once"),
        ("target = 475", "targte = 475", "unknown keys"),
        ("target = 475", 'target = 475\nmetric = "luck"', "metric='luck'"),
        ("[row.ours]", "[row.theirs]", "row 2 has unknown keys"),
        ("[row.ours]", "", "options of no system"),
        ("[[row]]", "[[rows]]", "got the keys"),
        ("[[row]]", "[[row]", "plan.toml"),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(PlanError, match=message) as caught:
        load_plan(write(tmp_path, PLAN.replace(old, new)))
    assert str(caught.value).startswith("plan.toml: ")


def test_a_run_survives_as_plain_data(tmp_path: Path) -> None:
    for run in select_runs(load_plan(write(tmp_path, PLAN)), ("ours", "sb3")):
        assert Run.from_dict({**run.as_dict(), "returns": [1.0]}) == run


def test_a_digest_follows_the_options_but_not_their_order() -> None:
    digest = options_digest({"a": 1, "b": {"c": 0.5, "d": "x"}})
    assert len(digest) == 12
    assert options_digest({"b": {"d": "x", "c": 0.5}, "a": 1}) == digest
    assert options_digest({"b": {"d": "x", "c": 0.25}, "a": 1}) != digest


def test_a_linear_schedule_runs_from_its_start_to_its_end() -> None:
    schedule = linear_schedule("linear(0.001, 0.0002)")
    assert schedule is not None
    assert schedule(1.0) == 0.001
    assert schedule(0.0) == 0.0002
    assert schedule(0.25) == pytest.approx(0.0004)
    assert linear_schedule("MlpPolicy") is None


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.toml")), ids=lambda path: str(path.stem))
def test_both_systems_get_the_same_hyper_parameters(path: Path) -> None:
    for row in load_plan(path):
        if "sb3" in row.options:
            check_same(row)


def num_dimensions(env: str) -> int:
    """Return over how many dimensions of an action sb3-contrib averages."""
    with contextlib.closing(gymnasium.make(env)) as made:
        return int(np.prod(made.action_space.shape or 1))


def check_same(row: PlanRow) -> None:
    sections, sb3 = row.options["ours"], row.options["sb3"]
    if row.algorithm == "dqn":
        sb3 = {"n_steps": 1, "tau": 1.0, **sb3}  # its defaults are not ours
    same = SAME | SAME_TRPO if row.algorithm == "trpo" else SAME
    compared = set()
    for section, values in sections.items():
        assert isinstance(values, dict)
        for name, value in values.items():
            if (section, name) in same:
                expected: object = sb3[same[section, name]]
                if same[section, name] in PER_DIMENSION:
                    whole = float(str(expected)) * num_dimensions(row.env)
                    expected = pytest.approx(whole)
                assert value == expected, (row.label, name)
                compared.add(same[section, name])
    normalize = [
        option(sections, "actor", "normalize_observations"),
        option(sections, "trainer", "scale_rewards"),
    ]
    assert normalize == [sb3.get("normalize", False)] * 2, row.label
    network = sb3.get("policy_kwargs", {})
    assert isinstance(network, dict)
    for ours, theirs in NETWORK.items():
        assert option(sections, "actor", ours) == network.get(theirs, False), row.label
    if row.algorithm == "ppo":
        coefficient = option(sections, "algorithm", "value_loss_coef")
        assert coefficient == 2.0 * float(str(sb3.get("vf_coef", 0.5))), row.label
    if "gradient_steps" in sb3:
        steps = sb3["train_freq"] if sb3["gradient_steps"] == -1 else sb3["gradient_steps"]
        assert option(sections, "algorithm", "num_minibatches") == steps, row.label
    if "train_freq" in sb3:  # counted in steps of all environments together there
        steps = int(str(sb3["train_freq"])) * int(str(sb3.get("n_envs", 1)))
        assert option(sections, "algorithm", "update_every") == steps, row.label
    hindsight = sb3.get("hindsight")
    if isinstance(hindsight, dict):
        strategy, k = hindsight["goal_selection_strategy"], hindsight["n_sampled_goal"]
        assert option(sections, "storage", "hindsight") == {"strategy": strategy, "k": k}, row.label
    else:
        assert not option(sections, "storage", "hindsight"), row.label
    assert option(sections, "env", "mask_velocity") == sb3.get("mask_velocity", False), row.label
    is_async = option(sections, "env", "vectorization") == "async"
    assert is_async == (sb3.get("vectorizer") == "SubprocVecEnv"), row.label
    has_images = sb3.get("policy") == "CnnPolicy"  # whose network policy and value function share
    assert option(sections, "actor", "share_body") == has_images, row.label
    size = option(sections, "actor", "recurrent_hidden_size")
    assert size == network.get("lstm_hidden_size", False), row.label
    if size:
        assert option(sections, "actor", "recurrent_net") == "lstm", row.label
        assert (sb3["name"], sb3["policy"]) == ("RecurrentPPO", "MlpLstmPolicy"), row.label
    else:  # it takes dicts
        assert (sb3.get("policy") == "MultiInputPolicy") == (row.metric == "success"), row.label
    if temperature := option(sections, "algorithm", "initial_temperature"):
        assert sb3["ent_coef"] == f"auto_{temperature}", row.label
        compared.add("ent_coef")
    if "noise_std" in sb3:
        assert (option(sections, "algorithm", "exploration_std") or 0.1) == sb3["noise_std"]
    if "exploration_fraction" in sb3:
        fraction, last = sb3["exploration_fraction"], sb3["exploration_final_eps"]
        epsilon = f"piecewise(0: 1.0, {fraction}: {last})"
        assert option(sections, "algorithm", "epsilon") == epsilon, row.label
    left = set(sb3) - compared - TRANSLATED
    assert not left, (row.label, left)


def option(sections: object, section: str, name: str) -> object:
    """Read an option, False where it is not given."""
    assert isinstance(sections, dict)
    return sections.get(section, {}).get(name, False)
