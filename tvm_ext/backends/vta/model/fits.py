"""What is fitted to calibration data: scales and weights, to all samples, and to all but those of each fold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

import tvm
from numpy.typing import NDArray

from tvm_ext.backends.vta.model.calibrate import ObservedModel, check_samples, observe
from tvm_ext.backends.vta.model.equalize import equalize
from tvm_ext.backends.vta.model.forms import in_forms
from tvm_ext.backends.vta.model.layers import IntegerNetwork, Layer
from tvm_ext.backends.vta.model.output_error import ERROR_SAMPLES, LAYER_SAMPLES, OutputError, folds
from tvm_ext.backends.vta.model.quantize import quantize_network
from tvm_ext.backends.vta.model.relax_layers import ModelGraph
from tvm_ext.backends.vta.model.rounding import RoundedWeights, SeenInputs, round_weights
from tvm_ext.relax_utils import static_shape

NOTHING = IntegerNetwork((), {})


@dataclass(frozen=True, eq=False)
class Fit:
    """What was seen on some samples.

    Attributes
    ----------
    observed : mapping
        Tensor to values that it takes, (channels, values).
    seen : SeenInputs
        What layers see.
    rounded : dict
        Layer to its weights as they were rounded last, and of what: as layers leave VTA, most of the others stay as
        they are.
    """

    observed: Mapping[str, NDArray]
    seen: SeenInputs
    rounded: dict[str, tuple[bytes, RoundedWeights]] = field(default_factory=dict)

    def network(self, layers: Sequence[Layer], known: Mapping[str, int]) -> IntegerNetwork:
        """Choose scales, and write layers in integers.

        Parameters
        ----------
        layers : sequence of Layer
            In an order in which they can run.
        known : mapping
            Fractions of tensors, as a quantised model has them.
        """
        if not layers:
            return NOTHING
        equalized = equalize(layers, self.observed, known)
        scales = equalized.scales

        def rounded(layer: Layer, fraction: int) -> RoundedWeights:
            factors = scales[layer.data]
            key = sha256(b"%d" % fraction)
            for part in (layer.weights, factors):
                key.update(b"" if part is None else part.tobytes())
            before, found = self.rounded.get(layer.name, (b"", None))
            if found is None or before != key.digest():
                found = round_weights(layer, fraction, self.seen.of(layer, factors))
                self.rounded[layer.name] = key.digest(), found
            return found

        network = quantize_network(equalized.layers, equalized.observed, known, rounded)
        return replace(network, scales=scales)


@dataclass(frozen=True, eq=False)
class Calibrated:
    """What was seen on calibration data: values of tensors, and a way to tell what errors become.

    Attributes
    ----------
    whole : Fit
        To all samples: what the compiled model has.
    parts : tuple of Fit
        To all samples but those of a fold, which ``errors`` judges each of them on. Of one sample there is only that.
    errors : OutputError
    first : mapping
        Tensors of the first sample, which the first of the parts was not fitted to, in their shapes in the model.
    """

    whole: Fit
    parts: tuple[Fit, ...]
    errors: OutputError
    first: Mapping[str, NDArray]

    @classmethod
    def of(
        cls, floats: tvm.IRModule, graph: ModelGraph, layers: Sequence[Layer], data: Mapping[str, NDArray]
    ) -> Calibrated:
        """Look at a model on calibration data.

        Parameters
        ----------
        floats : IRModule
        graph : ModelGraph
        layers : sequence of Layer
            All that may run on VTA.
        data : mapping
            Input to its samples.

        Raises
        ------
        InputError
            If the data does not fit the model, or the model is not finite on it.
        """
        parameters = [(p.name, static_shape(p), str(p.ty.dtype)) for p in floats["main"].params]
        samples = check_samples(parameters, data)
        needed = {name for layer in layers for name in (*layer.inputs, layer.name)}
        wanted = [name for name in graph.variables if name in needed]  # as they are computed
        model = ObservedModel(floats, {name: graph.variables[name] for name in wanted}, disturbed=True)
        forms: dict[int, Mapping[str, NDArray]] = {}

        def form(at: int) -> Mapping[str, NDArray]:
            if at not in forms:
                forms[at] = in_forms(layers, model.run(samples[at])[1])
            return forms[at]

        def fit(chosen: Sequence[int]) -> Fit:
            seen = SeenInputs([form(at) for at in chosen[:LAYER_SAMPLES]])
            return Fit(observe(model, [samples[at] for at in chosen]), seen)

        everything = range(len(samples))
        whole, parted = fit(everything), folds(len(samples))
        parts: tuple[Fit, ...]
        if len(parted) == 1:
            parts = (whole,)
        else:
            parts = tuple(fit([at for at in everything if at not in held_out]) for held_out in parted)
        judged = samples[:ERROR_SAMPLES]
        errors = OutputError(model, judged, [at % len(parted) for at in range(len(judged))])
        return cls(whole, parts, errors, model.run(samples[0])[1])

    def networks(self, layers: Sequence[Layer], known: Mapping[str, int], first: int = 0) -> tuple[IntegerNetwork, ...]:
        """Write layers in integers, once for each of the parts from the ``first`` on; see :meth:`Fit.network`."""
        return tuple(part.network(layers, known) for part in self.parts[first:])
