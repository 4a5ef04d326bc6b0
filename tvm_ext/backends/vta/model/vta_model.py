"""A model whose layers run on VTA where that is faster: its modules, regions and what is known of its errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray

from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.model.accuracy import AccuracyReport, compare, compare_layers
from tvm_ext.backends.vta.model.calibrate import ObservedModel
from tvm_ext.backends.vta.model.forms import from_form, to_form
from tvm_ext.backends.vta.model.layers import IntegerNetwork
from tvm_ext.backends.vta.model.partition import Partition
from tvm_ext.backends.vta.model.region import RegionProgram
from tvm_ext.backends.vta.model.relax_layers import ModelGraph


@dataclass(frozen=True, eq=False)
class VTAModel:
    """A model whose layers run on VTA where that is faster.

    Attributes
    ----------
    mod : tvm.IRModule
        Relax module to compile for the CPU; the programs of VTA are part of it.
    floats : tvm.IRModule
        The same model in floats.
    graph : ModelGraph
    partition : Partition
    network : IntegerNetwork
        Layers on VTA.
    regions : tuple of RegionProgram
    config : VTAConfig
    notes : tuple of str
        One sentence for each thing that a user should know.
    output_error : float, optional
        Error of the outputs as a share of their size, estimated on calibration data; None without any.
    output_error_bound : float, optional
        What that error is below on other inputs like these, with a confidence of 95 %.
    """

    mod: tvm.IRModule
    floats: tvm.IRModule
    graph: ModelGraph
    partition: Partition
    network: IntegerNetwork
    regions: tuple[RegionProgram, ...]
    config: VTAConfig
    notes: tuple[str, ...]
    output_error: float | None = None
    output_error_bound: float | None = None

    def decisions(self) -> dict[str, Any]:
        """Return what was decided, as plain data."""
        rows = [vars(decision) for decision in self.partition.decisions]
        integers = {
            integer.layer.name: {"shift": integer.shift, "fraction": self.network.fractions[integer.layer.name]}
            for integer in self.network.layers
        }
        return {
            "config": self.config.name,
            "hw_ver": self.config.hw_ver,
            "layers": [{**row, **integers.get(row["layer"], {})} for row in rows],
            "regions": [list(region) for region in self.partition.regions],
            "instructions": [len(region.program.words) for region in self.regions],
            "output_error": self.output_error,
            "output_error_bound": self.output_error_bound,
        }

    @cached_property
    def observed(self) -> ObservedModel:
        """The model in floats, which also gives the tensors of all regions; compiled when first needed."""
        return ObservedModel(self.floats, {name: self.graph.variables[name] for name in sorted(self.network.fractions)})

    def run_regions(self, floats: Mapping[str, NDArray]) -> dict[str, NDArray[np.int8]]:
        """Run the regions on the fast simulator.

        Parameters
        ----------
        floats : mapping
            Tensor of the model to its values: those of the regions' inputs that no region gives.

        Returns
        -------
        dict
            Every tensor that the regions compute, int8 (N, C, H, W).
        """
        given: dict[str, NDArray[np.int8]] = {}
        computed: dict[str, NDArray[np.int8]] = {}
        for region in self.regions:
            for name in region.inputs:
                if name not in given and name not in computed:
                    integers = self.network.integers(name, floats[name])
                    given[name] = to_form(integers, region.shapes[name], region.unfolded.get(name))
            computed |= region.run(given | computed)
        return computed

    @np.errstate(over="ignore", invalid="ignore")  # inputs may overflow in floats, or be NaN
    def accuracy(
        self, samples: Sequence[Mapping[str, NDArray]], found: Sequence[Sequence[NDArray]] | None = None
    ) -> AccuracyReport:
        """Compare with the model in floats.

        Parameters
        ----------
        samples : sequence of mapping
            Inputs by name. Layers are compared on the first one.
        found : sequence of sequences of arrays, optional
            What the compiled model gives for each sample; without it only layers are compared.
        """
        outputs, tensors = self.observed.run(samples[0])
        integers = self.run_regions(tensors)
        shaped = {name: from_form(array, tensors[name].shape) for name, array in integers.items()}
        layers = compare_layers(self.network, tensors, shaped)
        if found is None:
            return AccuracyReport(layers, ())
        expected = [outputs, *(self.observed.run(sample)[0] for sample in samples[1:])]
        names = self.graph.outputs
        if len(names) != len(outputs):  # a tuple leaves the model
            names = tuple(f"output {at}" for at in range(len(outputs)))
        rows = tuple(
            compare(
                name, "output", None, *(np.stack([result[at] for result in results]) for results in (expected, found))
            )
            for at, name in enumerate(names)
        )
        right, given = (np.concatenate([_largest(result[0]) for result in results]) for results in (expected, found))
        return AccuracyReport(layers, rows, float(np.mean(right == given)))


def _largest(array: NDArray) -> NDArray:
    return array.reshape(-1, array.shape[-1]).argmax(axis=1) if array.ndim else np.zeros(1)
