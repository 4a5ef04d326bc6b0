"""A VTA hardware configuration: upstream's JSON keys, the sizes derived from them, and what makes them legal."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.resources
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tvm_ext.errors import VTAConfigError
from tvm_ext.system.files import require_regular

# HW_VER -> generation of the instruction encoding.
ISA_OF_VERSION = {"0.0.0": 1, "0.0.1": 1, "0.0.2": 2}
# TARGET -> log2 of the bits that its memory bus moves at once; None where there is no synthesised hardware.
LOG_BUS_WIDTH = {"sim": None, "tsim": None, "intelfocl": None, "pynq": 6, "ultra96": 7, "zcu104": 7, "de10nano": 6}

# Boards whose hardware is made by high-level synthesis from upstream's C++.
BOARDS_OF_HLS = ("pynq", "ultra96", "zcu104")

# Model of a TVM target with one of the tags tvm-ext/vta-... or vta-..., to the name of a configuration.
CONFIG_OF_MODEL = {
    "vta-1x16x16": "sim",
    "vta-1x32x32": "sim_1x32",
    "vta-2x16x16": "sim_2x16",
    "vta-4x8x8": "sim_4x8",
    "vta-8x8x8": "sim_8x8",
    "vta-pynq": "pynq",
    "vta-pynq-0.0.1": "pynq_0.0.1",
    "vta-ultra96": "ultra96",
    "vta-ultra96-0.0.1": "ultra96_0.0.1",
    "vta-zcu104": "zcu104",
    "vta-de10nano": "de10nano",
    "vta-de10nano-0.0.1": "de10nano_0.0.1",
}

INSTRUCTION_BYTES = 16
UOP_BYTES = 4
LARGEST_ELEMENT_BYTES = 4096


@dataclass(frozen=True)
class VTAConfig:
    """One VTA design; illegal ones cannot be built.

    Attributes
    ----------
    target : str
        Board or simulator, a key of :data:`LOG_BUS_WIDTH`.
    hw_ver : str
        Hardware version, a key of :data:`ISA_OF_VERSION`; it selects the instruction encoding.
    log_inp_width, log_wgt_width, log_acc_width : int
        log2 of the bits of an activation, a weight and an accumulator.
    log_batch, log_block : int
        log2 of the rows A and of the inner dimensions B = C of the matrix product (A, B) x (B, C).
    log_uop_buff_size, log_inp_buff_size, log_wgt_buff_size, log_acc_buff_size : int
        log2 of the bytes of each on-chip memory.

    Raises
    ------
    VTAConfigError
        If a value is not legal; the message names the JSON key.
    """

    target: str = "sim"
    hw_ver: str = "0.0.2"
    log_inp_width: int = 3
    log_wgt_width: int = 3
    log_acc_width: int = 5
    log_batch: int = 0
    log_block: int = 4
    log_uop_buff_size: int = 15
    log_inp_buff_size: int = 15
    log_wgt_buff_size: int = 18
    log_acc_buff_size: int = 17

    def __post_init__(self) -> None:
        _check_values(self)
        _check_elements(self)
        _check_encoding(self)

    @property
    def isa(self) -> int:
        """Generation of the instruction encoding: 1 or 2."""
        return ISA_OF_VERSION[self.hw_ver]

    @property
    def batch(self) -> int:
        """Rows of an activation tile."""
        return 1 << self.log_batch

    @property
    def block(self) -> int:
        """Input channels, and output channels, of a tile."""
        return 1 << self.log_block

    @property
    def inp_bytes(self) -> int:
        """Bytes of an element of the input memory: batch x block activations."""
        return (1 << (self.log_batch + self.log_block + self.log_inp_width)) // 8

    @property
    def wgt_bytes(self) -> int:
        """Bytes of an element of the weight memory: block x block weights."""
        return (1 << (2 * self.log_block + self.log_wgt_width)) // 8

    @property
    def acc_bytes(self) -> int:
        """Bytes of an element of the accumulator memory: batch x block accumulators."""
        return (1 << (self.log_batch + self.log_block + self.log_acc_width)) // 8

    @property
    def out_bytes(self) -> int:
        """Bytes of an element as it is stored: batch x block values of an activation's width."""
        return self.inp_bytes

    # Memories are addressed in elements; these are log2 of how many each holds.
    @property
    def log_uop_depth(self) -> int:
        """log2 of the micro-ops that fit their memory; read by name, as those of the other memories are."""
        return self.log_uop_buff_size - 2

    @property
    def log_inp_depth(self) -> int:
        """log2 of the elements that fit the input memory."""
        return self.log_inp_buff_size - self.log_batch - self.log_block - self.log_inp_width + 3

    @property
    def log_wgt_depth(self) -> int:
        """log2 of the elements that fit the weight memory."""
        return self.log_wgt_buff_size - 2 * self.log_block - self.log_wgt_width + 3

    @property
    def log_acc_depth(self) -> int:
        """log2 of the elements that fit the accumulator memory."""
        return self.log_acc_buff_size - self.log_batch - self.log_block - self.log_acc_width + 3

    @property
    def log_alu_src_depth(self) -> int:
        """Bits of an ALU instruction's source factors: the second generation widened them to the accumulator's."""
        return self.log_inp_depth if self.isa == 1 else self.log_acc_depth

    @property
    def log_uop_src_depth(self) -> int:
        """Bits of a micro-op's source index."""
        return self.log_inp_depth if self.isa == 1 else max(self.log_acc_depth, self.log_inp_depth)

    @cached_property
    def depths(self) -> dict[str, int]:
        """Elements that fit each memory: ``uop``, ``inp``, ``wgt``, ``acc``."""
        return {name: 1 << getattr(self, f"log_{name}_depth") for name in ("uop", "inp", "wgt", "acc")}

    @property
    def macs_per_step(self) -> int:
        """Multiply-adds of one step of GEMM."""
        return self.batch * self.block * self.block

    @property
    def name(self) -> str:
        """Upstream's name of a bitstream, e.g. ``1x16_i8w8a32_15_15_18_17``."""
        widths = f"i{1 << self.log_inp_width}w{1 << self.log_wgt_width}a{1 << self.log_acc_width}"
        sizes = (self.log_uop_buff_size, self.log_inp_buff_size, self.log_wgt_buff_size, self.log_acc_buff_size)
        return f"{self.batch}x{self.block}_{widths}_" + "_".join(map(str, sizes))

    def to_json(self) -> dict[str, Any]:
        """Return the configuration under upstream's keys."""
        return {field.name.upper(): getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], source: str = "the configuration") -> VTAConfig:
        """Build a configuration from upstream's keys; every key must be there.

        Raises
        ------
        VTAConfigError
            If a key is missing, unknown, or has a value that is not legal; the message begins with ``source``.
        """
        keys = {field.name.upper(): field.name for field in dataclasses.fields(cls)}
        for key in values:
            if key not in keys:
                near = difflib.get_close_matches(str(key), keys, 1, 0.0)[0]
                raise VTAConfigError(f"{source}: unknown key {key!r}; the nearest known key is {near!r}")
        missing = [key for key in keys if key not in values]
        if missing:
            raise VTAConfigError(f"{source}: key {missing[0]!r} is missing; a configuration has {', '.join(keys)}")
        try:
            return cls(**{name: values[key] for key, name in keys.items()})
        except VTAConfigError as error:
            raise VTAConfigError(f"{source}: {error}") from None


def _check_values(config: VTAConfig) -> None:
    for key, known in (("target", LOG_BUS_WIDTH), ("hw_ver", ISA_OF_VERSION)):
        if not isinstance(value := getattr(config, key), str) or value not in known:
            raise VTAConfigError(f"{key.upper()} is {value!r}; expected one of {', '.join(known)}")
    for field in dataclasses.fields(config)[2:]:
        value = getattr(config, field.name)
        top = 5 if field.name.endswith("_width") else 8 if not field.name.endswith("_size") else 30
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= top:
            raise VTAConfigError(f"{field.name.upper()} is {value!r}; expected a whole number from 0 to {top}")


def _check_elements(config: VTAConfig) -> None:
    """Elements are whole bytes, no larger than a page, and memories hold at least one."""
    if config.log_inp_width > config.log_acc_width:
        raise VTAConfigError(
            f"LOG_INP_WIDTH is {config.log_inp_width}, more than LOG_ACC_WIDTH {config.log_acc_width}; "
            "results are cut down to the width of inputs, so it cannot be the larger one"
        )
    bus = LOG_BUS_WIDTH[config.target]
    for name, shape in (("inp", "LOG_BATCH + LOG_BLOCK"), ("wgt", "2 * LOG_BLOCK"), ("acc", "LOG_BATCH + LOG_BLOCK")):
        log_width: int = getattr(config, f"log_{name}_width")
        blocks = 2 * config.log_block if name == "wgt" else config.log_batch + config.log_block
        log_bits, width = blocks + log_width, f"LOG_{name.upper()}_WIDTH"
        if log_bits < 3:
            raise VTAConfigError(f"{width} + {shape} is {log_bits}; an element must be at least one byte, so 3 or more")
        if (1 << log_bits) // 8 > LARGEST_ELEMENT_BYTES:
            raise VTAConfigError(
                f"{width} + {shape} is {log_bits}, an element of {(1 << log_bits) // 8} bytes; "
                f"at most {LARGEST_ELEMENT_BYTES} are possible: lower LOG_BLOCK"
            )
        if bus is not None and log_bits < bus:
            raise VTAConfigError(
                f"{width} + {shape} is {log_bits}, an element of {1 << log_bits} bits; "
                f"TARGET {config.target} moves {1 << bus} at once and needs at least that many"
            )
    for name in ("uop", "inp", "wgt", "acc"):
        log_depth: int = getattr(config, f"log_{name}_depth")
        key, size = f"LOG_{name.upper()}_BUFF_SIZE", getattr(config, f"log_{name}_buff_size")
        if log_depth < 0:
            raise VTAConfigError(f"{key} is {size}, less than one element; expected at least {size - log_depth}")
        if log_depth > 16:
            raise VTAConfigError(
                f"{key} is {size}, more than 16 address bits reach; expected at most {size - log_depth + 16}"
            )


def _check_encoding(config: VTAConfig) -> None:
    """Every field has room in an instruction of two 64-bit words, and in a micro-op of 32 bits."""
    uop, inp, wgt, acc = (getattr(config, f"log_{name}_depth") for name in ("uop", "inp", "wgt", "acc"))
    alu_src, uop_src = config.log_alu_src_depth, config.log_uop_src_depth
    alu_opcode = 2 if config.isa == 1 else 3
    rules = (
        (("uop",), "the first word of GEMM and ALU", 8 + uop + uop + 1 + 14 + 14, 64),
        (("acc",), "the second word of ALU", 2 * (acc + alu_src) + alu_opcode + 1 + 16, 64),
        (("inp", "wgt", "acc"), "the second word of GEMM", 2 * (inp + wgt + acc), 64),
        (("inp", "wgt", "acc"), "a micro-op", acc + uop_src + wgt, 32),
    )
    for names, place, bits, room in rules:
        if bits > room:
            keys = ", ".join(
                f"LOG_{name.upper()}_BUFF_SIZE {getattr(config, f'log_{name}_buff_size')}" for name in names
            )
            raise VTAConfigError(
                f"{keys}: the addresses need {bits} bits in {place}, which has {room}; "
                "make a memory smaller or LOG_BLOCK larger"
            )
    if config.target in BOARDS_OF_HLS and acc > inp:
        raise VTAConfigError(
            f"LOG_INP_BUFF_SIZE is {config.log_inp_buff_size}; TARGET {config.target} reads as many bits of a "
            f"micro-op's source as the input memory has address bits ({inp}), which must not be "
            f"fewer than the accumulator memory's ({acc})"
        )


def load_config(config: str | Path | Mapping[str, Any]) -> VTAConfig:
    """Load a configuration.

    Parameters
    ----------
    config : str, Path or mapping
        The name of a shipped configuration (see :func:`config_names`), the path of a JSON file, or its contents.

    Raises
    ------
    VTAConfigError
        If there is no such configuration, the file cannot be read, or what it says is not legal.
    """
    if isinstance(config, Mapping):
        return VTAConfig.from_json(config)
    names = config_names()
    shipped = importlib.resources.files("tvm_ext.vta_config")
    if str(config) in names:
        return VTAConfig.from_json(json.loads((shipped / f"{config}.json").read_text("utf-8")), f"{config}.json")
    path = Path(config)
    require_regular(path, VTAConfigError)
    try:
        values = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise VTAConfigError(
            f"no VTA configuration {str(config)!r}: {error.strerror}; give a JSON file or one of {', '.join(names)}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise VTAConfigError(f"{path}: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise VTAConfigError(f"{path}: expected a JSON object, found {type(values).__name__}")
    return VTAConfig.from_json(values, str(path))


def config_of_target(target: Any) -> VTAConfig:
    """Return the configuration that a ``tvm.target.Target`` with a VTA tag stands for.

    Raises
    ------
    VTAConfigError
        If the target is not a VTA.
    """
    model = str(target.attrs["model"]) if "model" in target.attrs else "none"
    if model not in CONFIG_OF_MODEL:
        tags = ", ".join(f"tvm-ext/{known}" for known in CONFIG_OF_MODEL)
        raise VTAConfigError(f"target {target} is not a VTA (model {model}); use one of the tags {tags}")
    return load_config(CONFIG_OF_MODEL[model])


def config_names() -> list[str]:
    """Names of the configurations that are shipped."""
    files = importlib.resources.files("tvm_ext.vta_config").iterdir()
    return sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json"))
