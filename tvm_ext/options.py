"""Options of a compilation: the one place that keyword arguments, the command line and the docs take them from.

Nothing of TVM is imported here, so that the command line can say what there is at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from tvm_ext.errors import OptionError, candidates
from tvm_ext.graph.units import parse_bytes
from tvm_ext.phases import PHASES

Memory = Literal["stock", "arena", "optimal"]
Rewrite = Literal["off", "strict", "fast"]
Fuse = Literal["stock", "mapping-type"]
Precision = Literal["float32", "float16", "bfloat16", "tf32"]
Embed = Literal["off", "uncovered", "all"]
Patches = Literal["off", "auto", "always"]

Kind = Literal["arrays", "choice", "flag", "names", "path", "size"]


def _option(kind: Kind, default: Any, help: str, *choices: str) -> Any:
    """Make a field: what kind of value it takes, and what it is for, in one or two sentences."""
    comparable = kind != "arrays"
    metadata = {"kind": kind, "help": help, "choices": choices}
    return field(default=default, metadata=metadata, repr=comparable, compare=comparable)


@dataclass(frozen=True)
class PipelineOptions:
    """Options of the ``tvm_ext`` pipeline, given as keyword arguments to ``relax.get_pipeline("tvm_ext", ...)``.

    Attributes
    ----------
    disable : tuple of str
        Names of phases to leave out; see :data:`tvm_ext.phases.PHASES`. Without ``legalize``, ``lower`` or ``finalize``
        the module can only be built if it already is in the form that phase produces.
    dump_dir : str or Path, optional
        Folder that receives the module after each phase as ``NN_phase.py`` (TVMScript, constants left out).
    winograd : bool
        Whether 3 x 3 convolutions on a CPU or with CUDA may use Winograd's algorithm: fewer multiplications, somewhat
        larger rounding errors.
    strassen : bool
        Whether products of a text's tokens with constants on a CPU may use Strassen's algorithm: one multiplication in
        eight less, constants that take 7/4 of their memory, somewhat larger rounding errors.
    flush_denormals : bool
        Whether numbers below the smallest one with a full significand (1.2e-38 for float32) may be taken for zero: in
        constants, and in the arithmetic of kernels on x86-64 and AArch64. Other threads and the caller keep their mode.
    memory : str
        Who plans the memory of intermediate tensors. ``stock``: TVM, which lets tensors share storages. ``arena``: one
        storage with planned offsets; kernels run in place and concatenations copy nothing where that is possible, in
        the order that needs least as far as a short search finds. ``optimal``: the same with a longer search,
        concatenations taken apart where that lowers the peak, and neither Winograd convolutions nor Strassen products;
        compilation takes longer, and kernels may be slower. By default ``arena``, and ``optimal`` where
        ``memory_limit`` or ``on_chip_memory`` is given.
    memory_limit : int or str, optional
        Bytes that intermediate tensors and results may take, such as ``262144`` or ``"256KB"``; a module that takes
        more is refused.
    memory_rewriting : bool
        Whether ``optimal`` may take concatenations apart, after which sums are taken in another order; without, results
        are to the bit those of ``stock`` without Winograd convolutions and Strassen products.
    patches : str
        Whether stages of a network of images run strip by strip, so that their tensors are never there as a whole; rows
        between strips are computed twice; also, whether slices of a convolution's channels are convolutions of their
        own, and whether feed-forward blocks and attentions run in groups of hidden features and heads. ``auto``: strips
        and slices on a CPU, where they lower the peak and take, by estimate, no time that could be measured; all of it
        where ``memory_limit`` demands it, for at most half again as much arithmetic; ``always``: wherever it lowers the
        peak for a tenth more; ``off``.
    on_chip_memory : int or str, optional
        Bytes of a memory on the chip, such as ``"256KB"``. With ``memory="optimal"`` the order of the kernels is then
        the one that moves the least to and from the memory off the chip, instead of the one with the least peak.
    rewrite : str
        Whether arithmetic is rewritten by mathematical properties so that it takes fewer operations. ``strict``: the
        same values up to rounding where all of them are finite (infinities may cancel in another order); ``fast``: also
        rules that may overflow where the original does not, or that take for granted that no value is NaN. Off by
        default: it rounds otherwise than the model says, and a few models get slower.
    fuse : str
        Who decides which operators become one kernel. ``stock``: TVM's patterns; ``mapping-type``: a planner that
        combines operators by how their elements map to each other. Off by default: a few models get slower.
    fuse_profiles : str or Path, optional
        File of measured latencies for the fusion ``mapping-type``. Blocks whose fusion pays only sometimes, and those
        that TVM's patterns would make otherwise, are measured while the module is compiled, and noted there for the
        next time; what is not measured is estimated by a model that the file corrects. Entries of another kind of
        machine or version of this package are not used. Off by default: what is compiled then depends on measurements.
    prologues : bool
        Whether data-parallel kernels on a CPU are computed inside the convolutions that read them, while these copy
        their input, where that takes less time.
    inverted_residuals : bool
        Whether chains that begin with a convolution or an average become one kernel on a CPU: expansion, depthwise
        convolution and projection, where that takes no more time; a convolution and the pooling of 2 x 2 behind it;
        squeeze and excitation, whose gate the weights of the next convolution take up; local response normalisation.
        What is between is then never stored as a whole.
    embed : str
        Which operators that multiply and add get kernels around an instruction of the CPU, or layers around VTA's
        matrix unit, whose place in the operator a constraint solver finds. ``uncovered``: those that no rule takes,
        where that should be faster; ``all``: every one that an instruction fits; ``off``: none. Needs the extra
        ``embed``; without its packages none.
    work_dir : str or Path, optional
        Folder of a tuning database, as ``tvm-ext tune --work-dir`` and TVM's own tuners write them: the fastest
        schedule it knows of a kernel is used. One that is entered (``with database:``) needs no option.
    precision : str
        Type of the operands of products and convolutions, which add up in float32, at an error that comes from rounding
        the operands. ``float16``, ``bfloat16`` and ``tf32`` (float32 with 10 bits of mantissa) use the tensor cores of
        a GPU, ``bfloat16`` the instructions of a CPU that has AVX512-BF16, for constant weights and in attention; in
        ``float16`` values beyond 65504 become infinite. By default ``float32``.
    cuda_graphs : bool
        Whether the kernels of a model with known extents are captured as CUDA graphs at the first run and launched
        together from then on. Off by default: it keeps the memory of what is captured.
    calibration : mapping from input name to array, optional
        For a VTA target: inputs that the ranges of integers are chosen on, as many of them along the first axis as
        there are. A model with quantize and dequantize nodes needs none.
    """

    disable: tuple[str, ...] = _option("names", (), "Phases of the pipeline to leave out, comma-separated.")
    dump_dir: str | Path | None = _option("path", None, "Write the module after each phase into this folder.")
    winograd: bool = _option(
        "flag",
        True,
        "Let 3 x 3 convolutions use Winograd's algorithm where it is faster (it rounds somewhat less well).",
    )
    strassen: bool = _option(
        "flag",
        True,
        "Let products of a text's tokens with constants use Strassen's algorithm where it is faster (constants then "
        "take 7/4 of their memory).",
    )
    flush_denormals: bool = _option(
        "flag", True, "Take numbers below 1.2e-38, with which many processors compute very slowly, for zero."
    )
    memory: Memory | None = _option(
        "choice",
        None,
        "Who plans the memory of intermediate tensors: TVM; one arena; one arena and the order of kernels that needs "
        "least.  [default: arena; optimal with --memory-limit or --on-chip-memory]",
        *get_args(Memory),
    )
    memory_limit: int | str | None = _option(
        "size",
        None,
        "Fail if intermediate tensors and results take more, such as 256KB (1000 bytes each) or 1.5MiB.",
    )
    memory_rewriting: bool = _option(
        "flag", True, "Let --memory optimal take concatenations apart, after which sums are taken in another order."
    )
    patches: Patches = _option(
        "choice",
        "auto",
        "Which stages run strip by strip to need less memory: those that take no longer so, and what --memory-limit "
        "demands; always, for a tenth more arithmetic; or none.",
        *get_args(Patches),
    )
    on_chip_memory: int | str | None = _option(
        "size",
        None,
        "Order the kernels for the least traffic past an on-chip memory of this size (with --memory optimal).",
    )
    rewrite: Rewrite = _option(
        "choice",
        "off",
        "Rewrite arithmetic so that it takes fewer operations: strict keeps the values up to rounding, fast may "
        "overflow where the original does not.",
        *get_args(Rewrite),
    )
    fuse: Fuse = _option(
        "choice",
        "stock",
        "Who decides which operators become one kernel: TVM's patterns, or a planner that combines operators by how "
        "their elements map to each other.",
        *get_args(Fuse),
    )
    fuse_profiles: str | Path | None = _option(
        "path",
        None,
        "File of measured latencies for --fuse mapping-type; what is not in it is measured and added.",
    )
    prologues: bool = _option(
        "flag", True, "Compute what precedes a convolution while its input is copied, where that is faster."
    )
    inverted_residuals: bool = _option(
        "flag",
        True,
        "Make one kernel of expansion, depthwise convolution and projection, where that is no slower; of a convolution "
        "and a pooling of 2 x 2; of squeeze and excitation; and of local response normalisation.",
    )
    embed: Embed = _option(
        "choice",
        "uncovered",
        "Which products and convolutions get kernels around an instruction whose place in them a solver finds: those "
        "that no other rule takes, all, or none.",
        *get_args(Embed),
    )
    work_dir: str | Path | None = _option(
        "path", None, "Use the fastest schedules of this tuning database (see tvm-ext tune)."
    )
    precision: Precision = _option(
        "choice",
        "float32",
        "Type of the operands of products and convolutions, which add up in float32: on a GPU (tf32 is float32 with "
        "10 bits of mantissa), or bfloat16 on a CPU with AVX512-BF16.",
        *get_args(Precision),
    )
    cuda_graphs: bool = _option(
        "flag", False, "Capture the kernels of a model as CUDA graphs at the first run, and launch them together."
    )
    calibration: Mapping[str, Any] | None = _option(
        "arrays", None, "Inputs that the ranges of integers are chosen on, for a VTA target."
    )

    def __post_init__(self) -> None:
        names = [phase.name for phase in PHASES]
        if isinstance(self.disable, str):
            object.__setattr__(self, "disable", tuple(filter(None, map(str.strip, self.disable.split(",")))))
        if not isinstance(self.disable, list | tuple | set | frozenset):
            raise OptionError(f"option disable: {self.disable!r} is not a list of phases such as {names[0]!r}")
        object.__setattr__(self, "disable", tuple(self.disable))
        if self.memory is None:
            limited = self.memory_limit is not None or self.on_chip_memory is not None
            object.__setattr__(self, "memory", "optimal" if limited else "arena")
        for option in fields(self):
            self._check(option)
        if self.memory_limit is not None:
            object.__setattr__(self, "memory_limit", parse_bytes(self.memory_limit))
        if self.on_chip_memory is not None:
            object.__setattr__(self, "on_chip_memory", parse_bytes(self.on_chip_memory, "on-chip memory"))
            if self.memory != "optimal":
                raise OptionError(f"option on_chip_memory needs memory='optimal', not {self.memory!r}")
        if self.patches == "always" and self.memory == "stock":
            raise OptionError("option patches='always' needs memory='arena' or 'optimal', not 'stock'")
        if self.fuse_profiles is not None and self.fuse == "stock":
            raise OptionError("option fuse_profiles needs fuse='mapping-type', not 'stock'")
        for name in self.disable:
            if name not in names:
                raise OptionError(f"option disable: unknown phase {name!r}, {candidates(str(name), names)}")

    def _check(self, option: Field[Any]) -> None:
        kind, value = option.metadata["kind"], getattr(self, option.name)
        if kind == "path":
            if not isinstance(value, str | os.PathLike | None) or "\0" in str(value):
                raise OptionError(f"option {option.name}: {value!r} is not a path")
            if value is not None and option.name != "dump_dir":
                object.__setattr__(self, option.name, str(value))
        elif kind == "choice" and value not in option.metadata["choices"]:
            known = candidates(str(value), option.metadata["choices"])
            raise OptionError(f"option {option.name}: unknown value {value!r}, {known}")
        elif kind == "arrays" and not isinstance(value, Mapping | None):
            raise OptionError(f"option {option.name}: {type(value).__name__} is no mapping from input name to array")
        elif kind == "flag" and not isinstance(value, bool):
            raise OptionError(f"option {option.name}: {value!r} is neither True nor False")

    @classmethod
    def from_keywords(cls, options: Mapping[str, Any]) -> PipelineOptions:
        """Build from keyword arguments; ``opt_level`` among them stands for the options of a row of :data:`PRESETS`.

        Raises
        ------
        OptionError
            If a keyword is not an option; the message names the nearest, and lists all.
        """
        known = [*(item.name for item in fields(cls)), OPT_LEVEL]
        for name in options:
            if name not in known:
                raise OptionError(f"unknown option {name!r} of pipeline tvm_ext, {candidates(name, known)}")
        given = dict(options)
        level = given.pop(OPT_LEVEL, None)
        if level is None:
            return cls(**given)
        if isinstance(level, bool) or level not in PRESETS:
            raise OptionError(f"option {OPT_LEVEL}: {level!r} is none of {', '.join(map(str, PRESETS))}")
        return cls(**{**PRESETS[level], **given})


OPT_LEVEL = "opt_level"

PRESETS: Mapping[int, Mapping[str, Any]] = {
    0: {"memory": "stock", "winograd": False, "strassen": False, "flush_denormals": False},
    1: {"memory": "stock"},
    2: {},
    3: {"rewrite": "strict", "fuse": "mapping-type"},
}
"""What ``opt_level`` (``-O`` on the command line) sets, where the option itself is not given; 2 is the default.

0 computes what the model says, digit by digit where the kernels allow; 1 is quick to compile; 3 tries everything that
keeps the values up to rounding, though a few models get slower by it.
"""
