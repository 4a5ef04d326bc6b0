from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tvm

from tvm_ext.backends.vta.config import CONFIG_OF_MODEL, VTAConfig, config_names, config_of_target, load_config
from tvm_ext.errors import VTAConfigError
from tvm_ext.registration import VTA_BOARDS, VTA_SHAPES

DEFAULT = VTAConfig().to_json()


def test_sizes_of_the_default() -> None:
    config = VTAConfig()
    assert (config.inp_bytes, config.wgt_bytes, config.acc_bytes, config.out_bytes) == (16, 256, 64, 16)
    assert config.depths == {"uop": 8192, "inp": 2048, "wgt": 1024, "acc": 2048}
    assert config.name == "1x16_i8w8a32_15_15_18_17"
    assert (config.isa, config.macs_per_step) == (2, 256)


@pytest.mark.parametrize("name", config_names())
def test_shipped_configurations(name: str) -> None:
    config = load_config(name)
    # Capacities, counted in bytes.
    for memory, size in (("inp", config.inp_bytes), ("wgt", config.wgt_bytes), ("acc", config.acc_bytes), ("uop", 4)):
        assert config.depths[memory] * size == 1 << getattr(config, f"log_{memory}_buff_size")
    assert config.inp_bytes == config.batch * config.block
    assert config.wgt_bytes == config.block**2
    assert config.acc_bytes == 4 * config.batch * config.block
    assert VTAConfig.from_json(config.to_json()) == config


def test_the_shipped_names() -> None:
    boards = {"sim", "pynq", "ultra96", "zcu104", "de10nano"}
    assert boards | {"sim_1x32", "sim_2x16", "sim_4x8", "sim_8x8", "pynq_0.0.1"} <= set(config_names())
    assert {load_config(name).target for name in boards} == boards
    assert load_config("pynq").isa == 2
    assert load_config("pynq_0.0.1").isa == 1


@pytest.mark.parametrize("shape", VTA_SHAPES)
def test_targets(shape: str) -> None:
    target = tvm.target.Target(f"tvm-ext/vta-{shape}")
    assert target.kind.name == "llvm"
    config = config_of_target(target)
    assert [config.batch, config.block, config.block] == [int(extent) for extent in shape.split("x")]


def test_every_configuration_of_a_model_has_a_tag() -> None:
    assert {f"vta-{name}" for name in (*VTA_SHAPES, *VTA_BOARDS)} == set(CONFIG_OF_MODEL)


def test_a_target_that_is_no_vta() -> None:
    with pytest.raises(VTAConfigError, match=r"is not a VTA \(model none\); use one of the tags tvm-ext/vta-1x16x16"):
        config_of_target(tvm.target.Target("llvm"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"LOG_UOP_BUFF_SIZE": 16}, r"LOG_UOP_BUFF_SIZE 16: the addresses need 65 bits in the first word of GEMM"),
        ({"LOG_ACC_BUFF_SIZE": 18}, r"LOG_ACC_BUFF_SIZE 18: the addresses need 68 bits in the second word of ALU"),
        ({"LOG_WGT_BUFF_SIZE": 19}, r"LOG_WGT_BUFF_SIZE 19, .* need 66 bits in the second word of GEMM"),
        ({"LOG_INP_BUFF_SIZE": 16}, r"LOG_INP_BUFF_SIZE 16, .* need 66 bits in the second word of GEMM"),
        ({"LOG_INP_BUFF_SIZE": 13, "LOG_WGT_BUFF_SIZE": 20}, r"LOG_INP_BUFF_SIZE 13, .* need 34 bits in a micro-op"),
        ({"LOG_INP_BUFF_SIZE": 14, "TARGET": "pynq", "LOG_WGT_BUFF_SIZE": 16}, r"LOG_INP_BUFF_SIZE is 14; TARGET pynq"),
        ({"LOG_BLOCK": 7}, r"LOG_WGT_WIDTH \+ 2 \* LOG_BLOCK is 17, an element of 16384 bytes; at most 4096"),
        ({"LOG_WGT_BUFF_SIZE": 7}, r"LOG_WGT_BUFF_SIZE is 7, less than one element; expected at least 8"),
        ({"LOG_BLOCK": 0, "LOG_INP_WIDTH": 2}, r"LOG_INP_WIDTH \+ LOG_BATCH \+ LOG_BLOCK is 2; .* at least one byte"),
        ({"LOG_INP_WIDTH": 5, "LOG_ACC_WIDTH": 4}, r"LOG_INP_WIDTH is 5, more than LOG_ACC_WIDTH 4"),
        ({"TARGET": "ultra96", "LOG_BLOCK": 3}, r"element of 64 bits; TARGET ultra96 moves 128 at once"),
        ({"TARGET": "pynqq"}, r"TARGET is 'pynqq'; expected one of sim"),
        ({"HW_VER": "0.0.3"}, r"HW_VER is '0.0.3'; expected one of 0.0.0, 0.0.1, 0.0.2"),
        ({"HW_VER": [1]}, r"HW_VER is \[1\]; expected"),
        ({"LOG_BATCH": -1}, r"LOG_BATCH is -1; expected a whole number from 0 to 8"),
        ({"LOG_BATCH": True}, r"LOG_BATCH is True; expected"),
        ({"LOG_BLOCK": 4.0}, r"LOG_BLOCK is 4.0; expected"),
        ({"LOG_ACC_BUFF_SIZE": 10**9}, r"LOG_ACC_BUFF_SIZE is 1000000000; expected a whole number from 0 to 30"),
        ({"LOG_WGT_BUFF_SIZE": 30}, r"LOG_WGT_BUFF_SIZE is 30, .* 16 address bits reach; expected at most 24"),
        ({"LOG_BLOK": 4}, r"unknown key 'LOG_BLOK'; the nearest known key is 'LOG_BLOCK'"),
        ({"": 4}, r"unknown key ''"),
    ],
)
def test_illegal_values_name_their_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(VTAConfigError, match=message):
        load_config({**DEFAULT, **change})


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "vta.json"
    path.write_text(json.dumps({**DEFAULT, "LOG_BLOCK": 5}))
    assert load_config(path).block == 32
    without = {key: value for key, value in DEFAULT.items() if key != "LOG_BATCH"}
    for text, message in (
        (json.dumps(without), r"vta\.json: key 'LOG_BATCH' is missing; a configuration has TARGET, HW_VER"),
        ("{", r"vta\.json: not JSON"),
        ("[" * 100_000, r"vta\.json: not JSON"),
        ("[1]", r"vta\.json: expected a JSON object, found list"),
        (json.dumps({**DEFAULT, "LOG_BLOCK": 9}), r"vta\.json: LOG_BLOCK is 9; expected"),
    ):
        path.write_text(text)
        with pytest.raises(VTAConfigError, match=message):
            load_config(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(VTAConfigError, match="not JSON"):
        load_config(path)
    for missing in (tmp_path, tmp_path / "none.json", "sim_3x3"):
        with pytest.raises(VTAConfigError, match=r"no VTA configuration .*; give a JSON file or one of de10nano"):
            load_config(missing)
