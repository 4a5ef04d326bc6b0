"""A model for VTA: what VTA can run becomes regions in integers, the rest stays on the CPU, all in one module.

Kernels between a region and the rest quantise and pack, or unpack and dequantise; layouts change nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from tvm_ext.backends.vta.codegen.compute import Epilogue
from tvm_ext.backends.vta.codegen.geometry import Conv2d
from tvm_ext.backends.vta.codegen.plans import Plans
from tvm_ext.backends.vta.codegen.tuned import TunedLayer
from tvm_ext.backends.vta.config import VTAConfig, config_of_target
from tvm_ext.backends.vta.model.borders import with_regions
from tvm_ext.backends.vta.model.cut import Device
from tvm_ext.backends.vta.model.embed import embed_layers
from tvm_ext.backends.vta.model.fits import NOTHING, Calibrated
from tvm_ext.backends.vta.model.forms import in_forms
from tvm_ext.backends.vta.model.host import HostSpeed
from tvm_ext.backends.vta.model.layer_error import lossy_layers
from tvm_ext.backends.vta.model.layers import IntegerNetwork, Layer
from tvm_ext.backends.vta.model.notes import embedded_notes, layer_notes
from tvm_ext.backends.vta.model.output_error import assign_within
from tvm_ext.backends.vta.model.partition import Partition, layer_times, plan_partition
from tvm_ext.backends.vta.model.quantize import quantize_network
from tvm_ext.backends.vta.model.quantized_model import dequantize_constants, remove_quantization
from tvm_ext.backends.vta.model.region import RegionProgram, build_region, geometry
from tvm_ext.backends.vta.model.relax_layers import ModelGraph, read_graph
from tvm_ext.backends.vta.model.tuned_region import best_region
from tvm_ext.backends.vta.model.unfold import unfold_layers
from tvm_ext.backends.vta.model.vta_model import VTAModel
from tvm_ext.backends.vta.timing.costs import CycleCosts, costs_of_config
from tvm_ext.embedding.relax.embed_operators import has_solver
from tvm_ext.frontend.imported import ImportedModel
from tvm_ext.graph.origins import named
from tvm_ext.options import Embed
from tvm_ext.passes.fold_batch_norm import fold_batch_norm
from tvm_ext.passes.fold_constants import fold_constants, fold_the_rest
from tvm_ext.system.compile_lock import one_at_a_time

LARGEST_ERROR = 0.05
"""Share of its results' size that a layer alone may lose in integers."""
LARGEST_OUTPUT_ERROR = 0.05
"""Share of the outputs' size that all layers together may lose."""


@one_at_a_time
# What is too large for 8 bits, or for the floats on the way there, is clipped, and then counts as what a layer loses.
@np.errstate(over="ignore", invalid="ignore")
def offload(
    mod: tvm.IRModule,
    config: VTAConfig,
    costs: CycleCosts,
    calibration: Mapping[str, NDArray] | None = None,
    host: HostSpeed | None = None,
    forced: Mapping[str, Device] | None = None,
    largest_error: float = LARGEST_ERROR,
    largest_output_error: float = LARGEST_OUTPUT_ERROR,
    tuned: Mapping[str, TunedLayer] | None = None,
    embed: Embed = "uncovered",
) -> VTAModel:
    """Move what VTA can run faster than the CPU to VTA.

    Parameters
    ----------
    mod : IRModule
        With a Relax function ``main`` of fixed shapes, as importing a model gives it.
    config : VTAConfig
    costs : CycleCosts
        Of the implementation that times are estimated and tiles chosen for.
    calibration : mapping from input name to array, optional
        Samples; a model that is quantised everywhere needs none.
    host : HostSpeed, optional
        Of the CPU beside VTA.
    forced : mapping, optional
        Layer to ``vta`` or ``cpu``, whatever is faster.
    largest_error : float
        Share of its results' size that a layer alone may lose in integers on a sample; one that loses more stays on
        the CPU.
    largest_output_error : float
        Share of the outputs' size that may be lost: layers whose error is not worth the time that they save stay on the
        CPU until the bound for inputs that were not seen is below 19 twentieths of it. It is estimated on samples that
        scales and weights were not fitted to, and is the wider the fewer these are and the more they differ.
    tuned : mapping, optional
        Tuned schedules, as :func:`tvm_ext.backends.vta.codegen.tuned.read_tuned` gives them.
    embed : str
        ``uncovered``: the matrix unit is embedded into operators that no rule takes, dilated convolutions or those of
        one dimension (:mod:`tvm_ext.backends.vta.model.embed`), where that is faster than the CPU; ``all``: into those
        that a rule takes, too; ``off``: into none. In models that are quantised already data and result must be.

    Returns
    -------
    VTAModel

    Raises
    ------
    InputError
        If the model has open dimensions, calibration data does not fit it, or is missing.
    """
    mod = mod.clone()
    mod["main"] = named(mod["main"])
    floats, fixed = prepare(mod)
    move = partial(
        _moved, mod, config=config, costs=costs, calibration=calibration, host=host, forced=forced,
        largest_error=largest_error, largest_output_error=largest_output_error, tuned=tuned,
    )  # fmt: skip
    skip: set[str] = set()
    reasons: dict[str, str] = {}
    plain = read_graph(floats["main"], config.batch)
    while embed != "off" and has_solver():
        known = dict(fixed)
        written, found, left = embed_layers(
            floats, plain.refused, config, costs, host or HostSpeed(), skip, embed == "all", known
        )
        reasons |= left
        if not found:
            break
        model = move(written, known)
        missed = _missed(model.graph, model.partition, found)
        if not missed:
            names = {variable: name for name, variable in model.graph.variables.items()}
            embedded = [names[variable] for variable in found.values()]
            reasons = {name: reason for name, reason in reasons.items() if name not in found}  # it may be so by now
            return replace(model, notes=(*model.notes, *embedded_notes(model.graph, embedded, plain, reasons)))
        reasons |= dict.fromkeys(missed, "as a convolution on stored data it would stay on the CPU")
        skip |= missed  # kernels that store data for VTA are of no use to the CPU
    model = move(floats, fixed)
    return replace(model, notes=(*model.notes, *embedded_notes(plain, (), plain, reasons)))


def _moved(
    mod: tvm.IRModule,
    floats: tvm.IRModule,
    fixed: Mapping[relax.Var, int],
    config: VTAConfig,
    costs: CycleCosts,
    calibration: Mapping[str, NDArray] | None,
    host: HostSpeed | None,
    forced: Mapping[str, Device] | None,
    largest_error: float,
    largest_output_error: float,
    tuned: Mapping[str, TunedLayer] | None,
) -> VTAModel:
    """Move layers of a model that was prepared; ``mod`` is what it was before."""
    graph = _unfolded(read_graph(floats["main"], config.batch), config.block)
    # In a quantised model the result of a layer can be observed after an operator that keeps its steps.
    known = {name: fixed[variable] for name, variable in graph.variables.items() if variable in fixed}
    plan = partial(
        plan_partition, graph.nodes, graph.outputs, config, costs, host, forced,
        times=layer_times(graph.nodes, config, costs, host),
    )  # fmt: skip
    calibrated: Calibrated | None = None
    lossy: dict[str, str] = {}
    while True:
        partition = plan(refused=lossy)
        layers = [layer for layer in graph.layers if layer.name in partition.on_vta]
        if not layers:
            return VTAModel(mod, floats, graph, partition, NOTHING, (), config, layer_notes(graph, partition), 0.0, 0.0)
        if calibration is not None and calibrated is None:
            calibrated = Calibrated.of(floats, graph, layers, calibration)
        if calibrated is None:
            network = quantize_network(layers, {}, known)
            break
        # With fewer layers on VTA no other one gains by being there, so that what was observed is enough.
        network = calibrated.parts[0].network(layers, known)
        worse = lossy_layers(network, in_forms(layers, calibrated.first), largest_error)
        worse = {name: reason for name, reason in worse.items() if name not in (forced or {})}
        if not worse:
            break
        lossy |= worse
    estimate = None
    if calibrated is not None:

        def layers_of(chosen: Partition) -> list[Layer]:
            return [layer for layer in graph.layers if layer.name in chosen.on_vta]

        partition, estimate = assign_within(
            calibrated.errors,
            partial(plan, refused=lossy),
            lambda chosen: calibrated.networks(layers_of(chosen), known),
            partition,
            (network, *calibrated.networks(layers, known, 1)),
            largest_output_error,
        )
        network = calibrated.whole.network(layers_of(partition), known)
    found = (None, None) if estimate is None else (estimate.error, estimate.bound)
    notes = layer_notes(graph, partition, estimate, largest_output_error)
    if not network.layers:
        return VTAModel(mod, floats, graph, partition, network, (), config, notes, *found)
    plans = Plans(config, costs, tuned)
    regions, taken = _build_regions(graph, partition, network, plans)
    if tuned:
        notes = (*notes, f"{taken} layers on VTA have tuned schedules, those that shorten the whole program")
    written = with_regions(floats, regions, network)
    return VTAModel(written, floats, graph, partition, network, regions, config, notes, *found)


@one_at_a_time
def offload_imported(
    imported: ImportedModel,
    target: tvm.target.Target,
    calibration: Mapping[str, NDArray] | None = None,
    costs: CycleCosts | None = None,
    tuned: Mapping[str, TunedLayer] | None = None,
) -> VTAModel:
    """Move layers of an imported model to the VTA of a target; see :func:`offload`.

    Parameters
    ----------
    imported : ImportedModel
    target : tvm.target.Target
        With one of the tags ``tvm-ext/vta-...``.
    calibration : mapping, optional
        By the names that the model file has for its inputs.
    costs : CycleCosts, optional
        Those of the target's implementation if left out.
    tuned : mapping, optional
    """
    config = config_of_target(target)
    given = None if calibration is None else imported.by_parameter(calibration)
    return offload(imported.mod, config, costs or costs_of_config(config), given, tuned=tuned)


def layers_on_vta(
    mod: tvm.IRModule, config: VTAConfig, costs: CycleCosts, host: HostSpeed | None = None
) -> list[tuple[Conv2d, Epilogue]]:
    """List the convolutions and products of a model that are faster on VTA, one entry for each time they occur.

    Operators that the matrix unit is embedded into are among them, as the convolutions that they become. Which of them
    its integers are good enough for is not asked; what is shifted out of their sums is not known.
    """
    floats, fixed = prepare(mod)
    skip: set[str] = set()
    refused = read_graph(floats["main"], config.batch).refused
    while True:
        written, found = floats, dict[str, relax.Var]()
        if has_solver():
            known = dict(fixed)
            written, found, _ = embed_layers(floats, refused, config, costs, host or HostSpeed(), skip, fractions=known)
        graph = _unfolded(read_graph(written["main"], config.batch), config.block)
        times = layer_times(graph.nodes, config, costs, host)
        partition = plan_partition(graph.nodes, graph.outputs, config, costs, host, times=times)
        missed = _missed(graph, partition, found)
        if not missed:
            break
        skip |= missed
    return [
        (geometry(layer, config), Epilogue(8, 0, 127, "weights", layer.residual is not None, first_shift=8))
        for layer in graph.layers
        if layer.name in partition.on_vta and layer.weights is not None
    ]


def _missed(graph: ModelGraph, partition: Partition, found: Mapping[str, relax.Var]) -> set[str]:
    """Name the embedded operators whose convolutions would stay on the CPU."""
    names = {variable: name for name, variable in graph.variables.items()}
    on_vta = {name for layer in graph.layers if layer.name in partition.on_vta for name in layer.covers}
    return {name for name, variable in found.items() if names.get(variable) not in on_vta}


def prepare(mod: tvm.IRModule) -> tuple[tvm.IRModule, dict[relax.Var, int]]:
    """Bring a model into the form that layers are read from: floats, batch norm and constants folded.

    Returns
    -------
    IRModule
    dict
        Variable to the bits after the binary point, where the model was quantised.
    """
    dead_code, canonical = relax.transform.DeadCodeElimination(), relax.transform.CanonicalizeBindings()
    folding = [fold_batch_norm(), dead_code, fold_constants(), fold_the_rest(), dead_code]
    mod = dequantize_constants(canonical(mod))
    # Passes make variables anew, so that what is known of a variable has to be found out after the last of them.
    return remove_quantization(tvm.transform.Sequential([*folding, canonical])(mod))


def _build_regions(
    graph: ModelGraph, partition: Partition, network: IntegerNetwork, plans: Plans
) -> tuple[tuple[RegionProgram, ...], int]:
    """Write the programs of regions, and count their layers with tuned schedules."""
    regions, taken = [], 0
    integers = {integer.layer.name: integer for integer in network.layers}
    for names in partition.regions:
        inside = set(names)
        read = [name for at in names for name in integers[at].layer.inputs if name not in inside]
        outside = {name for node in graph.nodes if node.name not in inside for name in node.inputs}
        given = [name for name in names if name in outside or name in graph.outputs]
        build = partial(
            build_region, [integers[at] for at in names], list(dict.fromkeys(read)), given, plans.config, plans.costs
        )
        region, count = best_region(build, plans)
        regions.append(region)
        taken += count
    return tuple(regions), taken


def _unfolded(graph: ModelGraph, block: int) -> ModelGraph:
    """Rewrite the layers that gain by an unfolded input."""
    changed = unfold_layers(graph.layers, block)
    nodes = tuple(replace(node, layer=changed.get(node.name, node.layer)) for node in graph.nodes)
    return replace(graph, nodes=nodes)
