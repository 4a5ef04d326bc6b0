"""Group normalisation that is written as instance normalisation of groups between reshapes becomes one operator.

before: ``y = reshape(nn.instance_norm(reshape(x, [n, g, -1]), ones, zeros), x.shape) * w + b``
after:  ``y = nn.group_norm(x, w, b, g)``

This is how PyTorch's exporters write it for ONNX. A reshape in front of a reduction is a tensor in memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tvm_ext.passes.bindings import calls
from tvm_ext.passes.norm_mutator import NormMutator
from tvm_ext.relax_utils import constant, open_shape, rewriting_pass, same_extents


def group_norms() -> tvm.transform.Pass:
    """Make the pass, for a known number of channels."""
    return rewriting_pass("tvm_ext.GroupNorms", _Rewriter)


@mutator
class _Rewriter(NormMutator):
    def operator(self, user: relax.Var, value: Any) -> relax.Call | None:
        """Find a scaled normalisation with a number for each channel added, or one without."""
        if not calls(value, "relax.add"):
            return self._scaled(user, value)
        for inner, operand in (value.args, reversed(value.args)):
            bias = self._by_channels(operand, value)
            made = None if bias is None else self._scaled(user, self.bindings.step(inner))
            if made is None or constant(made.args[2]).any():  # type: ignore[union-attr]
                continue
            x, weight, _ = made.args
            if same_extents(open_shape(x) or (), open_shape(value) or ()):
                return _group_norm(x, weight, relax.const(bias, str(value.ty.dtype)), made.attrs)
        return None

    def _scaled(self, user: relax.Var, value: Any) -> relax.Call | None:
        """Find a normalisation multiplied by a number for each channel, or one without."""
        if not calls(value, "relax.multiply"):
            return self._grouped(user, value)
        for inner, operand in (value.args, reversed(value.args)):
            weight = self._by_channels(operand, value)
            made = None if weight is None else self._grouped(user, self.bindings.step(inner))
            # An operand with more axes adds axes in front: the channels of the result are not those of the norm.
            if made is not None and same_extents(open_shape(made.args[0]) or (), open_shape(value) or ()):
                x, *given = made.args
                scale, shift = (constant(operand) * weight for operand in given)  # type: ignore[operator]
                dtype = str(value.ty.dtype)
                return _group_norm(x, relax.const(scale, dtype), relax.const(shift, dtype), made.attrs)
        return None

    def _grouped(self, user: relax.Var, value: Any) -> relax.Call | None:
        """Find a normalisation of groups between reshapes."""
        inner = self.bindings.step(value.args[0]) if calls(value, "relax.reshape") else None
        if not calls(inner, "relax.nn.instance_norm"):
            return None
        joined, scale, bias = inner.args  # type: ignore[union-attr]
        before = self.bindings.values.get(joined)
        if not calls(before, "relax.reshape") or not self.bindings.is_visible(before.args[0], user):  # type: ignore[union-attr]
            return None
        x = before.args[0]  # type: ignore[union-attr]
        shape, grouped, given = open_shape(x), open_shape(joined), [constant(scale), constant(bias)]
        if shape is None or grouped is None or any(numbers is None for numbers in given) or len(shape) < 3:
            return None
        channels, groups = shape[1], grouped[1]
        if not isinstance(channels, int) or not isinstance(groups, int) or not groups or channels % groups:
            return None
        if not same_extents(shape, open_shape(value) or ()) or not same_extents(shape[:1], grouped[:1]):
            return None
        attributes, rank = inner.attrs, len(grouped)  # type: ignore[union-attr]
        places = sorted(int(axis) % rank for axis in attributes.axes)
        if int(attributes.channel_axis) % rank != 1 or places != list(range(2, rank)):
            return None
        weights = (relax.const(np.repeat(numbers, channels // groups), str(x.ty.dtype)) for numbers in given)  # type: ignore[arg-type]
        return relax.op.nn.group_norm(x, *weights, groups, 1, list(range(2, len(shape))), float(attributes.epsilon))

    def _by_channels(self, expr: Any, result: Any) -> np.ndarray | None:
        """Give the numbers of a constant that differ by the channels of a result only."""
        numbers, shape = constant(expr), open_shape(result)
        if numbers is None or shape is None or len(shape) < 3 or not isinstance(shape[1], int):
            return None
        aligned = numbers.reshape([1] * (len(shape) - numbers.ndim) + list(numbers.shape))
        if aligned.shape[1] not in (1, shape[1]) or aligned.size != aligned.shape[1]:
            return None
        return np.broadcast_to(aligned.reshape(-1), (shape[1],))


def _group_norm(x: Any, weight: Any, bias: Any, attributes: Any) -> relax.Call:
    axes = [int(axis) for axis in attributes.axes]
    return relax.op.nn.group_norm(
        x, weight, bias, int(attributes.num_groups), int(attributes.channel_axis), axes, float(attributes.epsilon)
    )
