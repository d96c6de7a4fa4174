"""The gradient step: loss, gradient, clipping, optimiser and target movement, as one function.

The same step runs in two forms. Uncompiled, the loss goes through autograd and a fused optimiser.
Compiled, everything is one graph over explicit parameter vectors. Both see the same noise, which
is drawn outside, and agree within rounding.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from rl_core.errors import CheckpointError, ConfigError, NonFiniteError, nearest
from rl_core.graphs import compile_graph, tensor_shapes
from rl_core.optimizers import OptimizerConfig, new_optimizer_state, optimizer_step
from rl_core.parameters import ParameterVector, parameter_places
from rl_core.types import StateDict

BatchT = TypeVar("BatchT")
Noise = Mapping[str, Tensor]
"""Random numbers drawn ahead for one gradient step, by name."""

CompiledStep: TypeAlias = Callable[..., Mapping[str, Tensor]]
"""A compiled step, from vectors, optimiser states, batch and noise to per-sample results."""

CompileMode = Literal["auto", "on", "off"]
"""Whether the gradient step is compiled; ``auto`` decides by the length of the run."""


@dataclass(frozen=True, slots=True)
class LossOutput:
    """What a loss answers for one batch.

    Attributes:
        loss: 0-dim; the sum of all losses, each of which reaches only its own parameters.
        metrics: 0-dim tensors by path; averaged over the phase and logged.
        samples: per-sample results by name, each `(N,)`, such as ``td_error``; handed to the
            storage's ``after_gradients``.
        stop: 0-dim bool; where True this step and the rest of the phase change nothing.
    """

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    samples: Mapping[str, Tensor] = field(default_factory=dict)
    stop: Tensor | None = None


torch.export.register_dataclass(LossOutput)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterGroup:
    """Parameters that one optimiser moves.

    Attributes:
        name: of the group; metrics are called ``gradients/<name>_norm``.
        modules: prefixes of the parameters' names, such as ``actor`` or ``actor.critics``.
        learning_rate: name of the hyper-parameter that holds the learning rate.
        max_grad_norm: name of the hyper-parameter that bounds the gradient's norm, or None;
            groups that name the same one are bounded by their joint norm.
        optimizer: the update rule.
        every: move only on every so many gradient steps.
    """

    name: str
    modules: tuple[str, ...]
    learning_rate: str = "learning_rate"
    max_grad_norm: str | None = None
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    every: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetNetwork:
    """A slow copy of a group's parameters.

    Attributes:
        module: name of the copy among the algorithm's modules.
        source: name of the group it follows.
        tau: name of the hyper-parameter: ``target ← (1 - tau) target + tau source``.
        every: move only on every so many gradient steps.
    """

    module: str
    source: str
    tau: str
    every: int = 1


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients on their way from one worker to another.

    Attributes:
        version: of the weights they were computed at.
        num_samples: how many samples they average over.
        tensors: one vector `(P,)` per parameter group.
        finite: whether the loss was finite.
        metrics: the loss's metrics, each 0-dim.
        samples: the loss's per-sample results, each `(N,)`.
        stop: whether the loss asked to end the phase.
    """

    version: int
    num_samples: int
    tensors: Mapping[str, Tensor]
    finite: bool
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    samples: Mapping[str, Tensor] = field(default_factory=dict)
    stop: bool = False


class HyperParameters(nn.Module):
    """Numbers that may change while running, each a 0-dim float32 buffer.

    As buffers they are inputs of a compiled graph: a new value needs no recompilation.
    """

    def __init__(self, values: Mapping[str, float]) -> None:
        super().__init__()
        for name, value in values.items():
            self.register_buffer(name, torch.tensor(float(value)))

    def __getitem__(self, name: str) -> Tensor:
        """Return the 0-dim tensor of a hyper-parameter."""
        buffer = self._buffers[name]
        assert buffer is not None
        return buffer


class LossModule(nn.Module, Generic[BatchT]):
    """A module whose forward is an algorithm's loss.

    It holds every module the loss uses, so that `torch.func.functional_call` can run the loss at
    explicit parameters while the algorithm's code goes on using its modules by name.
    """

    def __init__(
        self,
        loss: Callable[[BatchT, Noise], LossOutput],
        modules: Mapping[str, nn.Module],
        hyper: HyperParameters,
    ) -> None:
        super().__init__()
        self._loss = loss
        for name, module in modules.items():
            self.add_module(name, module)
        self.add_module("hyper", hyper)
        self._places = parameter_places(self)

    def forward(self, batch: BatchT, noise: Noise) -> LossOutput:
        """Compute the loss."""
        return self._loss(batch, noise)

    def at(self, parameters: Mapping[str, Tensor], batch: BatchT, noise: Noise) -> LossOutput:
        """Compute the loss at explicit parameters; what is missing keeps its value.

        Raises:
            ConfigError: when there is no parameter of a name.
        """
        for name in parameters:
            if name not in self._places:
                raise ConfigError(f"no parameter is called '{name}'{nearest(name, self._places)}")
        # Torch's own tying of weights leaves a module that has two paths at the new parameters.
        spread = {
            place: tensor for name, tensor in parameters.items() for place in self._places[name]
        }
        output: LossOutput = functional_call(self, spread, (batch, noise), tie_weights=False)
        return output


class GradientStep(Generic[BatchT]):
    """Takes gradient steps on an algorithm's loss.

    Args:
        loss: a module whose forward is the loss.
        hyper: the algorithm's hyper-parameters.
        groups: which parameters are learned, and how; together they need not cover all.
        targets: which modules follow which groups.

    Raises:
        ConfigError: when a group names no parameter or two groups share one.
    """

    def __init__(
        self,
        loss: LossModule[BatchT],
        hyper: HyperParameters,
        groups: Sequence[ParameterGroup],
        targets: Sequence[TargetNetwork] = (),
    ) -> None:
        self._loss = loss
        self._hyper = hyper
        self._groups = {group.name: group for group in groups}
        self._targets = tuple(targets)
        self.vectors = _parameter_vectors(loss, groups, targets)
        self._device = next(iter(self.vectors.values())).values.device
        self.optimizer_states = {
            name: new_optimizer_state(group.optimizer, self.vectors[name].values)
            for name, group in self._groups.items()
        }
        self.count = 0
        self._stopped = torch.zeros((), dtype=torch.bool, device=self._device)
        self._skipped = torch.zeros((), device=self._device)
        self._metric_names: tuple[str, ...] = ()
        self._metric_sums = torch.zeros(0, device=self._device)
        self._metric_count = torch.zeros((), device=self._device)
        self._computed: Gradients | None = None
        self._is_compiled = False
        self._graphs: dict[tuple[object, ...], CompiledStep] = {}

    @property
    def is_compiled(self) -> bool:
        """Whether steps run as a compiled graph."""
        return self._is_compiled

    def compile(self, mode: CompileMode, batch: BatchT, noise: Noise) -> bool:
        """Compile the step, trying it on a batch without changing any parameter.

        Args:
            mode: ``"on"`` raises when compiling fails; ``"auto"`` falls back with one warning;
                ``"off"`` goes back to the uncompiled form.
            batch: one to trace with; later ones should have its shapes.
            noise: likewise.

        Returns:
            Whether steps are compiled now.

        Raises:
            ConfigError: when compiling was asked for and fails.
        """
        self._is_compiled = False
        self._graphs.clear()
        if mode == "off":
            return False
        with torch.no_grad():
            self._name_metrics(self._loss(batch, noise).metrics)
        if self._device.type == "cuda":
            for vector in self.vectors.values():
                torch._dynamo.mark_static_address(vector.values)
        try:
            self._stopped.fill_(True)
            self._graph(self._due(), batch, noise)(*self._tensors(), batch, noise)
        except Exception as error:
            reason = _reason(error)
            if mode == "on":
                raise ConfigError(
                    f"compile='on', but compiling the gradient step failed ({reason}); "
                    "install a C++ compiler (g++ or clang++), or use compile='off'"
                ) from error
            warnings.warn(
                f"compiling the gradient step failed ({reason}); going on uncompiled",
                RuntimeWarning,
                stacklevel=2,
            )
            return False
        finally:
            self.begin_phase()
            self._forget_metrics()
        self._is_compiled = True
        return True

    def step(self, batch: BatchT, noise: Noise) -> Mapping[str, Tensor]:
        """Take one step.

        Returns:
            The loss's per-sample results.
        """
        samples: Mapping[str, Tensor]
        if self._is_compiled:
            graph = self._graph(self._due(), batch, noise)
            samples = graph(*self._tensors(), batch, noise)
        else:
            finite, output = self._autograd(batch, noise)
            self._apply(finite, output.stop, output.metrics)
            samples = _detached(output.samples)
        self.count += 1
        return samples

    def compute_gradients(self, batch: BatchT, noise: Noise, num_samples: int) -> Gradients:
        """Compute gradients and change nothing."""
        finite, output = self._autograd(batch, noise)
        self._computed = Gradients(
            self.count,
            num_samples,
            {name: self.vectors[name].gradient.clone() for name in self._groups},
            bool(finite),
            _detached(output.metrics),
            _detached(output.samples),
            output.stop is not None and bool(output.stop),
        )
        return self._computed

    def apply_gradients(self, gradients: Gradients | None) -> None:
        """Clip, step and move targets, with given gradients or those computed last.

        Raises:
            ConfigError: when a group's gradient is missing or has another size, or when none is
                given and none was computed.
        """
        gradients = gradients or self._computed
        if gradients is None:
            raise ConfigError("no gradients were given and none were computed before")
        for name in self._groups:
            vector = self.vectors[name]
            given = gradients.tensors.get(name)
            if given is None or given.shape != vector.gradient.shape:
                got = "none" if given is None else str(tuple(given.shape))
                raise ConfigError(
                    f"gradients of group '{name}': expected shape "
                    f"{tuple(vector.gradient.shape)}, got {got}"
                )
        for name in self._groups:
            self.vectors[name].gradient.copy_(gradients.tensors[name])
        self._apply(
            torch.tensor(gradients.finite, device=self._device),
            torch.tensor(gradients.stop, device=self._device),
            {name: metric.to(self._device) for name, metric in gradients.metrics.items()} or None,
        )
        self.count += 1

    def begin_phase(self) -> None:
        """Let steps count again after a loss asked to stop."""
        self._stopped.fill_(False)

    @property
    def stopped(self) -> bool:
        """Whether a loss asked for the phase to stop."""
        return bool(self._stopped)

    @property
    def learns(self) -> bool:
        """Whether any group has a learning rate above 0."""
        return any(float(self._hyper[group.learning_rate]) > 0.0 for group in self._groups.values())

    def read_metrics(self) -> dict[str, float]:
        """Return the means of the metrics since the last reading; empty without any step.

        Raises:
            NonFiniteError: when the loss or gradient of a step was not finite; that step
                changed no parameter.
            ConfigError: when the actor's parameters were moved or replaced meanwhile.
        """
        for vector in self.vectors.values():
            vector.check_tied()
        *sums, count, skipped = torch.cat(
            [self._metric_sums, self._metric_count.view(1), self._skipped.view(1)]
        ).tolist()
        self._forget_metrics()
        if skipped:
            raise NonFiniteError(
                f"{skipped:.0f} gradient steps since the last log had a loss or gradient that is "
                "not finite; they changed no parameter. Lower the learning rate, bound the "
                "gradient norm, or look for extreme rewards and observations"
            )
        if not count:
            return {}
        return {name: value / count for name, value in zip(self._metric_names, sums, strict=True)}

    def _forget_metrics(self) -> None:
        self._skipped.zero_()
        self._metric_sums.zero_()
        self._metric_count.zero_()

    def state_dict(self) -> StateDict:
        """Return optimiser states and the counter; parameters belong to the modules."""
        return {"count": self.count, "optimizers": self.optimizer_states}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`.

        Raises:
            CheckpointError: when it belongs to other groups or sizes.
        """
        count, optimizers = state["count"], state["optimizers"]
        assert isinstance(count, int)
        assert isinstance(optimizers, Mapping)
        self.count = count
        for group, tensors in self.optimizer_states.items():
            saved = optimizers.get(group)
            for name, tensor in tensors.items():
                value = saved.get(name) if isinstance(saved, Mapping) else None
                _copy_into(f"optimiser state '{name}' of '{group}'", tensor, value)

    def _graph(self, due: tuple[str, ...], batch: BatchT, noise: Noise) -> CompiledStep:
        """Return the graph for these groups and shapes, compiling it the first time."""
        key = (due, tensor_shapes(batch), tensor_shapes(noise))
        graph = self._graphs.get(key)
        if graph is None:
            values, states = self._tensors()
            graph = compile_graph(
                partial(self._functional_step, due), (values, states, batch, noise), self._device
            )
            self._graphs[key] = graph
        return graph

    def _due(self) -> tuple[str, ...]:
        number = self.count + 1
        due = [group.name for group in self._groups.values() if number % group.every == 0]
        due += [target.module for target in self._targets if number % target.every == 0]
        return tuple(due)

    def _tensors(self) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
        values = {name: vector.values for name, vector in self.vectors.items()}
        return values, self.optimizer_states

    def _parameters(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: tensor
            for key, vector in values.items()
            for name, tensor in self.vectors[key].split(vector).items()
        }

    def _functional_step(
        self,
        due: tuple[str, ...],
        values: dict[str, Tensor],
        states: dict[str, dict[str, Tensor]],
        batch: BatchT,
        noise: Noise,
    ) -> Mapping[str, Tensor]:
        learned = {name: values[name] for name in self._groups if name in due}
        fixed = {name: vector for name, vector in values.items() if name not in learned}

        def loss(vectors: dict[str, Tensor]) -> tuple[Tensor, LossOutput]:
            parameters = self._parameters({**vectors, **fixed})
            output = self._loss.at(parameters, batch, noise)
            return output.loss, output

        gradients, (value, output) = grad_and_value(loss, has_aux=True)(learned)
        finite = torch.isfinite(value)
        self._finish(due, values, states, gradients, finite, output.stop, output.metrics)
        samples: Mapping[str, Tensor] = output.samples
        return samples

    def _autograd(self, batch: BatchT, noise: Noise) -> tuple[Tensor, LossOutput]:
        for name in self._groups:
            self.vectors[name].gradient.zero_()
        output: LossOutput = self._loss(batch, noise)
        output.loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return torch.isfinite(output.loss.detach()), output

    def _apply(
        self, finite: Tensor, stop: Tensor | None, metrics: Mapping[str, Tensor] | None
    ) -> None:
        if metrics is not None and not self._metric_names:
            self._name_metrics(metrics)
        due = self._due()
        values, states = self._tensors()
        gradients = {name: self.vectors[name].gradient for name in self._groups if name in due}
        self._finish(due, values, states, gradients, finite, stop, metrics)

    @torch.no_grad()
    def _finish(
        self,
        due: tuple[str, ...],
        values: dict[str, Tensor],
        states: dict[str, dict[str, Tensor]],
        gradients: dict[str, Tensor],
        finite: Tensor,
        stop: Tensor | None,
        metrics: Mapping[str, Tensor] | None,
    ) -> None:
        """Clip, step, move targets and note metrics, all masked where the step must not count."""
        norms = {name: torch.linalg.vector_norm(gradient) for name, gradient in gradients.items()}
        for norm in norms.values():
            finite = finite & torch.isfinite(norm)
        before = ~self._stopped
        if stop is not None:
            self._stopped.logical_or_(stop.detach())
        apply = finite & ~self._stopped
        for name, gradient in gradients.items():
            group = self._groups[name]
            if group.max_grad_norm is not None:
                bound = self._hyper[group.max_grad_norm]
                norm = self._joint_norm(group.max_grad_norm, norms)
                gradient = gradient * (bound / (norm + 1e-6)).clamp(max=1.0)
            rate = self._hyper[group.learning_rate]
            # A rate of 0 must not fill the optimiser's moments either.
            moves = apply & (rate > 0.0)
            optimizer_step(group.optimizer, values[name], gradient, states[name], rate, moves)
        for target in self._targets:
            if target.module in due:
                rate = self._hyper[self._groups[target.source].learning_rate]
                tau = torch.where(apply & (rate > 0.0), self._hyper[target.tau], 0.0)
                slow = values[target.module]
                slow.lerp_(values[target.source], tau.to(slow.dtype))
        self._skipped.add_((~finite & before).to(torch.float32))
        if metrics is not None:
            self._note_metrics(metrics, norms, finite & before)

    def _joint_norm(self, bound: str, norms: Mapping[str, Tensor]) -> Tensor:
        sharing = [
            norm for name, norm in norms.items() if self._groups[name].max_grad_norm == bound
        ]
        if len(sharing) == 1:
            return sharing[0]
        joint: Tensor = torch.linalg.vector_norm(torch.stack(sharing))
        return joint

    def _note_metrics(
        self, metrics: Mapping[str, Tensor], norms: Mapping[str, Tensor], counts: Tensor
    ) -> None:
        zero = torch.zeros((), device=self._device)
        norm_metrics = {f"gradients/{name}_norm": norms.get(name, zero) for name in self._groups}
        named = {**metrics, **norm_metrics}
        stacked = torch.stack(
            [named[name].detach().to(torch.float32) for name in self._metric_names]
        )
        self._metric_sums.add_(torch.where(counts, stacked, 0.0))
        self._metric_count.add_(counts.to(torch.float32))

    def _name_metrics(self, metrics: Mapping[str, Tensor]) -> None:
        norms = tuple(f"gradients/{name}_norm" for name in self._groups)
        self._metric_names = (*metrics, *norms)
        self._metric_sums = torch.zeros(len(self._metric_names), device=self._device)


def _parameter_vectors(
    loss: nn.Module, groups: Sequence[ParameterGroup], targets: Sequence[TargetNetwork]
) -> dict[str, ParameterVector]:
    left = dict(loss.named_parameters())
    vectors = {}
    for group in groups:
        taken = {
            name: left.pop(name)
            for name in list(left)
            if any(name == prefix or name.startswith(prefix + ".") for prefix in group.modules)
            and left[name].requires_grad
        }
        if not taken:
            raise ConfigError(
                f"parameter group '{group.name}' finds no parameter left under {group.modules}"
            )
        vectors[group.name] = ParameterVector(taken)
    for target in targets:
        taken = {
            name: left.pop(name) for name in list(left) if name.startswith(target.module + ".")
        }
        vectors[target.module] = ParameterVector(taken)
        if list(vectors[target.module].shapes.values()) != list(
            vectors[target.source].shapes.values()
        ):
            raise ConfigError(f"target '{target.module}' does not match group '{target.source}'")
    for name, parameter in left.items():
        if parameter.requires_grad:
            raise ConfigError(
                f"parameter '{name}' requires a gradient but no parameter group learns it"
            )
    if left:
        vectors["frozen"] = ParameterVector(left)
    return vectors


def _reason(error: Exception) -> str:
    """Find the line that says what went wrong; torch's first one only names the backend."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if not line.endswith("raised:")), repr(error))


def _detached(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _copy_into(what: str, target: Tensor, value: object) -> None:
    if not isinstance(value, Tensor) or value.shape != target.shape:
        got = tuple(value.shape) if isinstance(value, Tensor) else "nothing"
        raise CheckpointError(f"{what}: expected shape {tuple(target.shape)}, got {got}")
    target.copy_(value)
