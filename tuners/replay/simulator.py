"""An analytic model of a tiled convolution on one CPU: the landscape that tuners are compared on without measuring.

The template has the eight knobs of the GPU template of the source, with a CPU's meaning: filters, rows and columns are
each split in three (over tasks, within a cache tile, in registers; the innermost filters are the vector), the reduction
axes in two, and two knobs rule unrolling.

The time of a configuration is the longest of what its parts need (arithmetic, loads from the first-level cache, traffic
of second-level cache and memory), plus what loops and tasks cost, as in a roofline. Two further factors make it as
uneven as real landscapes are: one fixed for each configuration (alignment, conflicts, scheduling by the compiler), and
one that changes from measurement to measurement. Configurations fail as they do in practice: the register tile does not
fit the stack, the unrolled loop takes the compiler too long, a vector is not a whole number of quarter registers, the
run takes longer than the limit. Nothing is fitted to a real machine: the model serves to compare tuners.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvm_ext.tuners.replay.tasks import ConvolutionTask
from tvm_ext.tuners.space import ConfigSpace, Knob

UNROLL_STEPS = (0, 16, 64, 512)


@dataclass(frozen=True)
class SimulatedMachine:
    """What the model knows of a CPU (cycles, bytes, floats)."""

    clock: float = 3.0e9
    cores: int = 2
    lanes: int = 16
    registers: int = 32
    fma_per_cycle: float = 2.0
    fma_latency: int = 4
    loads_per_cycle: float = 2.0
    l1_bytes: int = 32 << 10
    l2_bytes: int = 1 << 20
    l2_bytes_per_cycle: float = 32.0
    memory_bytes_per_cycle: float = 5.0
    instruction_bytes: int = 32 << 10
    loop_cycles: float = 1.5
    task_cycles: float = 3000.0
    stack_bytes: int = 16 << 10
    most_unrolled: int = 6000
    time_limit: float = 30.0
    """A run longer than this many times the least possible is stopped."""


def convolution_space(task: ConvolutionTask) -> ConfigSpace:
    """Make the space of the eight knobs of a convolution."""
    size = task.output_size
    return ConfigSpace(
        [
            Knob.split("tile_f", task.outputs, 3),
            Knob.split("tile_y", size, 3),
            Knob.split("tile_x", size, 3),
            Knob.split("tile_rc", task.inputs, 2),
            Knob.split("tile_ry", task.kernel, 2),
            Knob.split("tile_rx", task.kernel, 2),
            Knob("auto_unroll_max_step", UNROLL_STEPS),
            Knob("unroll_explicit", (False, True)),
        ]
    )


class SimulatedLandscape:
    """Run times of one convolution, for any configuration, without enumeration.

    Parameters
    ----------
    task : ConvolutionTask
    machine : SimulatedMachine, optional
    unevenness, noise : float
        Standard deviations of the logarithms of the factor of each configuration, and of each measurement.
    """

    def __init__(
        self,
        task: ConvolutionTask,
        machine: SimulatedMachine | None = None,
        unevenness: float = 0.03,
        noise: float = 0.01,
    ) -> None:
        self.task = task
        self.machine = machine or SimulatedMachine()
        self.space = convolution_space(task)
        self.unevenness, self.noise = unevenness, noise
        self._choices = [np.array(knob.choices, dtype=np.float64) for knob in self.space.knobs]

    def seconds(self, vectors: np.ndarray) -> np.ndarray:
        """Give the true run time (n) of vectors (n × knobs); infinite where the configuration fails."""
        ideal = self.modelled_seconds(vectors)
        keys = np.array(self.space.keys(vectors), dtype=np.uint64)
        return ideal * np.exp(self.unevenness * _normal(keys, 0))

    def measure(self, vectors: np.ndarray, seed: int) -> np.ndarray:
        """Give measured run times (n): with noise that depends on the seed and the configuration alone."""
        keys = np.array(self.space.keys(vectors), dtype=np.uint64)
        return self.seconds(vectors) * np.exp(self.noise * _normal(keys, seed + 1))

    def modelled_seconds(self, vectors: np.ndarray) -> np.ndarray:
        """Give what the model alone says (n); infinite where the configuration fails."""
        task, cpu = self.task, self.machine
        choices = [table[vectors[:, position]] for position, table in enumerate(self._choices)]
        filters, rows, columns, channels, kernel_rows, kernel_columns = choices[:6]
        unroll_step, explicit = choices[6], choices[7] > 0
        f_out, f_mid, f_in = filters.T
        y_out, y_mid, y_in = rows.T
        x_out, x_mid, x_in = columns.T
        c_in, ky_in, kx_in = channels[:, 1], kernel_rows[:, 1], kernel_columns[:, 1]
        reduction = task.inputs * task.kernel**2
        inner_reduction = c_in * ky_in * kx_in

        # Arithmetic: vectors that are not full, accumulators too few to hide latency or too many for registers.
        vectors_wide = np.ceil(f_in / cpu.lanes)
        accumulators = vectors_wide * y_in * x_in
        blocks = task.outputs / f_in * (task.output_size**2 / (y_in * x_in))
        fma = blocks * reduction * accumulators
        hidden = np.minimum(1.0, accumulators / (cpu.fma_latency * cpu.fma_per_cycle))
        spilled = np.maximum(0.0, accumulators + vectors_wide + 1 - cpu.registers) / accumulators
        arithmetic = fma / cpu.fma_per_cycle / hidden * (1.0 + 2.0 * spilled)

        # Loads: one broadcast for each point of the tile, one vector of weights for each vector; strided columns cost.
        loads = blocks * reduction * (y_in * x_in + vectors_wide) / cpu.loads_per_cycle
        # Accumulators are written and read again whenever the inner reduction is left.
        loads += 2.0 * blocks * accumulators * (reduction / inner_reduction) / cpu.loads_per_cycle

        # What the inner reduction of a cache tile touches, and how often it is fetched again.
        tile_y, tile_x, tile_f = y_mid * y_in, x_mid * x_in, f_mid * f_in
        patch = c_in * ((tile_y - 1) * task.stride + ky_in) * ((tile_x - 1) * task.stride + kx_in) * 4
        weights = tile_f * inner_reduction * 4
        sums = tile_f * tile_y * tile_x * 4
        tiles = (task.outputs / tile_f) * (task.output_size**2 / (tile_y * tile_x)) * (reduction / inner_reduction)
        fits_l1 = patch + weights + sums <= cpu.l1_bytes
        register_patch = c_in * ((y_in - 1) * task.stride + ky_in) * ((x_in - 1) * task.stride + kx_in) * 4
        refetched = (tile_f / f_in) * (tile_y * tile_x / (y_in * x_in)) * (register_patch + f_in * inner_reduction * 4)
        l2_traffic = tiles * np.where(fits_l1, patch + weights + 2 * sums, refetched + 2 * sums)
        fits_l2 = patch * task.inputs / c_in + weights * reduction / inner_reduction + sums <= cpu.l2_bytes
        passes = (task.outputs / tile_f) * (task.output_size**2 / (tile_y * tile_x))
        whole = (patch * task.inputs / c_in + weights * reduction / inner_reduction + sums) * passes
        least = 4.0 * (task.inputs * task.size**2 + task.outputs * (reduction + task.output_size**2))
        memory_traffic = np.where(fits_l2, np.minimum(whole, 8 * least), l2_traffic)

        # Loops: what is unrolled costs nothing but instructions; those have to fit their cache.
        body = accumulators * inner_reduction
        unrolled = body <= unroll_step
        trips = np.where(unrolled, reduction / inner_reduction, reduction)
        loops = blocks * trips * cpu.loop_cycles * np.where(explicit | ~unrolled, 1.0, 1.25)
        code = np.where(unrolled & explicit, body, np.minimum(body, accumulators * kx_in)) * 8
        front_end = np.where(code > cpu.instruction_bytes, 1.5, 1.0)

        cycles = (
            np.maximum.reduce([arithmetic * front_end, loads, l2_traffic / cpu.l2_bytes_per_cycle])
            + 0.3 * np.minimum(arithmetic, loads)
            + loops
        )
        tasks = f_out * y_out * x_out
        balance = np.ceil(tasks / cpu.cores) * cpu.cores / tasks
        busy = np.maximum(cycles / cpu.cores * balance, memory_traffic / cpu.memory_bytes_per_cycle)
        seconds = (busy + tasks * cpu.task_cycles / cpu.cores) / cpu.clock

        fails = accumulators * cpu.lanes * 4 > cpu.stack_bytes
        fails |= explicit & (accumulators * inner_reduction > cpu.most_unrolled) & (unroll_step > 0)
        fails |= (f_in > 4) & (f_in % 4 != 0)
        fails |= seconds > cpu.time_limit * self.least_seconds()
        return np.where(fails, np.inf, seconds)

    def least_seconds(self) -> float:
        """Give the time at the peak rate of the machine: no configuration is faster."""
        cpu = self.machine
        return self.task.flops / (2 * cpu.lanes * cpu.fma_per_cycle * cpu.cores * cpu.clock)


def _normal(keys: np.ndarray, stream: int) -> np.ndarray:
    """Draw standard normal numbers that depend on the keys (n) and the stream alone.

    Hashing: the finaliser of Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """

    def uniform(salt: int) -> np.ndarray:
        mixed = keys + np.uint64((0x9E3779B97F4A7C15 * (2 * stream + salt + 1)) % 2**64)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)) / 2.0**53

    return np.sqrt(-2.0 * np.log1p(-uniform(0))) * np.cos(2.0 * np.pi * uniform(1))
