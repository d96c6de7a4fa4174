"""Options become plain data and come back, and nothing else is accepted."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pytest

from rl_core.config import Schedule, construct, decode, encode, options_of, parse_schedule
from rl_core.errors import ConfigError
from rl_core.types import Json


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int = 3
    rate: float | None = None


@dataclass(frozen=True, kw_only=True)
class Options:
    learning_rate: float | Schedule
    clip_range: float = 0.2
    num_epochs: int = 4
    normalize: bool = True
    label: str = "run"
    activation: Literal["tanh", "relu"] = "tanh"
    target_kl: float | None = None
    hidden_sizes: tuple[int, ...] = (64, 64)
    betas: tuple[float, float] = (0.9, 0.999)
    seeds: list[int] = field(default_factory=list)
    names: Sequence[str] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Json] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)
    maybe: Inner | None = None

    def __post_init__(self) -> None:
        if not self.clip_range > 0:
            raise ConfigError(f"clip_range: got {self.clip_range}; expected more than 0")


@dataclass(frozen=True)
class Single:
    value: float | int | str | None = None


def refused(type_: object, data: object, *words: str, path: str = "") -> None:
    with pytest.raises(ConfigError) as caught:
        decode(type_, data, path)
    for word in words:
        assert word in str(caught.value)


def test_every_kind_of_field_comes_back_equal() -> None:
    options = Options(
        learning_rate=parse_schedule("linear(0.0003, 0.0)"),
        clip_range=0.1,
        num_epochs=2**70,
        normalize=False,
        label="ünï\n",
        activation="relu",
        target_kl=0.01,
        hidden_sizes=(),
        betas=(0.5, 1e-300),
        seeds=[1, -2],
        names=("a", "none"),
        weights={"x": 0.1},
        extra={"deep": [{"x": None, "y": [True, 1, 1.5, "t"]}]},
        inner=Inner(size=1, rate=0.5),
        maybe=Inner(),
    )
    data = encode(options)
    assert decode(Options, data) == options
    assert encode(decode(Options, data)) == data


def test_encoded_form_is_plain_and_none_is_a_text() -> None:
    schedule = parse_schedule("linear(0.0003, 0.0)")
    data = encode(Options(learning_rate=schedule))
    assert isinstance(data, dict)
    assert data["learning_rate"] == str(schedule)
    assert data["target_kl"] == "none"
    assert data["hidden_sizes"] == [64, 64]
    assert data["inner"] == {"size": 3, "rate": "none"}
    assert data["maybe"] == "none"


def test_missing_fields_take_their_defaults() -> None:
    assert decode(Options, {"learning_rate": 1}) == Options(learning_rate=1.0)


def test_a_schedule_is_read_where_one_is_declared() -> None:
    options = decode(Options, {"learning_rate": "linear(0.0003, 0.0)"})
    assert isinstance(options.learning_rate, Schedule)
    refused(Options, {"learning_rate": "linear(oops"}, "learning_rate", "linear(oops")
    assert decode(str, "linear(0.0003, 0.0)") == "linear(0.0003, 0.0)"


def test_integers_become_floats_and_nothing_else_is_converted() -> None:
    value = decode(float, 3)
    assert value == 3.0
    assert isinstance(value, float)
    refused(float, True, "expected a number", "True (bool)")
    refused(float, "3", "expected a number")
    refused(int, True, "expected a whole number")
    refused(int, 3.0, "expected a whole number", "3.0 (float)")
    refused(bool, 1, "expected true or false")
    refused(str, 1, "expected text")
    refused(float, 10**400, "expected a number")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(number: float) -> None:
    refused(Options, {"learning_rate": number}, "learning_rate", "finite")
    refused(Mapping[str, Json], {"a": [number]}, "a[0]", "finite")
    with pytest.raises(ConfigError, match=r"inner\.rate.*finite"):
        encode(Options(learning_rate=0.1, inner=Inner(rate=number)))


def test_unknown_field_names_its_path_and_the_nearest() -> None:
    refused(
        Options,
        {"learning_rat": 0.1},
        "algorithm.learning_rat: unknown option",
        "did you mean 'learning_rate'?",
        path="algorithm",
    )
    refused(Options, {"learning_rate": 1, "inner": {"sise": 1}}, "inner.sise", "'size'")
    refused(Options, {"learning_rate": 1, "maybe": {"sise": 1}}, "maybe.sise", "'size'")


def test_missing_required_field_is_named() -> None:
    refused(
        Options, {}, "algorithm.learning_rate: missing", "a number or a schedule", path="algorithm"
    )


def test_wrong_types_name_path_got_and_expected() -> None:
    refused(
        Options, {"learning_rate": 1, "hidden_sizes": [64, "x"]}, "hidden_sizes[1]", "'x' (str)"
    )
    refused(
        Options, {"learning_rate": 1, "hidden_sizes": 64}, "hidden_sizes", "a list of whole numbers"
    )
    refused(Options, {"learning_rate": 1, "betas": [0.9]}, "betas", "exactly [a number, a number]")
    refused(Options, {"learning_rate": 1, "weights": {"a": "b"}}, "weights.a", "expected a number")
    refused(Options, {"learning_rate": 1, "weights": {1: 0.5}}, "weights", "key 1")
    refused(
        Options, {"learning_rate": 1, "inner": []}, "inner", "a table of the options size, rate"
    )
    refused(Options, [], "expected a table")


def test_literals_compare_value_and_type() -> None:
    refused(Options, {"learning_rate": 1, "activation": "tahn"}, "'tanh' or 'relu'", "mean 'tanh'")
    assert decode(Literal[1, "a"], 1) == 1
    refused(Literal[1, "a"], True, "expected 1 or 'a'")
    assert decode(Literal["a", None], "none") is None


def test_a_union_takes_the_member_that_fits() -> None:
    for data in (3, 3.5, "text"):
        value = decode(Single, {"value": data}).value
        assert value == data
        assert type(value) is type(data)
    assert decode(Single, {"value": "none"}).value is None
    assert decode(Single, {"value": None}).value is None
    assert decode(tuple[int, ...] | tuple[float, ...], [1, 0.5]) == (1.0, 0.5)
    refused(
        tuple[int, ...] | tuple[float, ...], ["a"], "a list of whole numbers or a list of numbers"
    )
    refused(
        Single,
        {"value": True},
        "value: got True (bool)",
        "a number or a whole number or text or 'none'",
    )


def test_the_text_none_is_refused_where_it_would_be_lost() -> None:
    with pytest.raises(ConfigError, match="value: the text 'none'"):
        encode(Single("none"))
    with pytest.raises(ConfigError, match=r"extra\.a\[0\]: the text 'none'"):
        encode(Options(learning_rate=0.1, extra={"a": ["none"]}))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("give one of the two", "algorithm: give one of the two"),
        ("algorithm: give one of the two", "algorithm: give one of the two"),
        ("rate must be above 0", "algorithm.rate must be above 0"),
        ("algorithm.rate must be above 0", "algorithm.rate must be above 0"),
        ("rates must be above 0", "algorithm: rates must be above 0"),
    ],
)
def test_what_a_dataclass_says_of_itself_gets_each_part_of_the_path_once(
    said: str, expected: str
) -> None:
    @dataclass
    class Complaining:
        rate: float = 0.1

        def __post_init__(self) -> None:
            raise ConfigError(said)

    with pytest.raises(ConfigError) as caught:
        decode(Complaining, {}, "algorithm")
    assert str(caught.value) == expected


def test_a_check_of_the_dataclass_gets_the_path() -> None:
    refused(
        Options,
        {"learning_rate": 1, "clip_range": -1},
        "algorithm.clip_range: got -1.0; expected more than 0",
        path="algorithm",
    )


def test_objects_and_endless_nesting_have_no_plain_form() -> None:
    with pytest.raises(ConfigError, match=r"a\[1\].*object of type complex"):
        encode({"a": [1, 1j]})
    with pytest.raises(ConfigError, match="key 1"):
        encode({1: 2})
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(ConfigError, match="deeper"):
        encode(endless)
    refused(Mapping[str, Json], {"a": endless}, "deeper")


def test_huge_integers_are_refused_without_a_crash() -> None:
    refused(str, 16**6000, "very large integer")


class Network:
    """Something that no recipe can express."""


@dataclass(frozen=True, kw_only=True)
class WithCallable:
    network: Network | None = None
    optimizer: str | Callable[[], Network] = "adam"
    add_ons: tuple[Network, ...] = ()
    hook: Callable[[], None] = print


def test_fields_that_data_cannot_express_are_left_out_while_default() -> None:
    assert encode(WithCallable()) == {"optimizer": "adam"}
    assert decode(WithCallable, {"optimizer": "sgd"}).optimizer == "sgd"
    refused(WithCallable, {"hook": "os.system"}, "hook: cannot be given as data")
    refused(WithCallable, {"add_ons": ["x"]}, "add_ons: cannot be given as data")
    with pytest.raises(ConfigError, match="add_ons"):
        encode(WithCallable(add_ons=(Network(),)))


class Configured:
    def __init__(
        self,
        actor: str,
        config: Options | None = None,
        *,
        device: str = "cpu",
        hook: Network = ...,  # type: ignore[assignment]  # any default will do
    ) -> None:
        self.actor, self.config, self.device, self.hook = actor, config, device, hook


class Plain:
    def __init__(  # type: ignore[no-untyped-def]  # one is left bare on purpose
        self,
        observation_space: Network,
        hidden_sizes: tuple[int, ...],
        *,
        sizes: list[int] = [1],  # noqa: B006  # as some plug-in authors write
        extra: Mapping[str, Json] = {},
        network: Network | None = None,
        optimizer: str | Callable[[], Network] = "adam",
        unannotated=5,
        device: str = "cpu",
        **rest: object,
    ) -> None:
        self.observation_space, self.hidden_sizes = observation_space, hidden_sizes
        self.sizes, self.extra, self.network = sizes, extra, network
        self.device, self.unannotated = device, unannotated


class Bare:
    pass


class Needy:
    def __init__(self, network: Network) -> None:
        self.network = network


class Unresolved:
    def __init__(self, thing: "Missing") -> None:  # type: ignore[name-defined]  # noqa: F821
        self.thing = thing


def make_env(name: str, num_envs: int = 1, *, seed: int = 0) -> tuple[str, int, int]:
    return name, num_envs, seed


def test_options_are_the_config_dataclass_where_there_is_one() -> None:
    assert options_of(Configured) is Options


def test_options_are_made_from_the_annotated_parameters_otherwise() -> None:
    options = options_of(Plain)
    assert options_of(Plain) is options
    assert sorted(options.__annotations__) == ["extra", "hidden_sizes", "optimizer", "sizes"]
    decoded = decode(options, {"hidden_sizes": [8], "extra": {"a": "none"}})
    assert encode(decoded) == {
        "hidden_sizes": [8],
        "sizes": [1],
        "extra": {"a": "none"},
        "optimizer": "adam",
    }
    refused(options, {}, "hidden_sizes: missing")
    with pytest.raises(AttributeError):
        decoded.hidden_sizes = (1,)  # type: ignore[attr-defined]


def test_a_function_and_a_bare_class_have_options_too() -> None:
    assert sorted(options_of(make_env).__annotations__) == ["name", "num_envs"]
    assert encode(options_of(Bare)()) == {}


def test_a_parameter_that_cannot_be_given_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="Needy needs 'network', of type Network"):
        options_of(Needy)
    with pytest.raises(ConfigError, match=r"Unresolved cannot be resolved.*Missing"):
        options_of(Unresolved)


def test_construct_passes_options_and_the_context_that_is_asked_for() -> None:
    config = Options(learning_rate=0.1)
    built = construct(Configured, {"actor": "A", "spec": 1, "device": "cuda"}, config)
    assert (built.actor, built.config, built.device) == ("A", config, "cuda")
    space = Network()
    options = decode(options_of(Plain), {"hidden_sizes": [8], "sizes": [2]})
    plain = construct(Plain, {"observation_space": space, "generator": 1}, options)
    assert plain.observation_space is space
    assert plain.hidden_sizes == (8,)
    assert plain.sizes == [2]
    assert plain.device == "cpu"
    named = decode(options_of(make_env), {"name": "x"})
    assert construct(make_env, {"seed": 3}, named) == ("x", 1, 3)
    assert construct(make_env, {}, named) == ("x", 1, 0)


def test_construct_refuses_wrong_options_and_a_missing_context() -> None:
    with pytest.raises(ConfigError, match="got options of type Inner; expected Options"):
        construct(Configured, {"actor": "A"}, Inner())
    with pytest.raises(ConfigError, match=r"needs 'actor', which is neither.*\(device\)"):
        construct(Configured, {"device": "cpu"}, Options(learning_rate=0.1))


def test_mutable_defaults_are_not_shared() -> None:
    options = options_of(Plain)
    first, second = (decode(options, {"hidden_sizes": []}) for _ in range(2))
    first.sizes.append(9)  # type: ignore[attr-defined]
    assert second.sizes == [1]  # type: ignore[attr-defined]
