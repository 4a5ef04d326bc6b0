"""Networks on the simulated VTA: programs are what integers in NumPy give, and outputs near the model in floats."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import onnx
from numpy.typing import NDArray

import tvm_ext
from scripts.fuzz.judge import Verdict, judge
from scripts.fuzz.options import Options
from tests.vta.integer_reference import run_network
from tvm_ext.backends.vta.analysis.linter import lint
from tvm_ext.backends.vta.codegen.plans import Plans, tuned_plan
from tvm_ext.backends.vta.codegen.tuned import TunedLayer
from tvm_ext.backends.vta.config import CONFIG_OF_MODEL
from tvm_ext.backends.vta.isa.modules import Module
from tvm_ext.backends.vta.model import offload as offloading
from tvm_ext.backends.vta.model.forms import to_form
from tvm_ext.backends.vta.model.host import HostSpeed
from tvm_ext.backends.vta.model.output_error import share
from tvm_ext.backends.vta.model.region import RegionProgram
from tvm_ext.backends.vta.model.vta_model import VTAModel
from tvm_ext.backends.vta.simulate.reference import ReferenceSimulator
from tvm_ext.backends.vta.simulate.simulator import Simulator
from tvm_ext.backends.vta.timing.costs import costs_of_config
from tvm_ext.backends.vta.timing.cycles import time_program, verify_timeline
from tvm_ext.errors import InputError, VTAProgramError
from tvm_ext.frontend.imported import ImportedModel
from tvm_ext.schedules.vta.conv2d import ORDERS, ConvKnobs

TARGETS = tuple(f"tvm-ext/{name}" for name in CONFIG_OF_MODEL)

SLOW = HostSpeed(macs=1e6, comparisons=1e6, conversions=1e9, start=1e-7)
"""A CPU beside which nearly every layer is faster on VTA, however small the network."""

MOST_STEPS = 20_000
"""Of a program that the reference simulator runs, too, which takes its time."""

FARTHEST = 0.25
"""Error, as a share of the outputs' size: of layers that nobody estimated it of, and of quantised models in floats."""


@dataclass(frozen=True)
class OnVTA:
    """What came of a network.

    Attributes
    ----------
    outputs : list of arrays
        Of the compiled model.
    model : VTAModel
        What was compiled.
    """

    outputs: list[np.ndarray]
    model: VTAModel


def run(imported: ImportedModel, feeds: Mapping[str, np.ndarray], options: Options) -> OnVTA:
    """Compile for VTA and run on the fast simulator.

    Raises
    ------
    TvmExtError
        If the model is refused.
    """
    samples = calibration(feeds, options.samples)
    with _offloading(options) as kept:
        try:
            compiled = _compile(imported, options, samples)
        except InputError as error:
            if samples is not None or "give calibration data" not in str(error):
                raise
            compiled = _compile(imported, options, calibration(feeds, 1))
    return OnVTA(list(options.saved(compiled, tvm_ext.load).run(feeds).values()), kept[-1])


def _compile(imported: ImportedModel, options: Options, samples: dict[str, np.ndarray] | None) -> Any:
    return tvm_ext.compile(imported, options.level, calibration=samples, **options.pipeline())


def calibration(feeds: Mapping[str, np.ndarray], count: int) -> dict[str, np.ndarray] | None:
    """Make samples: the inputs that are compared later, and others like them; None where there are to be none."""
    rng = np.random.default_rng(count)
    if not count:
        return None
    return {
        name: np.stack([x, *(rng.permutation(x.reshape(-1)).reshape(x.shape) for _ in range(count - 1))])
        for name, x in feeds.items()
    }


@contextmanager
def _offloading(options: Options) -> Iterator[list[VTAModel]]:
    """Have layers on VTA as the options say, and keep what comes of it."""
    kept: list[VTAModel] = []
    plain = offloading.offload

    def offload(mod: Any, config: Any, *rest: Any, **more: Any) -> VTAModel:
        if options.layers in ("all", "half"):
            named = mod.clone()
            named["main"] = offloading.named(mod["main"])
            graph = offloading.read_graph(offloading.prepare(named)[0]["main"], config.batch)
            rng = np.random.default_rng(len(graph.layers))
            share_of = {"all": 1.0, "half": 0.5}[options.layers]
            more["forced"] = {layer.name: "vta" if rng.random() < share_of else "cpu" for layer in graph.layers}
        host = None if options.layers == "faster" else SLOW
        kept.append(plain(mod, config, *rest, host=host, **more))
        return kept[-1]

    with mock.patch.object(offloading, "offload", offload):
        if options.schedules == "drawn":
            with mock.patch.object(Plans, "plan", _drawn_plan(Plans.plan)):
                yield kept
        else:
            yield kept


def _drawn_plan(plain: Any) -> Any:
    """Make a method that plans layers with drawn schedules, where one fits."""

    def plan(self: Plans, conv: Any, epilogue: Any) -> Any:
        rng = np.random.default_rng(zlib.crc32(repr(conv).encode()))
        for _ in range(3 if epilogue is not None else 0):
            extents = (conv.batches, conv.out_blocks, conv.out_height, conv.out_width, conv.in_blocks)
            tiles = [int(rng.integers(1, min(extent, 4) + 1)) for extent in extents]
            threads = [int(rng.integers(1, min(extent, 2) + 1)) for extent in (conv.out_blocks, conv.out_height)]
            knobs = ConvKnobs(*tiles, *threads, int(rng.integers(1, min(conv.groups, 3) + 1)))
            try:
                return tuned_plan(self.config, conv, epilogue, TunedLayer(str(rng.choice(list(ORDERS))), knobs, 1, 1))
            except VTAProgramError:
                continue
        return plain(self, conv, epilogue)

    return plan


def verdicts(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], expected: list[np.ndarray], ran: OnVTA
) -> list[Verdict]:
    """Judge a network that ran on VTA.

    Without layers there the outputs are judged as a CPU's. Otherwise every program is compared with integers in NumPy,
    to the bit, and with the reference simulator; the model in floats is judged as a CPU's (one that was quantised by
    its distance: its quantisation was taken out); and the outputs are to be as near to it as is said of them.
    """
    if not ran.model.regions:
        return judge(model, feeds, expected, ran.outputs)
    names = [item.name for item in model.graph.output]
    parameters = [parameter.name for parameter in ran.model.floats["main"].params]
    given, feeds = feeds, dict(zip(parameters, (feeds[item.name] for item in model.graph.input), strict=True))
    wrong = next(_wrong_programs(ran.model, feeds), None)
    if wrong is not None:
        return [Verdict(names[0], "wrong", wrong)]
    for name, ours, theirs in zip(names, ran.outputs, expected, strict=True):
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            return [Verdict(name, "wrong", f"{ours.dtype}{list(ours.shape)} for {theirs.dtype}{list(theirs.shape)}")]
    floats = ran.model.observed.run(feeds)[0]
    if any("Quantize" in node.op_type or node.domain for node in model.graph.node):
        off = share(floats, expected) ** 0.5
        found = [Verdict(names[0], "wrong", f"in floats {off:.3f} off")] if off > FARTHEST else []
    else:
        found = [verdict for verdict in judge(model, given, expected, floats) if verdict.kind == "wrong"]
    bound = ran.model.output_error_bound
    allowed = FARTHEST if bound is None else 3 * bound + 0.02
    off = share(ran.outputs, floats) ** 0.5
    if off > allowed:
        found.append(Verdict(names[0], "wrong", f"outputs {off:.3f} off, expected at most {allowed:.3f}"))
    return found or [Verdict(name, "rounding") for name in names]


def _wrong_programs(model: VTAModel, feeds: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Say what is wrong with programs: values, what hardware would do otherwise, or the cycle model's timeline."""
    _, tensors = model.observed.run(feeds)
    found = model.run_regions(tensors)
    given = {
        name: to_form(model.network.integers(name, tensors[name]), region.shapes[name])
        for region in model.regions
        for name in region.inputs
        if name in tensors
    }
    right = run_network(model.network, given)
    for name, integers in found.items():
        if not np.array_equal(integers, right[name]):
            yield f"layer {name}: {int((integers != right[name]).sum())} of {integers.size} integers are wrong"
    costs = costs_of_config(model.config)
    for number, region in enumerate(model.regions):
        program = region.program
        verify_timeline(time_program(program.instructions, model.config, costs), program.instructions, model.config)
        for finding in lint(program.instructions, model.config, program.image.data, program.image.base):
            yield f"program {number}: {finding}"
        if sum(region.steps().values()) <= MOST_STEPS and not _agree(region, number):
            yield f"program {number}: the simulators differ"


def _agree(region: RegionProgram, number: int) -> bool:
    """Run a program on drawn bytes in both simulators, the reference with noise in its memories and another order."""
    program, rng = region.program, np.random.default_rng(number)
    dram: NDArray[np.uint8] = program.image.data.copy()
    for name in region.inputs:
        at = program.image.regions[name].address - program.image.base
        size = int(np.prod(region.packed_shape(name)))
        dram[at : at + size] = rng.integers(0, 256, size)
    turns = list(itertools.permutations(Module))[number % 6]
    fast = Simulator(program.config).run(program.words, dram, program.image.base)
    slow = ReferenceSimulator(program.config, turns, noise=number).run(program.words, dram, program.image.base)
    return np.array_equal(fast.dram, slow.dram)
