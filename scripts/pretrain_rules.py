"""Measure configurations of the schedule rules' own spaces, and train a cost model on them.

Run: python scripts/pretrain_rules.py measure [--keep FILE] [--turns N] [--seed N]
     python scripts/pretrain_rules.py train [--keep FILE] -o ARTEFACT

``measure`` goes over the kernels of ``pretrain_loops.py`` again and again, for each of three instruction sets, one
configuration a turn: a random one, the one that the rule thinks best of many random ones, a change of the rule's own
choice, or a change of the fastest so far. It is compiled and timed in turns with the rule's own choice in a process of
its own, by the processor time of one thread, so that other work disturbs little. A line of the file is kernel,
instruction set, choices, and the time as a multiple of that of the rule's own choice.
``bench_hardware_aware.py --rule-spaces`` says how well kernels are ordered that were not trained on.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ["TVM_NUM_THREADS"] = "1"

import numpy as np
import tvm

from scripts.pretrain_loops import apart, kernels
from scripts.results import add_row, read_rows
from tvm_ext.errors import TuningError
from tvm_ext.options import PipelineOptions
from tvm_ext.tuners.measure.code import build
from tvm_ext.tuners.measure.measurer import arguments_of
from tvm_ext.tuners.pretrained.artefact import LOOP_NESTS, Pretrained, Trained
from tvm_ext.tuners.space import Vector
from tvm_ext.tuning.pretraining import Groups, add_measurements, train_groups
from tvm_ext.tuning.tasks import Task, kernels_to_tune

KEPT = ROOT / "docs/results/rule_spaces.jsonl"
COMPILING = 20
"""Seconds of the processor that compiling and timing a candidate may take."""

ROUNDS, SECONDS = 5, 0.004
"""A candidate and the rule's choice are timed so often in turns, for so many seconds or once."""

HOPELESS = 3.0
"""What takes so many times as long as the rule's choice is timed once."""

DRAWN = 64
"""Of so many random configurations the one that the rule thinks best is taken."""


OTHERS = 3
"""One in so many kernels is measured for other instruction sets as well."""


MEASURED_ON = "znver4"
"""The processor that was measured on, which runs all three instruction sets; LLVM's names of two levels of x86-64."""

PROCESSORS = {"avx512": MEASURED_ON, "avx2": "x86-64-v3", "sse4": "x86-64-v2"}


def targets() -> dict[str, tvm.target.Target]:
    """Give targets of one core by their instruction sets."""
    rows = {name: {"kind": "llvm", "mcpu": cpu, "num-cores": 1} for name, cpu in PROCESSORS.items()}
    return {name: tvm.target.Target(row) for name, row in rows.items()}


@dataclass
class RuleKernel:
    """The kernel of a model with the most arithmetic, in the space of the rule that takes it.

    Attributes
    ----------
    task : Task
    target : Target
    known : dict
        Of configurations that were measured the time as a multiple of the rule's choice's; None where one failed.
    """

    task: Task
    target: tvm.target.Target
    known: dict[Vector, float | None] = field(default_factory=dict)

    @classmethod
    def of(cls, make: Callable[[], tvm.IRModule], target: tvm.target.Target) -> RuleKernel | None:
        """Find it; None where no rule has anything to choose.

        Winograd's kernels have nothing to choose: their convolutions are computed directly then.
        """
        for winograd in (True, False):
            tasks = kernels_to_tune(make(), target, here=False, options=PipelineOptions(winograd=winograd))
            if tasks and tasks[0].space.space.default is not None:
                return cls(tasks[0], target)
        return None

    def propose(self, turn: int, rng: np.random.Generator) -> Vector | None:
        """Choose what to measure; None where that was measured before."""
        space = self.task.space.space
        kind = turn % 4
        if kind < 2:
            drawn = space.random(rng, DRAWN if kind and space.cost is not None else 1)
            vector = drawn[int(np.argmin(space.cost(drawn)))] if len(drawn) > 1 and space.cost else drawn[0]
        else:
            worked = {row: ratio for row, ratio in self.known.items() if ratio is not None}
            start = space.default if kind == 2 or not worked else min(worked, key=lambda row: worked[row])
            changed = space.changes(np.array([start]))
            vector = changed[rng.integers(len(changed))]
        found = tuple(vector.tolist())
        return None if found in self.known or found == tuple(space.default or ()) else found

    @cached_property
    def _own(self) -> Any:
        assert self.task.space.space.default is not None
        schedule = self.task.space.schedule(self.task.space.space.default)
        return build(schedule.mod, self.target)["main"]

    def measure(self, vector: Vector) -> float | None:
        """Time a configuration as a multiple of the rule's choice, in a process of its own; None where that fails."""
        schedule = self.task.space.schedule(vector)
        own = self._own
        found = None if schedule is None else apart(lambda: self._ratio(schedule.mod, own), COMPILING)
        self.known[vector] = found
        return found

    def _ratio(self, mod: tvm.IRModule, own: Any) -> float:
        function = build(mod, self.target)["main"]
        rng = np.random.default_rng(0)
        tensors = [tvm.runtime.tensor((rng.random(shape) + 0.5).astype(dtype)) for shape, dtype in arguments_of(mod)]

        def seconds(run: Any) -> float:
            start, count = time.thread_time(), 0
            while not count or time.thread_time() - start < SECONDS:
                run(*tensors)
                count += 1
            return (time.thread_time() - start) / count

        ratios = []
        seconds(own)
        for _ in range(ROUNDS):
            ratios.append(seconds(function) / seconds(own))
            if ratios[0] > HOPELESS:
                break
        return float(np.median(ratios))

    def choices(self, vector: Vector) -> list[Any]:
        """Spell a configuration so that it is found again where a space has got other choices."""
        return [knob.choices[at] for knob, at in zip(self.task.space.space.knobs, vector, strict=True)]

    def vector(self, choices: Sequence[Any]) -> Vector | None:
        """Find a configuration that was spelt; None where the space has it no more."""
        knobs = self.task.space.space.knobs
        row = [tuple(choice) if isinstance(choice, list) else choice for choice in choices]
        if len(row) != len(knobs) or any(choice not in knob.choices for knob, choice in zip(knobs, row, strict=True)):
            return None
        return tuple(knob.choices.index(choice) for knob, choice in zip(knobs, row, strict=True))


def measured_kernels() -> dict[tuple[str, str], Callable[[], tvm.IRModule]]:
    """Name the kernels that are measured, with the instruction set."""
    makers = kernels()
    some = dict(list(makers.items())[::OTHERS])
    return {
        (name, kind): make
        for kind in PROCESSORS
        for name, make in (makers if PROCESSORS[kind] == MEASURED_ON else some).items()
    }


def known_kernels(
    rows: Sequence[dict[str, Any]], makers: Mapping[tuple[str, str], Callable[[], tvm.IRModule]]
) -> dict[tuple[str, str], RuleKernel]:
    """Make kernels, with what the rows say of them; those without anything to choose are left out."""
    known: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        known.setdefault((row["kernel"], row["target"]), []).append(row)
    found, processors = {}, targets()
    for key, make in makers.items():
        kernel = RuleKernel.of(make, processors[key[1]])
        if kernel is not None:
            for row in known.get(key, ()):
                vector = kernel.vector(row["choices"])
                if vector is not None:
                    kernel.known[vector] = row["ratio"]
            found[key] = kernel
    return found


def measure(keep: Path, turns: int, seed: int) -> None:
    """Measure one configuration of every kernel, so many times; lines are added to the file."""
    rng = np.random.default_rng(seed)
    found = known_kernels(read_rows(keep), measured_kernels())
    print(f"{len(found)} kernels, {sum(len(kernel.known) for kernel in found.values())} measurements", flush=True)
    for turn in range(turns):
        for (name, kind), kernel in found.items():
            vector = kernel.propose(turn, rng)
            if vector is not None:
                row = {"kernel": name, "target": kind, "choices": kernel.choices(vector)}
                add_row(keep, row | {"ratio": kernel.measure(vector)})
        print(f"turn {turn + 1} of {turns}", flush=True)


def measured(kernel: RuleKernel) -> tuple[np.ndarray, np.ndarray]:
    """Give vectors and scores of what was measured, the rule's own choice among it."""
    known = {tuple(kernel.task.space.space.default or ()): 1.0} | kernel.known
    return np.array(list(known)), np.array([0.0 if ratio is None else 1.0 / ratio for ratio in known.values()])


def groups_of(found: Iterable[RuleKernel]) -> Groups:
    """Sort what was measured by the structure of the spaces."""
    groups: Groups = {}
    for kernel in found:
        if kernel.known:
            add_measurements(groups, kernel.task.space.space, *measured(kernel))
    return groups


def train(keep: Path, output: Path) -> None:
    """Train on all kernels, and write the artefact with the trees for loop nests that it holds."""
    trained, notes = train_groups(groups_of(known_kernels(read_rows(keep), measured_kernels()).values()))
    try:
        before = Pretrained.load(output)
    except TuningError:
        before = Pretrained({})
    loops: dict[Any, Trained] = {LOOP_NESTS: before.of_loop_nests()} if LOOP_NESTS in before.trained else {}
    about = {"structures": notes, "timed": "processor time of one thread of Zen 4, in turns with the rules' choices"}
    Pretrained({**trained, **loops}, {**before.notes, **about}).save(output)
    for row in notes:
        print(f"{row['spaces']:4} kernels, {row['measurements']:6} measurements: {', '.join(row['knobs'])}")
    print(f"{output}: {output.stat().st_size / 1024:.0f} KiB")


def main() -> int:
    """Measure or train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=["measure", "train"])
    parser.add_argument("--keep", type=Path, default=KEPT, help="file of the measurements")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, help="file for train; what else it holds is kept")
    arguments = parser.parse_args()
    if arguments.command == "measure":
        measure(arguments.keep, arguments.turns, arguments.seed)
    elif arguments.output is None:
        parser.error("train needs -o FILE; tuners/pretrained/cpu_kernels.npz is the one that ships")
    else:
        train(arguments.keep, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
