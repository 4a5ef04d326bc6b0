"""Where the time of a region goes: cycles, occupancy, bytes and the roofline, layer by layer.

The roofline is that of Williams, Waterman and Patterson, "Roofline: An Insightful Visual Performance Model for
Multicore Architectures", Communications of the ACM 2009: a layer takes no fewer cycles than its steps, nor than its
bytes need on the memory bus.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tvm_ext.backends.vta.analysis.checks import step_count
from tvm_ext.backends.vta.isa.instructions import Gemm
from tvm_ext.backends.vta.model.partition import Partition
from tvm_ext.backends.vta.model.region import PlacedLayer, RegionProgram
from tvm_ext.backends.vta.timing.costs import CycleCosts
from tvm_ext.backends.vta.timing.cycles import Timeline, bytes_moved, time_program


@dataclass(frozen=True)
class LayerProfile:
    """What one layer takes.

    Attributes
    ----------
    layer, operator : str
    region : int
    cycles : int
        From the end of the layer before to its own; the first ones of a layer overlap with the last ones of that.
    steps : int
        Steps of the matrix unit that the layer itself needs, without those for biases and residuals; of a maximum
        all that there are.
    bytes_read, bytes_written : int
        Between DRAM and the chip, instructions left out.
    least_cycles : int
        By the roofline: steps, or cycles of the bus for the bytes that are read.
    """

    layer: str
    operator: str
    region: int
    cycles: int
    steps: int
    bytes_read: int
    bytes_written: int
    least_cycles: int

    @property
    def occupancy(self) -> float:
        """Share of the cycles in which the matrix unit does the layer's own steps."""
        return self.steps / self.cycles if self.cycles else 0.0

    @property
    def roofline(self) -> float:
        """Share of the speed that the roofline allows."""
        return self.least_cycles / self.cycles if self.cycles else 0.0


@dataclass(frozen=True)
class Profile:
    """Profiles of all layers of a model that run on VTA.

    Attributes
    ----------
    costs : CycleCosts
    layers : tuple of LayerProfile
    region_cycles : tuple of int
        Cycles of each region's program.
    partition : Partition, optional
        Of the model: what runs beside VTA takes time as well.
    names : mapping
        Layer to the names that the model file has for its nodes.
    """

    costs: CycleCosts
    layers: tuple[LayerProfile, ...]
    region_cycles: tuple[int, ...]
    partition: Partition | None = None
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def cycles(self) -> int:
        """Cycles of all regions."""
        return sum(self.region_cycles)

    def seconds(self) -> dict[str, float]:
        """Return where the time of the whole model goes: VTA at its clock, and estimates of the rest."""
        found = {"vta": self.cycles / (self.costs.clock_mhz * 1e6)}
        if self.partition is not None:
            found["starting programs"] = self.partition.start_seconds
            found["conversions at the borders"] = self.partition.conversion_seconds
            found["layers on the CPU"] = self.partition.cpu_layer_seconds
            found["other operators on the CPU"] = self.partition.other_seconds
        return found

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        width = max((len(row.layer) for row in self.layers), default=5)
        yield (
            f"{'layer':{width}} {'operator':11} {'cycles':>9} {'ms':>7} {'occupancy':>9} {'read KiB':>9} "
            f"{'written KiB':>11} {'of roofline':>11}"
        )
        milliseconds = 1 / (self.costs.clock_mhz * 1e3)
        for row in self.layers:
            yield (
                f"{row.layer:{width}} {row.operator:11} {row.cycles:9} {row.cycles * milliseconds:7.3f} "
                f"{row.occupancy:9.1%} {row.bytes_read / 1024:9.1f} {row.bytes_written / 1024:11.1f} "
                f"{row.roofline:11.1%}" + "".join(f"  {name}" for name in self.names.get(row.layer, ()))
            )
        steps = sum(row.steps for row in self.layers)
        share = steps / self.cycles if self.cycles else 0.0
        yield (
            f"{'all':{width}} {'':11} {self.cycles:9} {self.cycles * milliseconds:7.3f} {share:9.1%}   "
            f"at {self.costs.clock_mhz} MHz ({self.costs.name})"
        )
        if self.partition is not None:
            parts = self.seconds()
            yield f"whole model: {1e3 * sum(parts.values()):.3f} ms, estimated: " + ", ".join(
                f"{name} {1e3 * value:.3f} ms" for name, value in parts.items()
            )


def profile_regions(
    regions: Iterable[RegionProgram],
    costs: CycleCosts,
    partition: Partition | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
) -> Profile:
    """Time the programs of a model's regions by the cycle model; see :class:`Profile` for the rest."""
    rows: list[LayerProfile] = []
    totals = []
    for number, region in enumerate(regions):
        timeline = time_program(region.program.instructions, region.program.config, costs)
        totals.append(timeline.cycles)
        rows.extend(_profile(number, region, timeline))
    return Profile(costs, tuple(rows), tuple(totals), partition, names or {})


def _profile(number: int, region: RegionProgram, timeline: Timeline) -> Iterator[LayerProfile]:
    config, costs, before = region.program.config, timeline.costs, 0
    for placed in region.layers:
        instructions = region.program.instructions[placed.begin : placed.end]
        end = max([before, *(interval.end for interval in timeline.intervals[placed.begin : placed.end])])
        moved = bytes_moved(instructions, config)
        written = moved.pop("out")
        read = sum(moved.values()) - moved["instructions"]
        steps = placed.conv.steps if placed.layer.weights is not None else _gemm_steps(instructions)
        least = max(steps, -(-read // costs.bus_bytes))
        yield LayerProfile(placed.layer.name, placed.layer.operator, number, end - before, steps, read, written, least)
        before = end


def _gemm_steps(instructions: Sequence[object]) -> int:
    return sum(step_count(found) for found in instructions if isinstance(found, Gemm) and not found.reset_reg)


def packed_convolution_cycles(profile: Profile, layers: Iterable[PlacedLayer], block: int) -> int:
    """Sum up the convolutions whose channels fill blocks: what upstream counted for ResNet-18.

    Parameters
    ----------
    profile : Profile
    layers : iterable of PlacedLayer
    block : int
        Channels of a block.
    """
    counted = {
        placed.layer.name
        for placed in layers
        if placed.layer.operator == "conv2d" and placed.layer.in_shape[1] % block == 0
    }
    return sum(row.cycles for row in profile.layers if row.layer in counted)
