"""Runs a model in floats on given data and looks at tensors inside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.backends.vta.model.ranges import expected_ends
from tvm_ext.backends.vta.model.relax_layers import bindings_of
from tvm_ext.errors import CompileError, InputError, TvmExtWarning, warn
from tvm_ext.relax_utils import static_shape

# Values of a tensor that are kept of one run; more do not change which power of two fits them.
SAMPLE = 1 << 16


@mutator
class Substitution(PyExprMutator):
    """Replaces variables by others."""

    def __init__(self, values: dict[relax.Var, relax.Expr]) -> None:
        super().__init__()
        self.values = values

    def visit_var_(self, op: relax.Var) -> relax.Expr:
        """Replace a variable."""
        return self.values.get(op, op)

    def visit_dataflow_var_(self, op: relax.DataflowVar) -> relax.Expr:
        """Replace a variable."""
        return self.values.get(op, op)


class ObservedModel:
    """A model that gives tensors from inside it beside its outputs, compiled for this machine.

    Parameters
    ----------
    mod : IRModule
        Its function ``main`` is one dataflow block of fixed shapes.
    tensors : mapping
        Identifier to the variable of ``main``, or its parameter, whose values are wanted.
    disturbed : bool
        Whether :meth:`run` may add something to these tensors.
    """

    def __init__(self, mod: tvm.IRModule, tensors: Mapping[str, relax.Var], disturbed: bool = False) -> None:
        from tvm_ext.backends.cpu.target import native_target

        self.tensors = tuple(tensors)
        main = mod["main"]
        self.parameters = [(parameter.name, static_shape(parameter), _dtype(parameter)) for parameter in main.params]
        target = native_target()
        try:
            with target:
                seen = _with_outputs(mod, list(tensors.values()), disturbed)
                executable = tvm.compile(seen, target, relax_pipeline="tvm_ext")
        except Exception as error:  # TVM raises whatever its C++ side threw
            raise CompileError(f"the model in floats cannot be compiled for calibration: {error}") from error
        self._machine = relax.VirtualMachine(executable, tvm.cpu())
        self._zeros: dict[str, Any] = {}
        if disturbed:
            shared: dict[tuple[int, ...], Any] = {}
            for name, variable in tensors.items():
                shape = static_shape(variable) or ()
                if shape not in shared:
                    shared[shape] = tvm.runtime.tensor(np.zeros(shape, np.float32))
                self._zeros[name] = shared[shape]

    def run(
        self, inputs: Mapping[str, NDArray], errors: Mapping[str, NDArray] | None = None
    ) -> tuple[list[NDArray], dict[str, NDArray]]:
        """Run the model once.

        Parameters
        ----------
        inputs : mapping
            By name.
        errors : mapping, optional
            Tensor to what is added to it, of its shape; only for a model that may be ``disturbed``. No tensors are
            returned then.

        Returns
        -------
        list of NDArray
            Its outputs.
        dict
            Tensor to its values.
        """
        arguments = [tvm.runtime.tensor(inputs[name]) for name, _, _ in self.parameters]
        added = dict(self._zeros)
        for name, error in (errors or {}).items():
            added[name] = tvm.runtime.tensor(np.ascontiguousarray(error, np.float32))
        results = self._machine["main"](*arguments, *added.values())
        outputs, tensors = results[0], results[1]
        if errors is not None:
            return [output.numpy() for output in _flat(outputs)], {}
        found = {name: tensor.numpy() for name, tensor in zip(self.tensors, tensors, strict=True)}
        return [output.numpy() for output in _flat(outputs)], found


def check_samples(
    parameters: Sequence[tuple[str, tuple[int, ...] | None, str]], data: Mapping[str, NDArray]
) -> list[dict[str, NDArray]]:
    """Cut calibration data into samples.

    Parameters
    ----------
    parameters : sequence of (name, shape, dtype)
        Of the model.
    data : mapping
        Input to an array of the input's shape, or of so many of them along a further first axis, or of a multiple of
        the input's first extent along it.

    Raises
    ------
    InputError
        If a name, a shape or a dtype is not the model's; the message names the input.
    """
    known = [name for name, _, _ in parameters]
    for name in data:
        if name not in known:
            raise InputError(f"calibration data names the input {name!r}; the model has {', '.join(known)}")
    samples: dict[str, NDArray] = {}
    for name, shape, dtype in parameters:
        if name not in data:
            raise InputError(
                f"calibration data has nothing for input {name!r}; give an array {dtype}{list(shape or ())}"
            )
        samples[name] = _samples(name, tuple(shape or ()), dtype, np.asarray(data[name]))
    counts = {name: len(array) for name, array in samples.items()}
    if len(set(counts.values())) != 1:
        listed = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise InputError(f"calibration data has other numbers of samples for the inputs ({listed})")
    return [{name: array[at] for name, array in samples.items()} for at in range(next(iter(counts.values())))]


def _samples(name: str, shape: tuple[int, ...], dtype: str, array: NDArray) -> NDArray:
    if array.dtype != np.dtype(dtype):
        raise InputError(f"calibration data for input {name!r} is {array.dtype}; expected {dtype}")
    if array.shape == shape:
        array = array[None]
    elif len(shape) and array.ndim == len(shape) and array.shape[1:] == shape[1:] and not array.shape[0] % shape[0]:
        array = array.reshape(-1, *shape)
    elif array.shape[1:] != shape:
        raise InputError(
            f"calibration data for input {name!r} has the shape {list(array.shape)}; expected {list(shape)}, or "
            "several of them along the first axis"
        )
    if not len(array):
        raise InputError(f"calibration data for input {name!r} holds no sample")
    if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
        raise InputError(f"calibration data for input {name!r} has values that are not finite")
    if np.issubdtype(array.dtype, np.floating) and array[0].size > 1 and not array.any():
        warn(
            f"calibration data for input {name!r} is zero everywhere: the ranges of integers chosen on it fit no other "
            "values; give inputs as they occur",
            TvmExtWarning,
        )
    return np.ascontiguousarray(array)


def observe(model: ObservedModel, samples: Sequence[Mapping[str, NDArray]]) -> dict[str, NDArray]:
    """Run a model on samples; return of each tensor some of its values, (channels, values).

    The largest and the smallest of each channel are always among them, and what other samples may have beyond these
    (see :mod:`tvm_ext.backends.vta.model.ranges`). Channels are the second axis of pictures, and otherwise the last.

    Raises
    ------
    InputError
        If a value is not finite; the message names the first such tensor, in the order of ``model.tensors``.
    """
    kept: dict[str, list[NDArray]] = {name: [] for name in model.tensors}
    found: dict[str, list[NDArray]] = {name: [] for name in model.tensors}
    places: dict[str, int] = {}
    for sample in samples:
        tensors = finite_tensors(model, sample)[1]
        for name, values in tensors.items():
            if not values.ndim:
                values = values[None]
            rows = np.moveaxis(values, 1 if values.ndim == 4 else -1, 0)
            rows = rows.reshape(len(rows), -1)
            step = max(1, rows.size * len(samples) // (4 * SAMPLE), rows.size // SAMPLE)
            places[name] = rows.shape[1]
            ends = [rows.max(axis=1, keepdims=True), rows.min(axis=1, keepdims=True)] if rows.size else []
            kept[name].extend([rows[:, ::step], *ends])
            if ends:
                found[name].append(np.concatenate(ends, axis=1))
    for name, ends in found.items():
        if ends:
            kept[name].append(expected_ends(np.stack(ends), places[name]))
    return {name: np.concatenate(parts, axis=1) for name, parts in kept.items()}


def finite_tensors(model: ObservedModel, sample: Mapping[str, NDArray]) -> tuple[list[NDArray], dict[str, NDArray]]:
    """Run a model as :meth:`ObservedModel.run` does, and refuse tensors that are not finite.

    Raises
    ------
    InputError
        The message names the first such tensor, in the order of ``model.tensors``.
    """
    outputs, tensors = model.run(sample)
    for name, values in tensors.items():
        if not np.isfinite(values).all():
            found = "NaN" if np.isnan(values).any() else "an infinity"
            raise InputError(
                f"tensor {name!r} of the model in floats is {found} somewhere on the calibration data, where 8 bits "
                "have no scale: give data of the size that the model was made for, or mend what overflows before it"
            )
    return outputs, tensors


def _with_outputs(mod: tvm.IRModule, tensors: Sequence[relax.Var], disturbed: bool) -> tvm.IRModule:
    """Write ``main`` anew, with a tuple of its result and a tuple of tensors as its result.

    With ``disturbed`` it has a further parameter for each of the tensors, which is added to it. Kernels and functions
    that it calls stay beside it.
    """
    main = mod["main"]
    builder = relax.BlockBuilder()
    values: dict[relax.Var, relax.Expr] = {}
    substitution = Substitution(values)
    errors = {variable: relax.Var(f"error{at}", variable.ty) for at, variable in enumerate(tensors) if disturbed}
    with builder.function("main", [*main.params, *errors.values()]):
        with builder.dataflow():
            for parameter in main.params:
                if parameter in errors:
                    values[parameter] = builder.emit(relax.op.add(parameter, errors[parameter]))
            for binding in bindings_of(main):
                value = builder.emit(substitution.visit_expr(binding.value))
                if binding.var in errors:
                    value = builder.emit(relax.op.add(value, errors[binding.var]))
                values[binding.var] = value
            inside = relax.Tuple([values.get(variable, variable) for variable in tensors])
            result = substitution.visit_expr(main.body.body)
            output = builder.emit_output(relax.Tuple([result, inside]))
        builder.emit_func_output(output)
    written = builder.get()
    for variable, func in mod.functions.items():
        if variable.name_hint != "main":
            written.update_func(variable, func)
    return written


def _dtype(parameter: relax.Var) -> str:
    return str(parameter.ty.dtype)


def _flat(value: Any) -> Iterator[Any]:
    if hasattr(value, "numpy"):
        yield value
    else:
        for item in value:
            yield from _flat(item)
