"""Gradient steps in their three forms: compiled, through autograd, and split in two.

Uncompiled, the loss goes through autograd and a fused optimizer. Compiled, everything is one graph
over explicit parameter vectors. Both see the same noise, which is drawn outside, and agree within
rounding.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import Tensor

from rl_core.compile.function import CompiledFunction
from rl_core.compile.trace import rebuild, tensors_of
from rl_core.errors import ConfigError, DataError
from rl_core.gradients.exchange import Gradients
from rl_core.gradients.loss import (
    Due,
    HyperParameters,
    LossModule,
    LossOutput,
    ModuleWatch,
    Noise,
    parameters_replaced,
)
from rl_core.gradients.nonfinite import NonFiniteGuard, StepMetrics
from rl_core.gradients.optimizers import ParameterUpdate
from rl_core.gradients.parameters import ParameterGroup, ParameterLayout, TargetNetwork
from rl_core.stateful import StateReader
from rl_core.types import StateDict

BatchT = TypeVar("BatchT")
TreeT = TypeVar("TreeT")


class GradientStep(Generic[BatchT]):
    """Takes gradient steps on an algorithm's loss.

    Args:
        loss: a module whose forward is the loss.
        hyper: the algorithm's hyper-parameters.
        groups: which parameters are learned, and how.
        targets: which modules follow which.
        constant: names of modules that the loss leaves alone.

    Attributes:
        vectors: the parameters that change, by group and by target's module.
        optimizer_states: by group.
        count: gradient steps taken.
        guard: what becomes of steps that are not finite.
        compiled: the step as a graph; its ``mode`` says whether steps are compiled.

    Raises:
        ConfigError: when groups or targets do not fit the loss's parameters.
    """

    def __init__(
        self,
        loss: LossModule[BatchT],
        hyper: HyperParameters,
        groups: Sequence[ParameterGroup],
        targets: Sequence[TargetNetwork] = (),
        constant: Sequence[str] = (),
    ) -> None:
        self._loss = loss
        self._hyper = hyper
        self._layout = ParameterLayout(loss, groups, targets, constant)
        self._groups = tuple(group.name for group in groups)
        self.vectors = self._layout.vectors
        self._values = {name: vector.values for name, vector in self.vectors.items()}
        self._device = next(loss.parameters()).device
        self._update = ParameterUpdate(hyper, groups, targets, self._values, self._layout.sources)
        self.optimizer_states = self._update.states
        self.count = 0
        self._stopped = torch.zeros((), dtype=torch.bool, device=self._device)
        self.guard: NonFiniteGuard[BatchT] = NonFiniteGuard(self._device)
        self._metrics = StepMetrics(self._device)
        self._computed: Gradients | None = None
        self._watch = ModuleWatch(loss)
        self._frozen: dict[str, Tensor] = {}
        self.compiled = CompiledFunction(self._functional_step, "the gradient step", self._device)

    def step(self, batch: BatchT, noise: Noise) -> Mapping[str, Tensor]:
        """Take one step.

        Returns:
            The loss's per-sample results.

        Raises:
            ConfigError: when compiling fails and was asked for, or parameters were replaced.
        """
        self._look()
        due = self._due()
        with _gradients_on():
            is_compiled = self.compiled.mode != "off"
            samples = self.compiled(due, batch, noise) if is_compiled else None
            if samples is None:
                samples = self._masked_step(due, partial(self._autograd, batch=batch, noise=noise))
            self._end_step()
        self.guard.keep(self.count, batch, noise)
        return samples

    def compute_gradients(self, batch: BatchT, noise: Noise) -> Gradients:
        """Compute gradients and change nothing.

        Those of groups that move after others are computed where these would have moved to.
        """
        self._look()
        tensors = {name: torch.zeros_like(self.vectors[name].values) for name in self._groups}
        whole = LossOutput(torch.zeros((), device=self._device))
        *earlier, last = self._update.stages(self._due())
        with _gradients_on(), self._update.undone([name for each in earlier for name in each]):
            for groups in (*earlier, last):
                gradients, output = self._autograd(groups, batch, noise)
                tensors |= {name: gradient.clone() for name, gradient in gradients.items()}
                whole = whole.joined(output)
                if groups is not last:
                    finite = torch.isfinite(output.loss)
                    self._update.apply(gradients, _norms(gradients), finite, self._frozen)
        self._computed = Gradients(
            self.count,
            _num_samples(batch),
            tensors,
            bool(torch.isfinite(whole.loss)),
            whole.metrics,
            whole.samples,
            whole.stop is not None and bool(whole.stop),
        )
        return self._computed

    def apply_gradients(self, gradients: Gradients | None) -> None:
        """Clip, step and move targets, with given gradients or those computed last.

        Raises:
            ConfigError: when a group's gradient is missing or has another size, or when none is
                given and none was computed.
            DataError: when they were computed at other weights than those they would move.
        """
        self._look()
        gradients = gradients or self._computed
        if gradients is None:
            raise ConfigError("no gradients were given and none were computed before")
        if gradients.version != self.count:
            raise DataError(
                f"the gradients were computed at version {gradients.version} of the weights, which "
                f"are at version {self.count} now; compute them anew"
            )
        gradients.check_sizes({name: self.vectors[name].gradient for name in self._groups})
        with _gradients_on():
            for name in self._groups:
                self.vectors[name].gradient.copy_(gradients.tensors[name])
            loss = torch.tensor(0.0 if gradients.finite else math.nan, device=self._device)
            stop = torch.tensor(gradients.stop, device=self._device)
            metrics = {name: metric.to(self._device) for name, metric in gradients.metrics.items()}
            output = LossOutput(loss, metrics, stop=stop)
            self._masked_step(self._due(), lambda groups: (self._gradients_of(groups), output))
        self._end_step()
        self.guard.keep(self.count, None, {})

    def begin_update(self) -> None:
        """Count steps again after a loss asked to stop, and copy buffers to targets."""
        self._stopped.fill_(False)
        for slow, fast in self._layout.buffers:
            slow.copy_(fast)

    @property
    def stopped(self) -> bool:
        """Whether later steps of the update change nothing: a loss asked so, or was not finite."""
        return bool(self._stopped | self.guard.holds)

    @property
    def learns(self) -> bool:
        """Whether any group has a learning rate above 0."""
        return self._update.learns

    def read_metrics(self) -> dict[str, float]:
        """Return the means of the metrics since the last reading; empty without any step.

        Where steps that are not finite are skipped, ``gradients/skipped_steps`` counts them.

        Raises:
            NonFiniteError: when a step was not finite and such steps are not skipped; neither what
                was not finite nor any step after it changed a parameter, and the next one counts.
            ConfigError: when the actor's parameters were moved or replaced meanwhile.
        """
        for vector in self.vectors.values():
            vector.check_tied()
        try:
            self.guard.check()
            means = self._metrics.means()
            skipped = self.guard.num_skipped
        finally:
            self.guard.clear()
            self._metrics.clear()
        if self.guard.mode == "skip" and (means or skipped):
            means["gradients/skipped_steps"] = skipped
        return means

    def state_dict(self) -> StateDict:
        """Return optimizer states, the counter, and the metrics that were not read yet.

        Parameters belong to the modules.
        """
        return {
            "count": self.count,
            "optimizers": self.optimizer_states,
            "metrics": self._metrics.state_dict(),
            "skipped": self.guard.num_skipped,
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`.

        Raises:
            CheckpointError: when it belongs to other groups or sizes.
        """
        saved = StateReader(state, "gradients")
        self._update.load(saved.reader("optimizers"))
        self.count, self._computed = saved.count("count"), None
        self._metrics.load(saved.readers("metrics"))
        self.guard.restore(saved.number("skipped"))

    def _look(self) -> None:
        """Notice parameters that were frozen, and refuse those that were replaced."""
        is_changed = self._watch.look()
        if self._watch.were_replaced:
            raise parameters_replaced()
        if not is_changed:
            return
        for name, parameter in self._layout.unlearned.items():
            if parameter.requires_grad:
                raise ConfigError(
                    f"parameter '{name}' needed no gradient when the algorithm was built, and is "
                    "never learned by it; build it before parameters are frozen that are to be "
                    "released later"
                )
        self.compiled.forget()
        self._frozen = {
            name: self.vectors[name].mask(frozen)
            for name in self._groups
            if (frozen := self.vectors[name].frozen)
        }

    def _due(self) -> Due:
        return self._update.due(self.count + 1)

    def _functional_step(self, due: Due, batch: BatchT, noise: Noise) -> Mapping[str, Tensor]:
        """Take a step as a function of vectors, which is what a graph is made of."""
        return self._masked_step(due, partial(self._differentiate, batch=batch, noise=noise))

    def _differentiate(
        self, groups: tuple[str, ...], batch: BatchT, noise: Noise
    ) -> tuple[dict[str, Tensor], LossOutput]:
        """Compute the gradients of some groups as a function of vectors."""
        learned = {name: self._values[name].detach().requires_grad_() for name in groups}
        frozen = {name for group in groups for name in self.vectors[group].frozen}
        with self._loss.moving(groups), torch.enable_grad():
            named = self._layout.named({**self._values, **learned})
            parameters = {n: p.detach() if n in frozen else p for n, p in named.items()}
            output = self._loss.at(parameters, batch, noise)
        self._check_learns(output.loss, groups)
        return _gradients(output.loss, learned), output.detached()

    def _autograd(
        self, groups: tuple[str, ...], batch: BatchT, noise: Noise
    ) -> tuple[dict[str, Tensor], LossOutput]:
        """Compute the gradients of some groups through the modules' own parameters."""
        for name in groups:
            self.vectors[name].gradient.zero_()
        with self._loss.moving(groups), torch.enable_grad():
            output: LossOutput = self._loss(_without_inference(batch), _without_inference(noise))
        self._check_learns(output.loss, groups)
        if output.loss.requires_grad:
            output.loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self._gradients_of(groups), output.detached()

    def _check_learns(self, loss: Tensor, groups: tuple[str, ...]) -> None:
        """Refuse a loss that depends on nothing that is learned, unless some of that is frozen."""
        if not loss.requires_grad and groups and not self._frozen.keys() & groups:
            raise ConfigError(
                f"the loss depends on no parameter of {', '.join(groups)}, which it is to move; "
                "compute it from their outputs, neither detached nor under torch.no_grad"
            )

    def _gradients_of(self, groups: tuple[str, ...]) -> dict[str, Tensor]:
        return {name: self.vectors[name].gradient for name in groups}

    @torch.no_grad()
    def _masked_step(
        self, due: Due, compute: Callable[[tuple[str, ...]], tuple[dict[str, Tensor], LossOutput]]
    ) -> Mapping[str, Tensor]:
        """Clip, step, move targets and note metrics, all masked where the step must not count."""
        before = counts = ~(self._stopped | self.guard.holds)
        whole = LossOutput(torch.zeros((), device=self._device))
        all_norms: dict[str, Tensor] = {}
        for groups in self._update.stages(due):
            gradients, output = compute(groups)
            norms = _norms(gradients)
            # One number that is infinite or NaN makes the sum infinite or NaN.
            counts = counts & torch.isfinite(sum(norms.values(), output.loss))
            if output.stop is not None:
                self._stopped.logical_or_(output.stop)
            moves = counts & ~self._stopped
            self._update.apply(gradients, norms, moves, self._frozen)
            whole = whole.joined(output)
            all_norms |= {f"gradients/{name}_norm": norm for name, norm in norms.items()}
        self._update.follow(due, moves)
        self.guard.note(before & ~counts)
        self._metrics.add({**whole.metrics, **all_norms}, counts)
        return whole.samples

    def _end_step(self) -> None:
        self.count += 1
        self._update.update_rare_targets(self.count)


def _num_samples(batch: object) -> int:
    mask = getattr(batch, "mask", None)
    if isinstance(mask, Tensor):
        return int((mask > 0.0).sum())
    reward = getattr(batch, "reward", None)
    return len(reward) if isinstance(reward, Tensor) else 1


def _norms(gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.linalg.vector_norm(gradient) for name, gradient in gradients.items()}


def _gradients(loss: Tensor, learned: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradient of each vector; zeros where the loss does not depend on it."""
    if not loss.requires_grad:
        return {name: torch.zeros_like(vector) for name, vector in learned.items()}
    found = torch.autograd.grad(loss, list(learned.values()), materialize_grads=True)
    return dict(zip(learned, found, strict=True))


def _gradients_on() -> AbstractContextManager[object]:
    """Let gradients be computed within a block, whatever is switched off around it."""
    modes = ExitStack()
    if torch.is_inference_mode_enabled():
        modes.enter_context(torch.inference_mode(False))
    if not torch.is_grad_enabled():
        modes.enter_context(torch.enable_grad())
    return modes


def _without_inference(tree: TreeT) -> TreeT:
    """Return a tree whose tensors can be differentiated through."""
    tensors = tensors_of(tree)
    if not any(tensor.is_inference() for tensor in tensors):
        return tree
    return rebuild(tree, iter([tensor.clone() for tensor in tensors]))
