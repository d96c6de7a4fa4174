r"""The recurrences of GRU and LSTM over a sequence, with their derivatives written out.

Automatic differentiation of the loop would record every operation, and compute one product with the
shape of the weights per step. Here the backward loop holds only what must be done in order, and the
gradient of the weights is one product over all steps. The derivatives consist of differentiable
operations, so they can be differentiated again.

$k_t$ is 0 where an episode starts and 1 elsewhere, $x_t$ is the projected input, $\sigma$ the
logistic function; products are elementwise except those with $W$. Blocks of $x_t$ have indices.

LSTM, blocks in the order (i, f, g, o), with $a = x_t + W k_t h_{t-1}$:
$(i, f, o) = \sigma(a_i, a_f, a_o)$, $g = \tanh(a_g)$, $c_t = f k_t c_{t-1} + i g$,
$h_t = o \tanh(c_t)$.

GRU, blocks in the order (r, z, n), with $u = W k_t h_{t-1} + b$:
$r = \sigma(x_r + u_r)$, $z = \sigma(x_z + u_z)$, $n = \tanh(x_n + r u_n)$,
$h_t = (1 - z) n + z k_t h_{t-1}$.

In comments d(y) is the derivative of the loss with respect to y, and a prime marks the step before.
"""

from typing import Any

import torch
from torch import Tensor


def lstm(
    inputs: Tensor, state: Tensor, kept: Tensor | None, weight: Tensor, bias: Tensor
) -> Tensor:
    """Run an LSTM over a sequence.

    Args:
        inputs: projected, shape `(T, *batch, 4H)`.
        state: output and cell before the first step, shape `(*batch, 2H)`.
        kept: k, shape `(T, *batch, 1)`: 0 zeroes the state before a step; None zeroes none.
        weight: of the recurrent product, shape `(4H, H)`, or `(E, 4H, H)` of several members.
        bias: of that product, such as `(4H,)`.

    Returns:
        Output and cell after each step, `(T, *batch, 2H)`.
    """
    states: Tensor
    states, _ = _LSTM.apply(inputs + bias, state, kept, weight)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return states


def gru(inputs: Tensor, state: Tensor, kept: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
    """Run a GRU over a sequence; see `lstm`.

    Args:
        inputs: projected, shape `(T, *batch, 3H)`.
        state: before the first step, shape `(*batch, H)`.
        kept: shape `(T, *batch, 1)`, or None.
        weight: shape `(3H, H)` or `(E, 3H, H)`.
        bias: such as `(3H,)`.

    Returns:
        The state after each step, `(T, *batch, H)`.
    """
    states: Tensor
    states, _ = _GRU.apply(inputs, state, kept, weight, bias)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return states


class _LSTM(torch.autograd.Function):
    """`lstm` with the bias in the inputs; it also returns (i, f, g, o) for the derivatives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        inputs: Tensor, state: Tensor, kept: Tensor | None, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        size, transposed = weight.shape[-1], weight.mT
        states, gates, candidates = [], [], []
        for step, x in enumerate(inputs.unbind(0)):
            before = state if kept is None else state * kept[step]
            hidden, cell = before.chunk(2, dim=-1)  # k h', k c'
            x = _add_product(x, hidden, transposed)  # a = x + W k h'
            candidate = torch.tanh(x[..., 2 * size : 3 * size])  # g = tanh(a_g)
            x = torch.sigmoid(x)  # of all blocks at once; that of g is not used
            in_gate, forget_gate, _, out_gate = x.chunk(4, dim=-1)
            cell = torch.addcmul(forget_gate * cell, in_gate, candidate)  # c = f k c' + i g
            state = torch.cat((out_gate * torch.tanh(cell), cell), dim=-1)  # h = o tanh(c)
            states.append(state)
            gates.append(x)
            candidates.append(candidate)
        all_gates = torch.stack(gates)
        all_gates[..., 2 * size : 3 * size] = torch.stack(candidates)
        return torch.stack(states), all_gates

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, state, kept, weight = inputs
        ctx.save_for_backward(state, kept, weight, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, d_states: Tensor | None, d_gates: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        state, kept, weight, states, gates = ctx.saved_tensors
        size = weight.shape[-1]
        before = _before(state, states, kept)
        hidden_before, cell_before = before.chunk(2, dim=-1)
        i, f, g, o = gates.chunk(4, dim=-1)
        tanh_cell = torch.tanh(states[..., size:])
        # Local derivatives of all steps at once: dc/da_i, dc/da_f and dc/da_g,
        by_cell = torch.stack(
            (g * i * (1.0 - i), cell_before * f * (1.0 - f), i * (1.0 - g * g)), dim=-2
        ).unbind(0)
        by_hidden = (tanh_cell * o * (1.0 - o)).unbind(0)  # dh/da_o,
        through = (o * (1.0 - tanh_cell * tanh_cell)).unbind(0)  # dh/dc,
        forget = (f if kept is None else f * kept).unbind(0)  # and dc/dc' = f k.
        more = None
        if d_gates is not None:  # the loss reads the gates, as a second derivative does
            d_i, d_f, d_g, d_o = d_gates.chunk(4, dim=-1)
            more = torch.cat(
                (
                    d_i * i * (1.0 - i),
                    d_f * f * (1.0 - f),
                    d_g * (1.0 - g * g),
                    d_o * o * (1.0 - o),
                ),
                dim=-1,
            )
        if d_states is None:
            d_states = torch.zeros_like(states)
        d_hiddens, d_cells = (part.unbind(0) for part in d_states.chunk(2, dim=-1))
        d_hidden, d_cell = torch.zeros_like(state).chunk(2, dim=-1)
        d_inputs = []
        for step in reversed(range(len(states))):
            d_hidden = d_hidden + d_hiddens[step]  # d(h): from the next step and from outside
            # d(c) = from the next step + from outside + d(h) o (1 - tanh(c)^2)
            d_cell = torch.addcmul(d_cell + d_cells[step], d_hidden, through[step])
            d_input = torch.cat(  # d(x) = d(a)
                (
                    # d(a_i) = d(c) g i (1-i), d(a_f) = d(c) k c' f (1-f), d(a_g) = d(c) i (1-g^2)
                    (by_cell[step] * d_cell.unsqueeze(-2)).flatten(-2),
                    by_hidden[step] * d_hidden,  # d(a_o) = d(h) tanh(c) o (1-o)
                ),
                dim=-1,
            )
            if more is not None:
                d_input = d_input + more[step]
            d_inputs.append(d_input)
            d_hidden = d_input @ weight  # d(h') = k W^T d(a)
            if kept is not None:
                d_hidden = d_hidden * kept[step]
            d_cell = d_cell * forget[step]  # d(c') = f k d(c)
        d_input = torch.stack(d_inputs[::-1])
        d_state = torch.cat((d_hidden, d_cell), dim=-1)
        # d(W) = sum over steps of d(a) (k h')^T
        return d_input, d_state, None, _weight_gradient(d_input, hidden_before)


class _GRU(torch.autograd.Function):
    """`gru`; it also returns (r, z, n, u_n) for the derivatives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        inputs: Tensor, state: Tensor, kept: Tensor | None, weight: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        size, transposed = weight.shape[-1], weight.mT
        parts = (2 * size, size)
        states, gates = [], []
        for step, x in enumerate(inputs.unbind(0)):
            before = state if kept is None else state * kept[step]  # k h'
            # u = W k h' + b
            of_gates, of_new = _add_product(bias, before, transposed).split_with_sizes(
                parts, dim=-1
            )
            in_gates, in_new = x.split_with_sizes(parts, dim=-1)
            both = torch.sigmoid(in_gates + of_gates)  # (r, z) = sigma(x + u)
            reset, update = both.chunk(2, dim=-1)
            new = torch.tanh(torch.addcmul(in_new, reset, of_new))  # n = tanh(x_n + r u_n)
            state = torch.lerp(new, before, update)  # h = (1-z) n + z k h'
            states.append(state)
            gates.append(torch.cat((both, new, of_new), dim=-1))
        return torch.stack(states), torch.stack(gates)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, state, kept, weight, bias = inputs
        ctx.save_for_backward(state, kept, weight, *output)
        ctx.bias_shape = bias.shape
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, d_states: Tensor | None, d_gates: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        state, kept, weight, states, gates = ctx.saved_tensors
        size = weight.shape[-1]
        before = _before(state, states, kept)
        r, z, n, u = gates.chunk(4, dim=-1)  # u is u_n
        # Local derivatives of all steps at once:
        by_new = (1.0 - z) * (1.0 - n * n)  # dh/dx_n
        by_reset = u * r * (1.0 - r)  # d(r u_n)/du_r
        # dh/du_r, dh/du_z = (k h' - n) z (1-z), and dh/du_n
        local = torch.stack(
            (by_new * by_reset, (before - n) * z * (1.0 - z), by_new * r), dim=-2
        ).unbind(0)
        update = z.unbind(0)
        more, more_new = None, None
        if d_gates is not None:  # the loss reads the gates, as a second derivative does
            d_r, d_z, d_n, d_u = d_gates.chunk(4, dim=-1)
            more_new = d_n * (1.0 - n * n)
            more = torch.cat(
                (
                    d_r * r * (1.0 - r) + more_new * by_reset,
                    d_z * z * (1.0 - z),
                    more_new * r + d_u,
                ),
                dim=-1,
            )
        if d_states is None:
            d_states = torch.zeros_like(states)
        d_after = d_states.unbind(0)
        d_state = torch.zeros_like(state)
        d_products, d_afters = [], []
        for step in reversed(range(len(states))):
            d_state = d_state + d_after[step]  # d(h): from the next step and from outside
            d_product = (local[step] * d_state.unsqueeze(-2)).flatten(-2)  # d(u)
            if more is not None:
                d_product = d_product + more[step]
            d_products.append(d_product)
            d_afters.append(d_state)
            # d(h') = k (z d(h) + W^T d(u))
            d_state = _add_product(d_state * update[step], d_product, weight)
            if kept is not None:
                d_state = d_state * kept[step]
        d_product = torch.stack(d_products[::-1])
        d_new = torch.stack(d_afters[::-1]) * by_new  # d(x_n) = d(h) (1-z) (1-n^2)
        if more_new is not None:
            d_new = d_new + more_new
        # d(x_r) = d(u_r), d(x_z) = d(u_z)
        d_input = torch.cat((d_product[..., : 2 * size], d_new), dim=-1)
        d_bias = d_product.sum_to_size(ctx.bias_shape)  # d(b) = sum of d(u)
        # d(W) = sum over steps of d(u) (k h')^T
        return d_input, d_state, None, _weight_gradient(d_product, before), d_bias


def _add_product(term: Tensor, factor: Tensor, weight: Tensor) -> Tensor:
    """Add ``factor @ weight``, of one network or of several members."""
    if weight.dim() == 2:
        return torch.addmm(term, factor, weight)
    return torch.baddbmm(term, factor, weight)


def _before(state: Tensor, states: Tensor, kept: Tensor | None) -> Tensor:
    """Return the state that each step starts from, k h' (and k c')."""
    before = torch.cat((state.unsqueeze(0), states[:-1]))
    return before if kept is None else before * kept


def _weight_gradient(d_product: Tensor, factor: Tensor) -> Tensor:
    """Sum the outer products over all steps and samples."""
    if d_product.dim() == 3:
        return d_product.flatten(0, 1).mT @ factor.flatten(0, 1)
    d_product, factor = (x.transpose(0, 1).flatten(1, 2) for x in (d_product, factor))
    return d_product.mT @ factor
