"""Families of environments: found by id, preprocessed, explained when missing."""

import importlib
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast

import gymnasium
import numpy as np
import pytest
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import StickyAction

from rl_core.env import VecEnv
from rl_core.errors import ConfigError, EnvironmentFaultError, MissingExtraError
from rl_core.types import Array
from rl_envs import GymVecEnv, as_vec_env, find_spec, make_vec
from rl_envs.atari import prepare_atari
from rl_envs.families import FAMILIES, family_of_id
from rl_testing.envs import VecEnvSuite


@pytest.mark.parametrize(
    ("env_id", "family"),
    [
        ("ALE/Pong-v5", "Atari"),
        ("PongNoFrameskip-v4", "Atari"),
        ("AntBulletEnv-v0", "PyBullet"),
        ("FetchReach-v4", "Gymnasium-Robotics"),
        ("MiniGrid-Empty-5x5-v0", "MiniGrid"),
        ("BabyAI-GoToObj-v0", "MiniGrid"),
        ("dm_control/cartpole-swingup-v0", "dm_control"),
        ("MetaWorldML1-v0", "Meta-World"),
        ("AntBulletEnv", "PyBullet"),
        ("PongNoFrameskip", "Atari"),
        ("MetaWorldML1", "Meta-World"),
    ],
)
def test_an_id_tells_its_family_before_it_is_registered(
    env_id: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = family_of_id(env_id)
    assert found is not None
    assert found.name == family
    for known in [one for one in gymnasium.registry if one.startswith(env_id)]:
        monkeypatch.delitem(gymnasium.registry, known)
    monkeypatch.setattr("rl_envs.families.find_module", lambda name: None)
    expected = rf'{env_id} needs {family}, .*pip install "packages/rl-envs\[{found.extra}\]"'
    with pytest.raises(MissingExtraError, match=expected):
        make_vec(env_id)


def test_ids_of_gymnasium_belong_to_no_other_family() -> None:
    assert family_of_id("CartPole-v1") is None
    assert len({one.name for one in FAMILIES}) == len(FAMILIES)


def test_every_extra_that_is_named_is_there() -> None:
    project = Path(__file__).parents[2] / "packages" / "rl-envs" / "pyproject.toml"
    extras = tomllib.loads(project.read_text("utf-8"))["project"]["optional-dependencies"]
    assert {one.extra for one in FAMILIES} - {None} | {"envpool"} == set(extras)


@pytest.mark.parametrize("env_id", ["RoboschoolAnt-v1", "RoboschoolWalker2d-v1"])
def test_an_abandoned_id_is_refused_with_its_successor(env_id: str) -> None:
    with pytest.raises(
        ConfigError, match=r"no longer maintained; use '(Ant|Walker2D)BulletEnv-v0'"
    ):
        make_vec(env_id)


def test_a_short_name_is_not_mistaken_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_envs.registry.registering_installed", lambda: iter(()))
    for env_id in [one for one in gymnasium.registry if "Pong" in one]:
        monkeypatch.delitem(gymnasium.registry, env_id)
    with pytest.raises(ConfigError, match="import that module first"):
        make_vec("Pong-v5")


def test_the_same_name_in_another_namespace_is_suggested() -> None:
    pytest.importorskip("ale_py")
    for _ in range(2):  # before and after ale-py has registered its ids
        with pytest.raises(ConfigError, match=r"did you mean 'ALE/Pong-v5'\? if another module"):
            make_vec("Pong-v5")


@pytest.mark.parametrize(("env_id", "found"), [("Pong-v4", "Pong-v4"), ("Pong", "Pong-v4")])
def test_an_id_that_tells_no_family_is_found_the_first_time(env_id: str, found: str) -> None:
    pytest.importorskip("ale_py")
    ask = f"from rl_envs import find_spec; print(find_spec({env_id!r}).id)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == found


def test_a_suggestion_is_of_the_family_that_is_named() -> None:
    pytest.importorskip("ale_py")
    with pytest.raises(ConfigError, match="see the ids of the family ALE"):
        make_vec("ALE/Hoper-v5")
    with pytest.raises(ConfigError, match="did you mean 'ALE/Pong-v5'"):
        make_vec("ALE/Pnog-v5")
    with pytest.raises(ConfigError, match="did you mean 'ALE/MontezumaRevenge-v5'"):
        make_vec("ALE/Montezuma-v5")


@pytest.mark.filterwarnings("ignore:.*texts")
def test_the_limit_of_a_minigrid_is_known() -> None:
    pytest.importorskip("minigrid")
    with make_vec("MiniGrid-Empty-5x5-v0") as envs:
        assert envs.max_episode_steps == 100


def test_versions_that_do_not_go_together_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Arm(gymnasium.Env):
        def __init__(self) -> None:
            raise AssertionError

    spec = gymnasium.envs.registration.EnvSpec(
        "FetchArm-v0", entry_point=cast("Any", f"gymnasium_robotics.{__name__}:Arm")
    )
    monkeypatch.setitem(gymnasium.registry, "FetchArm-v0", spec)
    monkeypatch.setattr("gymnasium.envs.registration.load_env_creator", lambda name: Arm)
    versions = {"gymnasium-robotics": "1.4.2", "mujoco": "3.17.0"}
    monkeypatch.setattr("rl_envs.families.version", versions.__getitem__)
    with pytest.raises(
        EnvironmentFaultError,
        match=r"AssertionError: raised in .*; gymnasium-robotics 1.4.2 does not work with mujoco "
        r"3.17.0: pip install 'mujoco>=3.3,<3.7'",
    ):
        make_vec("FetchArm-v0")


@pytest.fixture
def game() -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")


@pytest.mark.usefixtures("game")
class TestAtari:
    def test_games_are_prepared_as_in_the_papers(self) -> None:
        with make_vec("ALE/Breakout-v5", 2, seed=1) as envs:
            observation = cast("Array", envs.reset())
            assert (observation.shape, observation.dtype) == ((2, 4, 84, 84), np.dtype(np.uint8))
            assert envs.single_action_space == gymnasium.spaces.Discrete(4)

    @pytest.mark.parametrize("num_envs", [2, 6])
    @pytest.mark.parametrize("name", ["frameskip", "max_episode_steps"])
    def test_what_contradicts_the_preparation_is_refused(self, name: str, num_envs: int) -> None:
        with pytest.raises(ConfigError, match=rf"env_kwargs\.{name} does not go with the prep"):
            make_vec("ALE/Breakout-v5", num_envs, env_kwargs={name: 2})
        with make_vec("ALE/Breakout-v5", 1, env_kwargs={name: 2}, preprocess=False):
            pass

    def test_lives_and_clipping_are_for_training_alone(self) -> None:
        lengths = {}
        for testing in (False, True):
            with make_vec("ALE/Breakout-v5", 1, seed=1, testing=testing) as envs:
                envs.reset()
                ends, lives = 0, []
                for step in range(400):
                    told = envs.step(np.array([step % 4]))
                    ends += int(np.asarray(told.terminated)[0])
                    lives.append(int(np.asarray(told.info["lives"])[0]))
                lengths[testing] = ends
                assert min(lives) < 5
        assert lengths[False] > 3 * lengths[True]

    @pytest.mark.parametrize("num_envs", [1, 8])
    @pytest.mark.parametrize("vectorization", ["auto", "envpool"])
    def test_a_lost_life_continues_the_game(
        self, vectorization: Literal["auto", "envpool"], num_envs: int
    ) -> None:
        if vectorization == "envpool":
            pytest.importorskip("envpool")
        env_id = "Breakout-v5" if vectorization == "envpool" else "ALE/Breakout-v5"
        with make_vec(env_id, num_envs, seed=1, vectorization=vectorization) as envs:
            envs.reset()
            lives: list[int] = []
            for step in range(1000):
                told = envs.step(np.full(num_envs, step % 4))
                if np.asarray(told.valid)[0]:
                    lives.append(int(np.asarray(told.info["lives"]).ravel()[0]))
            assert set(lives) >= {5, 4, 3, 2, 1}
            changes = [after for before, after in pairwise(lives) if after != before]
            assert all(after in (before - 1, 5) for before, after in pairwise([5, *changes]))

    def test_the_form_that_forgets_the_game_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="begins a new game after each lost life; use"):
            make_vec("ALE/Breakout-v5", 6, vectorization="native")

    def test_rewards_are_clipped_in_training(self) -> None:
        env = gymnasium.make(find_spec("ALE/Pong-v5"), frameskip=1)
        wrappers = str(prepare_atari(env, testing=False))
        assert "ClipReward" in wrappers
        assert "ClipReward" not in str(prepare_atari(env, testing=True))
        env.close()

    def test_a_quarter_of_the_frames_repeats_the_action_before(self) -> None:
        env = gymnasium.make(find_spec("ALE/Pong-v5"), frameskip=1)
        prepared = prepare_atari(env, testing=True)
        assert env.unwrapped.ale.getFloat("repeat_action_probability") == 0.0  # type: ignore[attr-defined]  # ale-py's
        layer: Any = prepared
        while not isinstance(layer, StickyAction):
            layer = layer.env
        layer.reset(seed=0)
        repeats = 0
        for frame in range(1000):
            layer.step(frame % 2)
            repeats += layer.last_action != frame % 2
        assert 160 < repeats < 240  # a quarter of those whose frame before repeated nothing
        plain = gymnasium.make(find_spec("PongNoFrameskip-v4"))
        assert "StickyAction" not in str(prepare_atari(plain, testing=True))
        env.close()
        plain.close()

    @pytest.mark.parametrize("num_envs", [1, 6])
    def test_a_game_can_be_taken_as_it_is(self, num_envs: int) -> None:
        with make_vec("ALE/Pong-v5", num_envs, preprocess=False) as envs:
            assert envs.single_observation_space.shape == (210, 160, 3)
            assert envs.component is not None
            assert envs.component["preprocess"] is False

    @pytest.mark.parametrize("vectorization", ["async", "sync"])
    def test_rewards_are_the_games_own_in_testing(
        self, vectorization: Literal["async", "sync"]
    ) -> None:
        rewards: dict[bool, set[float]] = {False: set(), True: set()}
        for testing, found in rewards.items():
            options = {"vectorization": vectorization, "testing": testing}
            with make_vec("ALE/Seaquest-v5", 2, seed=1, **options) as envs:  # type: ignore[arg-type]  # of two types
                envs.reset()
                for step in range(300):
                    found |= set(np.asarray(envs.step(np.full(2, 1 + step % 5)).reward).tolist())
        assert rewards == {False: {0.0, 1.0}, True: {0.0, 20.0}}

    def test_a_game_without_doing_nothing_begins_at_once(self) -> None:
        with make_vec("ALE/Backgammon-v5", 1, seed=1, vectorization="sync") as envs:
            assert cast("Array", envs.reset()).shape == (1, 4, 84, 84)


def test_missions_are_left_out_with_one_notice() -> None:
    pytest.importorskip("minigrid")
    with pytest.warns(RuntimeWarning, match=r"the texts \['mission'\] .* are left out") as told:
        envs = make_vec("MiniGrid-Empty-5x5-v0", 2, seed=1)
    assert len(told) == 1
    with envs:
        observation = envs.reset()
        assert isinstance(observation, dict)
        assert {key: value.shape for key, value in observation.items()} == {
            "direction": (2,),
            "image": (2, 7, 7, 3),
        }
        envs.step(np.zeros(2, np.int64))


@pytest.mark.filterwarnings("ignore")  # of other packages' age
@pytest.mark.parametrize(
    ("modules", "env_id", "resumes"),
    [
        (("Box2D",), "LunarLander-v3", "episode"),
        (("mujoco",), "HalfCheetah-v5", "exact"),
        (("ale_py", "cv2"), "ALE/Pong-v5", "exact"),
        (("minigrid",), "MiniGrid-Empty-5x5-v0", "exact"),
        (("pybullet_envs_gymnasium",), "AntBulletEnv-v0", "episode"),
        (("gymnasium_robotics",), "FetchReach-v4", "exact"),
        (("shimmy", "dm_control"), "dm_control/cartpole-balance-v0", "episode"),
        (("metaworld",), "MetaWorldML1-v0", "exact"),
    ],
)
def test_what_is_installed_is_stepped(modules: tuple[str, ...], env_id: str, resumes: str) -> None:
    for module in modules:
        pytest.importorskip(module)
    with make_vec(env_id, 2, seed=1, vectorization="sync") as envs:
        envs.reset()
        actions = batch_space(envs.single_action_space, 2)
        actions.seed(0)
        for _ in range(10):
            step = envs.step(cast("Array", actions.sample()))
        assert bool(np.asarray(step.valid).all())
        assert envs.resume_grade == resumes


@pytest.mark.filterwarnings("ignore:.*precision lowered")
class TestEnvPool(VecEnvSuite):
    @pytest.fixture(autouse=True)
    def _needs_envpool(self) -> None:
        pytest.importorskip("envpool")

    def make_env(self) -> VecEnv:
        return make_vec("CartPole-v1", 3, vectorization="envpool")

    def test_a_pool_of_the_user_goes_straight_in(self) -> None:
        envpool = pytest.importorskip("envpool")
        pool = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=2)
        with as_vec_env(pool) as envs:
            assert (envs.spec_id, envs.max_episode_steps) == ("CartPole", 500)
            first, again, other = (cast("Array", envs.reset(seed)) for seed in (1, 1, 2))
            np.testing.assert_array_equal(first, again)
            assert (first != other).all()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"env_type": "dm"}, "has the interface of dm_env; build it with env_type='gymnasium'"),
            ({"env_type": "gymnasium", "batch_size": 1}, "steps batch_size=1 of its 2 env"),
        ],
    )
    def test_a_pool_that_is_no_vector_is_refused(
        self, options: dict[str, object], message: str
    ) -> None:
        envpool = pytest.importorskip("envpool")
        with pytest.raises(ConfigError, match=message):
            as_vec_env(envpool.make("CartPole-v1", num_envs=2, **options))

    def test_games_are_preprocessed_by_all_names(self) -> None:
        episodic = []
        for name, testing in (("Pong-v5", False), ("ALE/Pong-v5", False), ("Pong-v5", True)):
            with make_vec(name, 1, vectorization="envpool", testing=testing) as envs:
                assert isinstance(envs, GymVecEnv)
                episodic.append(cast("Any", envs)._envs._pool.spec.config.episodic_life)
        assert episodic == [True, True, False]

    def test_an_unknown_id_is_refused(self) -> None:
        message = "EnvPool has no environment 'CartPoel-v1'; did you mean 'CartPole-v1'"
        with pytest.raises(ConfigError, match=message):
            make_vec("CartPoel-v1", vectorization="envpool")
        with pytest.raises(ConfigError, match="EnvPool has no environment 'ALE/Ant-v5'"):
            make_vec("ALE/Ant-v5", vectorization="envpool")
        with pytest.raises(ConfigError, match="without wrappers"):
            make_vec("CartPole-v1", vectorization="envpool", mask_velocity=True)


def test_what_is_deprecated_in_a_model_file_is_not_printed(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mujoco = pytest.importorskip("mujoco")
    mujoco.set_mju_user_warning(None)  # dm_control, once imported, has one of its own
    cheetah = importlib.import_module("gymnasium.envs.mujoco.half_cheetah_v5").HalfCheetahEnv
    build = cheetah.__init__

    def complain(env: Any, *args: Any, **kwargs: Any) -> None:
        tell = mujoco.get_mju_user_warning()
        tell("option 'a' is deprecated")
        tell("option 'b' is wrong")
        build(env, *args, **kwargs)

    monkeypatch.setattr(cheetah, "__init__", complain)
    make_vec("HalfCheetah-v5", 2).close()
    assert set(capfd.readouterr().err.splitlines()) == {"WARNING: option 'b' is wrong"}
    assert mujoco.get_mju_user_warning() is None


def test_a_missing_envpool_is_refused_with_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(MissingExtraError, match=r'pip install "packages/rl-envs\[envpool\]"'):
        make_vec("CartPole-v1", vectorization="envpool")


def test_atari_games_limit_their_frames() -> None:
    pytest.importorskip("ale_py")
    with make_vec("ALE/Pong-v5", 1) as envs:
        assert envs.max_episode_steps == 108_000
