import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad_and_value, vmap

from rl_core.errors import ConfigError, SpaceError
from rl_core.nn._recurrence import gru, lstm
from rl_core.nn.cnn import NatureCNN, SmallCNN, image_network
from rl_core.nn.images import image_layout
from rl_core.nn.mlp import MLP
from rl_core.nn.normalization import RunningNorm
from rl_core.nn.recurrent import RecurrentKind, RecurrentNet
from rl_core.nn.torso import CoreConfig, ObservationEncoder, Torso, feature_size
from rl_core.spaces import Space


def _seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _fill(module: nn.Module, value: float) -> None:
    for parameter in module.parameters():
        nn.init.constant_(parameter, value)


class TestMLP:
    def test_it_is_its_layers_one_after_the_other(self) -> None:
        net = MLP(2, (3,), 1, activation="tanh")
        with torch.no_grad():
            hidden, out = net.hidden[0], net.out
            assert isinstance(hidden, nn.Linear)
            assert out is not None
            hidden.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
            hidden.bias.copy_(torch.tensor([0.0, 0.0, -1.0]))
            out.weight.copy_(torch.tensor([[1.0, 2.0, 3.0]]))
            out.bias.fill_(0.5)
        expected = math.tanh(0.5) + 2.0 * math.tanh(0.25) + 3.0 * math.tanh(-0.25) + 0.5
        assert net(torch.tensor([0.5, 0.25])).item() == pytest.approx(expected)

    @pytest.mark.parametrize(
        ("name", "at_minus_one"),
        [
            ("tanh", math.tanh(-1.0)),
            ("relu", 0.0),
            ("elu", math.exp(-1.0) - 1.0),
            ("gelu", -0.5 * math.erfc(1.0 / math.sqrt(2.0))),
            ("silu", -1.0 / (1.0 + math.e)),
            ("leaky_relu", -0.01),
        ],
    )
    def test_activations_by_name(self, name: str, at_minus_one: float) -> None:
        net = MLP(1, (1,), activation=name)  # type: ignore[arg-type]  # one of the names
        _fill(net, -0.5)  # -0.5 * 1 - 0.5 = -1
        assert net(torch.ones(1)).item() == pytest.approx(at_minus_one, rel=1e-5)

    def test_without_an_output_layer_the_last_activation_stays(self) -> None:
        net = MLP(4, (8, 5), activation="relu")
        assert net.out_features == 5
        features = net(_seeded(7, 3, 4))
        assert features.shape == (7, 3, 5)
        assert features.min() >= 0.0

    def test_without_layers_it_hands_through(self) -> None:
        x = _seeded(3, 4)
        assert torch.equal(MLP(4, ())(x), x)
        assert MLP(4, ()).out_features == 4

    def test_initialization_is_orthogonal_with_the_asked_gain(self) -> None:
        net = MLP(8, (8,), 4, out_gain=0.01)
        hidden = net.hidden[0]
        assert isinstance(hidden, nn.Linear)
        assert net.out is not None
        torch.testing.assert_close(
            hidden.weight @ hidden.weight.T, 2.0 * torch.eye(8), rtol=0, atol=1e-5
        )
        torch.testing.assert_close(
            net.out.weight @ net.out.weight.T, 1e-4 * torch.eye(4), rtol=0, atol=1e-9
        )
        assert not hidden.bias.any()
        assert not net.out.bias.any()

    def test_mistakes_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="did you mean 'tanh'"):
            MLP(2, (3,), activation="than")  # type: ignore[arg-type]  # the user's mistake
        with pytest.raises(ConfigError, match="at least 1"):
            MLP(2, (0,))
        with pytest.raises(ConfigError, match="at least 1"):
            MLP(2, (3,), 0)


class TestImageLayout:
    @pytest.mark.parametrize(
        ("shape", "planes", "frame"),
        [
            ((84, 80, 4), (4, 84, 80), (84, 80, 4)),
            ((4, 84, 80), (4, 84, 80), (4, 84, 80)),
            ((40, 40, 40), (40, 40, 40), (40, 40, 40)),
            ((5, 84, 80, 2), (10, 84, 80), (84, 80, 2)),
            ((5, 2, 84, 80), (10, 84, 80), (2, 84, 80)),
            ((1, 84, 80, 1), (1, 84, 80), (84, 80, 1)),
        ],
    )
    def test_axes_are_told_apart(
        self, shape: tuple[int, ...], planes: tuple[int, ...], frame: tuple[int, ...]
    ) -> None:
        layout = image_layout(shape)
        assert (layout.planes_shape, layout.frame_shape) == (planes, frame)
        pixels = torch.arange(3 * math.prod(shape)).view(3, *shape)
        assert layout.planes(pixels).shape == (3, *planes)
        newest = pixels[:, -1] if len(shape) == 4 else pixels
        assert torch.equal(layout.newest_frame(pixels), newest)

    def test_other_arrays_are_refused(self) -> None:
        for shape in ((84, 84), (2, 2, 84, 84, 1)):
            with pytest.raises(SpaceError, match="one more axis in front for a stack"):
                image_layout(shape)


class TestNatureCNN:
    def test_both_axis_orders_give_the_same_features(self) -> None:
        last, first = NatureCNN((84, 84, 4), 16), NatureCNN((4, 84, 84), 16)
        first.load_state_dict(last.state_dict())
        pixels = torch.randint(0, 256, (2, 84, 84, 4), dtype=torch.uint8)
        torch.testing.assert_close(first(pixels.movedim(-1, 1)), last(pixels))

    def test_the_channels_of_stacked_frames_are_taken_together(self) -> None:
        flat = NatureCNN((6, 40, 36), 16)
        for shape, axes in (((2, 40, 36, 3), (1, 4, 2, 3)), ((2, 3, 40, 36), (1, 2, 3, 4))):
            stacked = NatureCNN(shape, 16)
            stacked.load_state_dict(flat.state_dict())
            pixels = torch.randint(0, 256, (5, *shape), dtype=torch.uint8)
            channels_first = pixels.permute(0, *axes).flatten(1, 2)
            torch.testing.assert_close(stacked(pixels), flat(channels_first))
            assert stacked(pixels.unsqueeze(0)).shape == (1, 5, 16)

    def test_it_is_the_papers_network(self) -> None:
        net = NatureCNN((4, 84, 84), 512)
        shapes = [tuple(parameter.shape) for parameter in net.parameters()]
        assert shapes == [
            (32, 4, 8, 8),
            (32,),
            (64, 32, 4, 4),
            (64,),
            (64, 64, 3, 3),
            (64,),
            (512, 64 * 7 * 7),
            (512,),
        ]

    def test_batch_axes_of_any_number_pass_through(self) -> None:
        net = NatureCNN((36, 40, 3), 8)
        pixels = torch.randint(0, 256, (5, 2, 36, 40, 3), dtype=torch.uint8)
        features = net(pixels)
        assert features.shape == (5, 2, 8)
        torch.testing.assert_close(net(pixels[3, 1]), features[3, 1], rtol=1e-4, atol=1e-5)

    def test_pixels_are_scaled(self) -> None:
        bytes_net, unit_net = NatureCNN((36, 36, 1), 8), NatureCNN((36, 36, 1), 8, scale=1.0)
        unit_net.load_state_dict(bytes_net.state_dict())
        pixels = torch.randint(0, 256, (36, 36, 1), dtype=torch.uint8)
        torch.testing.assert_close(unit_net(pixels / 255.0), bytes_net(pixels))

    def test_the_channels_are_the_last_axis_of_a_cube(self) -> None:
        assert NatureCNN((40, 40, 40), 8).layout.channels_last

    def test_a_small_image_is_refused(self) -> None:
        with pytest.raises(SpaceError, match="35x40 is too small"):
            NatureCNN((35, 40, 3))

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 11, 12, 20, 35])
    def test_small_images_have_a_network_of_their_own(self, size: int) -> None:
        net = image_network((size, size + 1, 3), 16)
        assert isinstance(net, SmallCNN)
        assert net.linear.in_features <= 64 * 72
        assert net(torch.zeros(2, 5, size, size + 1, 3, dtype=torch.uint8)).shape == (2, 5, 16)
        assert isinstance(image_network((36, 36, 3), 16), NatureCNN)

    def test_a_small_network_sees_every_pixel(self) -> None:
        net = SmallCNN((7, 7, 1), 8, scale=1.0)
        pixels = torch.ones(7, 7, 1, requires_grad=True)
        (gradient,) = torch.autograd.grad(net(pixels).sum(), pixels)
        assert (gradient != 0).all()


def _torch_twin(net: RecurrentNet) -> nn.GRU | nn.LSTM:
    """Build torch's own network with the same weights."""
    cls = nn.GRU if net.kind == "gru" else nn.LSTM
    first = net.input_layers[0]
    assert isinstance(first, nn.Linear)
    twin = cls(first.in_features, net.hidden_size, net.num_layers)
    with torch.no_grad():
        for layer in range(net.num_layers):
            for ours, theirs in ((net.input_layers, "ih"), (net.state_layers, "hh")):
                linear = ours[layer]
                assert isinstance(linear, nn.Linear)
                getattr(twin, f"weight_{theirs}_l{layer}").copy_(linear.weight)
                getattr(twin, f"bias_{theirs}_l{layer}").copy_(linear.bias)
    return twin


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
class TestRecurrentNet:
    def _net(self, kind: RecurrentKind, num_layers: int) -> RecurrentNet:
        torch.manual_seed(0)
        net = RecurrentNet(kind, 3, 4, num_layers)
        for name, parameter in net.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(parameter)
        return net

    def test_it_is_torchs_network_where_nothing_is_reset(
        self, kind: RecurrentKind, num_layers: int
    ) -> None:
        net = self._net(kind, num_layers)
        features, state = _seeded(5, 2, 3), _seeded(2, net.state_size, seed=1)
        output, states = net(features, state, torch.zeros(5, 2, dtype=torch.bool))
        layers = torch.stack(state.chunk(num_layers, -1))  # (layers, N, H or 2 H)
        twin = _torch_twin(net)
        if kind == "gru":
            expected, last = twin(features, layers)
        else:
            hidden, cell = (part.contiguous() for part in layers.chunk(2, -1))
            expected, (hidden, cell) = twin(features, (hidden, cell))
            last = torch.cat([hidden, cell], -1)
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(states[-1], torch.cat(last.unbind(0), -1))

    def test_an_episode_start_is_a_zero_state(self, kind: RecurrentKind, num_layers: int) -> None:
        net = self._net(kind, num_layers)
        features, state = _seeded(6, 2, 3), _seeded(2, net.state_size, seed=1)
        start = torch.zeros(6, 2, dtype=torch.bool)
        start[2, 0] = start[5, 0] = start[0, 1] = True
        output, states = net(features, state, start)
        for env, begin, end in ((0, 0, 2), (0, 2, 5), (0, 5, 6), (1, 0, 6)):
            first = state[env] if (env, begin) == (0, 0) else torch.zeros(net.state_size)
            alone, alone_states = net(
                features[begin:end, env : env + 1],
                first.unsqueeze(0),
                torch.zeros(end - begin, 1, dtype=torch.bool),
            )
            torch.testing.assert_close(alone[:, 0], output[begin:end, env])
            torch.testing.assert_close(alone_states[:, 0], states[begin:end, env])

    def test_one_step_is_a_sequence_of_one(self, kind: RecurrentKind, num_layers: int) -> None:
        net = self._net(kind, num_layers)
        features, state = _seeded(2, 3), _seeded(2, net.state_size, seed=1)
        start = torch.tensor([True, False])
        output, after = net(features, state, start)
        outputs, states = net(features.unsqueeze(0), state, start.unsqueeze(0))
        assert output.shape == (2, 4)
        assert after.shape == (2, net.state_size)
        torch.testing.assert_close(output, outputs[0])
        torch.testing.assert_close(after, states[0])

    def test_members_are_networks_of_their_own(self, kind: RecurrentKind, num_layers: int) -> None:
        torch.manual_seed(0)
        members = RecurrentNet(kind, 3, 4, num_layers, num_members=2)
        for name, parameter in members.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(parameter)
        features, state = _seeded(5, 2, 6, 3), _seeded(2, 6, members.state_size, seed=1)
        start = _seeded(5, 6, seed=2) > 1.0
        output, states = members(features, state, start)
        assert output.shape == (5, 2, 6, 4)
        for member in range(2):
            alone = RecurrentNet(kind, 3, 4, num_layers)
            weights = {
                name: tensor[member] if name.endswith("weight") else tensor[member, 0]
                for name, tensor in members.state_dict().items()
            }
            alone.load_state_dict(weights)
            expected, expected_states = alone(features[:, member], state[member], start)
            torch.testing.assert_close(output[:, member], expected)
            torch.testing.assert_close(states[:, member], expected_states)
        one, after = members(features[0], state, start[0])
        torch.testing.assert_close(one, output[0])
        torch.testing.assert_close(after, states[0])

    def test_rows_of_known_states_are_stepped_at_once(
        self, kind: RecurrentKind, num_layers: int
    ) -> None:
        net = self._net(kind, num_layers)
        features, state = _seeded(5, 2, 3), _seeded(2, net.state_size, seed=1)
        output, states = net(features, state, torch.zeros(5, 2, dtype=torch.bool))
        before = torch.cat([state.unsqueeze(0), states[:-1]])
        again, after = net.step(features, before)
        torch.testing.assert_close(again, output)
        torch.testing.assert_close(after, states)

    @pytest.mark.parametrize("num_members", [None, 2])
    def test_a_sequence_has_the_derivatives_of_its_steps(
        self, kind: RecurrentKind, num_layers: int, num_members: int | None
    ) -> None:
        """The first ones, and those of a function of the first."""
        torch.manual_seed(0)
        net = RecurrentNet(kind, 3, 4, num_layers, num_members=num_members).double()
        for parameter in net.parameters():
            nn.init.normal_(parameter)
        batch = (2,) if num_members is None else (num_members, 2)
        features = _seeded(5, *batch, 3).double().requires_grad_()
        state = _seeded(*batch, net.state_size, seed=1).double().requires_grad_()
        start = _seeded(5, 2, seed=2) > 0.5
        inputs = [features, state, *net.parameters()]

        def by_steps() -> tuple[Tensor, Tensor]:
            outputs, states, now = [], [], state
            for step in range(5):
                output, now = net(features[step], now, start[step])
                outputs.append(output)
                states.append(now)
            return torch.stack(outputs), torch.stack(states)

        found = []
        for output, states in (net(features, state, start), by_steps()):
            loss = output.square().sum() + (states * states.detach().cos()).sum()
            first = torch.autograd.grad(loss, inputs, create_graph=True)
            slope = sum((part * part.detach().cos()).sum() for part in first)
            assert isinstance(slope, Tensor)
            found.append((output, states, *first, *torch.autograd.grad(slope, inputs)))
        torch.testing.assert_close(*found)

    def test_no_gradient_flows_over_an_episode_start(
        self, kind: RecurrentKind, num_layers: int
    ) -> None:
        net = self._net(kind, num_layers)
        features = _seeded(4, 1, 3).requires_grad_()
        start = torch.tensor([[False], [False], [True], [False]])
        output, _ = net(features, torch.zeros(1, net.state_size), start)
        (gradient,) = torch.autograd.grad(output[3].sum(), features)
        assert gradient[:2].abs().max() == 0.0
        assert (gradient[2:] != 0.0).all()


@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize("num_members", [None, 2])
@pytest.mark.parametrize(("recurrence", "gates", "parts"), [(gru, 3, 1), (lstm, 4, 2)])
def test_written_out_derivatives_are_those_of_differences(
    recurrence: Callable[..., Tensor], gates: int, parts: int, num_members: int | None, starts: bool
) -> None:
    """The first ones and the second ones, of everything that a recurrence is given."""
    steps, samples, size = 3, 2, 2
    members = () if num_members is None else (num_members,)
    ones = (1,) * len(members)
    start = torch.tensor([[False, True], [False, False], [True, False]])
    kept = (~start).double().view(steps, *ones, samples, 1) if starts else None
    shapes = (
        (steps, *members, samples, gates * size),
        (*members, samples, parts * size),
        (*members, gates * size, size),
        (*members, *ones, gates * size),
    )
    given = [
        _seeded(*shape, seed=seed).double().requires_grad_() for seed, shape in enumerate(shapes)
    ]

    def run(inputs: Tensor, state: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return recurrence(inputs, state, kept, weight, bias)

    assert gradcheck(run, given)
    assert gradgradcheck(run, given)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_sequence_and_its_gradient_are_one_graph(kind: RecurrentKind) -> None:
    torch.manual_seed(0)
    net = RecurrentNet(kind, 3, 4)
    features, state = _seeded(3, 2, 3), _seeded(2, net.state_size, seed=1)
    start = torch.tensor([[False, False], [True, False], [False, False]])
    weights = {name: parameter.detach() for name, parameter in net.named_parameters()}

    def step(weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        def loss(weights: dict[str, Tensor]) -> Tensor:
            output: tuple[Tensor, Tensor] = functional_call(net, weights, (features, state, start))
            return output[0].square().sum()

        found: tuple[dict[str, Tensor], Tensor] = grad_and_value(loss)(weights)
        return found

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(weights)
    torch.testing.assert_close(compiled, step(weights))


def test_recurrent_state_sizes() -> None:
    assert RecurrentNet("gru", 3, 4, 2).state_size == 8
    assert RecurrentNet("lstm", 3, 4, 2).state_size == 16


def test_recurrent_mistakes_are_refused() -> None:
    with pytest.raises(ConfigError, match="known: gru, lstm"):
        RecurrentNet("rnn", 3, 4)  # type: ignore[arg-type]  # the user's mistake
    with pytest.raises(ConfigError, match="hidden_size must be a whole number of at least 1"):
        RecurrentNet("gru", 3, 0)


class TestRunningNorm:
    def test_batches_add_up_to_the_whole(self) -> None:
        data = np.random.default_rng(0).normal(5.0, 3.0, (60, 2)).astype(np.float32)
        norm = RunningNorm((2,), clip=100.0)
        for part in np.split(data, [7, 8, 40]):
            norm.update(torch.from_numpy(part))
        np.testing.assert_allclose(norm.mean.numpy(), data.mean(0), rtol=1e-6)
        np.testing.assert_allclose(norm.var.numpy(), data.var(0), rtol=1e-6)
        assert norm.count.item() == 60
        normal = norm(torch.from_numpy(data))
        torch.testing.assert_close(normal.mean(0), torch.zeros(2), rtol=0, atol=1e-5)
        torch.testing.assert_close(normal.std(0, correction=0), torch.ones(2))

    def test_numbers_by_hand(self) -> None:
        norm = RunningNorm((1,), clip=2.0, epsilon=0.0)
        norm.update(torch.tensor([[1.0], [3.0]]))
        assert (norm.mean.item(), norm.var.item()) == (2.0, 1.0)
        norm.update(torch.tensor([[8.0]]))  # 1, 3, 8: mean 4, variance 26 / 3
        assert norm.mean.item() == pytest.approx(4.0)
        assert norm.var.item() == pytest.approx(26.0 / 3.0)
        assert norm(torch.tensor([5.0])).item() == pytest.approx(1.0 / math.sqrt(26.0 / 3.0))
        assert norm(torch.tensor([1000.0])).item() == 2.0
        assert norm(torch.tensor([-1000.0])).item() == -2.0

    def test_older_samples_fade_with_a_decay(self) -> None:
        norm = RunningNorm((1,), decay=0.5)
        norm.update(torch.tensor([[0.0], [2.0]]))  # mean 1, variance 1
        norm.update(torch.tensor([[4.0], [4.0]]))  # of 3 samples by weight, 2 are at 4
        assert norm.count.item() == 3.0
        assert norm.mean.item() == pytest.approx(3.0)
        assert norm.var.item() == pytest.approx(1.0 / 3.0 + 9.0 * 2.0 / 9.0)

    def test_masked_samples_do_not_count(self) -> None:
        values = _seeded(3, 4, 2)
        mask = torch.rand(3, 4, generator=torch.Generator().manual_seed(1)) < 0.5
        masked, plain = RunningNorm((2,)), RunningNorm((2,))
        masked.update(values, mask)
        plain.update(values[mask])
        assert torch.equal(masked.mean, plain.mean)
        assert masked.count == mask.sum()
        masked.update(values, torch.zeros(3, 4, dtype=torch.bool))
        assert torch.equal(masked.mean, plain.mean)

    def test_it_starts_as_the_identity_and_forward_changes_nothing(self) -> None:
        norm = RunningNorm((2,))
        x = _seeded(4, 2)
        assert torch.equal(norm(x), x)
        assert norm.count.item() == 0

    def test_large_offsets_do_not_drown_the_spread(self) -> None:
        norm = RunningNorm((1,))
        generator = torch.Generator().manual_seed(0)
        for _ in range(50):
            norm.update(1e4 + torch.randn(100, 1, generator=generator))
        assert norm.var.item() == pytest.approx(1.0, rel=0.1)

    def test_statistics_travel_with_the_weights(self) -> None:
        norm, other = RunningNorm((2,)), RunningNorm((2,))
        norm.update(_seeded(9, 2))
        other.load_state_dict(norm.state_dict())
        x = _seeded(3, 2, seed=1)
        assert torch.equal(other(x), norm(x))
        norm.update(_seeded(2, 2, seed=2))
        other.update(_seeded(2, 2, seed=2))
        assert torch.equal(other(x), norm(x))


class TestEncoder:
    def test_vectors_pass_through_flattened(self) -> None:
        encoder = ObservationEncoder(spaces.Box(-1.0, 1.0, (2, 3), np.float32))
        x = _seeded(5, 4, 2, 3)
        assert torch.equal(encoder(x), x.reshape(5, 4, 6))
        assert encoder.out_features == 6

    def test_a_number_without_axes_gets_one(self) -> None:
        encoder = ObservationEncoder(spaces.Box(-1.0, 1.0, (), np.float32))
        assert encoder(_seeded(5)).shape == (5, 1)

    def test_categories_become_one_hot_from_their_start(self) -> None:
        encoder = ObservationEncoder(spaces.Discrete(3, start=2))
        assert encoder(torch.tensor([2, 4])).tolist() == [[1, 0, 0], [0, 0, 1]]

    def test_several_categories_are_laid_side_by_side(self) -> None:
        encoder = ObservationEncoder(spaces.MultiDiscrete(np.array([[2, 3]])))
        assert encoder.out_features == 5
        assert encoder(torch.tensor([[[1, 2]]])).tolist() == [[0, 1, 0, 0, 1]]

    def test_switches_become_numbers(self) -> None:
        encoder = ObservationEncoder(spaces.MultiBinary(3))
        features = encoder(torch.tensor([[0, 1, 1]], dtype=torch.int8))
        assert features.dtype == torch.float32
        assert features.tolist() == [[0, 1, 1]]

    def test_images_are_convolved_by_the_range_of_their_pixels(self) -> None:
        as_bytes = ObservationEncoder(spaces.Box(0, 255, (36, 36, 1), np.uint8), image_features=8)
        for high in (1.0, 255.0):
            space = spaces.Box(0.0, high, (36, 36, 1), np.float32)
            as_floats = ObservationEncoder(space, image_features=8)
            as_floats.load_state_dict(as_bytes.state_dict())
            pixels = torch.randint(0, 256, (2, 36, 36, 1), dtype=torch.uint8)
            torch.testing.assert_close(as_floats(pixels * (high / 255.0)), as_bytes(pixels))

    def test_dicts_are_concatenated_without_the_action_mask(self) -> None:
        space = spaces.Dict(
            {
                "b": spaces.Discrete(2),
                "a": spaces.Box(-1.0, 1.0, (2,), np.float32),
                "action_mask": spaces.MultiBinary(4),
            }
        )
        encoder = ObservationEncoder(space)
        assert encoder.out_features == 4
        observation = {
            "action_mask": torch.zeros(1, 4, dtype=torch.int8),
            "a": torch.tensor([[0.5, -0.5]]),
            "b": torch.tensor([1]),
        }
        order = list(space.spaces)
        expected = {"a": [0.5, -0.5], "b": [0.0, 1.0]}
        flat = [number for key in order for number in expected.get(key, [])]
        assert encoder(observation).tolist() == [flat]

    @pytest.mark.parametrize("keys", [("type", "keys"), ("a.b", "a_b"), ("forward", "x")])
    def test_keys_may_have_any_name(self, keys: Sequence[str]) -> None:
        leaves: dict[str, Space] = {key: spaces.Discrete(2 + k) for k, key in enumerate(keys)}
        encoder = ObservationEncoder(spaces.Dict(leaves))
        features = encoder({key: torch.tensor([1 + k]) for k, key in enumerate(keys)})
        assert features.shape == (1, 5)
        assert features.sum() == 2.0

    def test_only_continuous_vectors_are_normalized(self) -> None:
        space = spaces.Dict(
            {
                "category": spaces.Discrete(2),
                "image": spaces.Box(0, 255, (36, 36, 1), np.uint8),
                "lamps": spaces.MultiBinary(2),
                "vector": spaces.Box(-9.0, 9.0, (1,), np.float32),
            }
        )
        encoder = ObservationEncoder(space, normalize=True, image_features=4)
        assert encoder.normalizes
        assert not ObservationEncoder(space, image_features=4).normalizes
        observation = {
            "category": torch.tensor([[0, 1]]),
            "image": torch.zeros(1, 2, 36, 36, 1, dtype=torch.uint8),
            "lamps": torch.ones(1, 2, 2),
            "vector": torch.tensor([[[4.0], [6.0]]]),
        }
        encoder.update_normalization(observation, torch.ones(1, 2, dtype=torch.bool))
        statistics = {name: b for name, b in encoder.named_buffers() if name.endswith("mean")}
        assert [mean.tolist() for mean in statistics.values()] == [[5.0]]
        torch.testing.assert_close(encoder(observation)[0, :, -1], torch.tensor([-1.0, 1.0]))

    def test_nothing_but_a_mask_is_refused(self) -> None:
        with pytest.raises(SpaceError, match="only an action mask"):
            ObservationEncoder(spaces.Dict({"action_mask": spaces.MultiBinary(2)}))

    def test_an_extractor_must_say_its_size(self) -> None:
        assert feature_size(nn.Linear(2, 3)) == 3
        with pytest.raises(ConfigError, match="'out_features'"):
            feature_size(nn.Tanh())


class TestTorso:
    def test_a_feed_forward_torso_is_encoder_and_layers(self) -> None:
        encoder = ObservationEncoder(spaces.Box(-1.0, 1.0, (3,), np.float32))
        torso = Torso(encoder, (5, 4))
        features, after = torso(_seeded(2, 3), None, None)
        assert after is None
        assert torso.state_size == 0
        assert torso.out_features == 4
        assert torch.equal(features, torso.layers(encoder(_seeded(2, 3))))

    def test_memory_comes_after_the_layers(self) -> None:
        encoder = ObservationEncoder(spaces.Discrete(3))
        torso = Torso(encoder, (5,), core=CoreConfig("lstm", 4, 2))
        assert (torso.out_features, torso.state_size) == (4, 16)
        start = torch.zeros(6, 2, dtype=torch.bool)
        features, states = torso(torch.zeros(6, 2, dtype=torch.int64), torch.zeros(2, 16), start)
        assert features.shape == (6, 2, 4)
        assert states.shape == (6, 2, 16)

    def test_a_core_may_come_before_the_layers(self) -> None:
        encoder = ObservationEncoder(spaces.Box(-1.0, 1.0, (3,), np.float32))
        torso = Torso(encoder, (5,), core=CoreConfig("gru", 4, is_first=True))
        assert (torso.out_features, torso.state_size) == (5, 4)
        observation, state = _seeded(6, 2, 3), _seeded(2, 4)
        start = torch.tensor([[False, False], [True, False]]).repeat(3, 1)
        assert torso.core is not None
        remembered, states = torso.core(observation, state, start)
        features, after = torso(observation, state, start)
        assert torch.equal(features, torso.layers(remembered))
        assert torch.equal(after, states)
        assert torch.equal(torso.encode(observation), observation)

    def test_a_users_extractor_may_come_first(self) -> None:
        torso = Torso(nn.Linear(3, 6), ())
        assert torso.out_features == 6
        torso.update_normalization(_seeded(2, 3))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(5, start=-1),
        spaces.MultiDiscrete(np.array([[2, 3], [4, 1]])),
        spaces.Box(0, 255, (12, 12, 3), np.uint8),
        spaces.Box(0, 255, (2, 36, 36), np.uint8),
    ],
    ids=str,
)
def test_encoders_go_through_vmap(space: Space) -> None:
    space.seed(0)
    encoder = ObservationEncoder(space, image_features=4)
    samples = [[torch.as_tensor(space.sample()) for _ in range(3)] for _ in range(2)]
    observation = torch.stack([torch.stack(row) for row in samples])  # (2, 3, ...)
    parameters = {name: torch.stack([p, 2.0 * p]) for name, p in encoder.named_parameters()}

    def encode(parameters: dict[str, Tensor], observation: Tensor) -> Tensor:
        encoded: Tensor = functional_call(encoder, parameters, (observation,))
        return encoded

    got = vmap(encode)(parameters, observation)
    for row in range(2):
        expected = encode({name: p[row] for name, p in parameters.items()}, observation[row])
        torch.testing.assert_close(got[row], expected)
