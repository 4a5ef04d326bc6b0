"""Data sheets are rows that agree with one another; blueprints lose no more than they may."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scripts.glimpse.family import DESIGNS
from tvm_ext.backends.vta.codegen.description import SHEET_FIELDS, sheet_row
from tvm_ext.backends.vta.config import config_names, load_config
from tvm_ext.backends.vta.timing.costs import costs_of_config
from tvm_ext.errors import TuningError
from tvm_ext.tuners.glimpse.blueprint import LOSS, Blueprint
from tvm_ext.tuners.glimpse.datasheets import DataSheets, data_sheets


def test_there_are_sheets_of_thirty_gpus_and_those_of_the_source() -> None:
    sheets = data_sheets("gpu")
    assert len(sheets.rows) >= 30
    for device in ("Titan Xp", "GeForce RTX 2070 Super", "GeForce RTX 2080 Ti", "GeForce RTX 3090"):
        assert len(sheets.row(device)) == len(sheets.fields)


def test_columns_of_a_gpu_agree() -> None:
    sheets = data_sheets("gpu")
    column = {name: sheets.table()[:, at] for at, name in enumerate(sheets.fields)}
    np.testing.assert_allclose(2 * column["cuda_cores"] * column["boost_mhz"] / 1e6, column["tflops"], rtol=0.03)
    assert set((column["cuda_cores"] / column["multiprocessors"]).tolist()) == {64.0, 128.0}
    assert (column["boost_mhz"] >= column["base_mhz"]).all()
    # Bits of a second on each wire: from DDR3's to GDDR7's.
    speed = column["gb_per_s"] * 8 / column["bus_bits"]
    assert ((speed > 1) & (speed < 32)).all()


def test_rows_of_vta_are_those_of_its_configurations() -> None:
    sheets = data_sheets("vta")
    assert sheets.fields == SHEET_FIELDS
    for name in config_names():
        config = load_config(name)
        assert sheets.row(name) == sheet_row(config, costs_of_config(config))
    for name, design in DESIGNS.items():
        assert sheets.row(name) == sheet_row(design.config, design.costs)
    assert len(DESIGNS) >= 12


@pytest.mark.parametrize("kind", ["gpu", "cpu", "hexagon", "vta"])
def test_the_loss_is_what_was_asked_for_and_one_component_less_loses_more(kind: str) -> None:
    sheets = data_sheets(kind)
    made = Blueprint.fit(sheets.fields, sheets.table())
    assert made.loss(sheets.table()) <= LOSS
    fewer = Blueprint(made.fields, made.offset, made.mean, made.scale, made.components[:-1])
    assert fewer.loss(sheets.table()) > LOSS
    # By another path: the variance that is left is that of the smaller eigenvalues of the correlation matrix.
    logs = np.log2(made.offset + sheets.table())
    normal = (logs - logs.mean(axis=0)) / np.where(logs.std(axis=0) > 0, logs.std(axis=0), 1)
    values = np.sort(np.linalg.eigvalsh(normal.T @ normal / len(normal)))[::-1]
    left = np.sqrt(max(values[made.size :].sum(), 0) / len(sheets.fields))
    assert made.loss(sheets.table()) == pytest.approx(left, abs=1e-6)


def test_distances_are_kept() -> None:
    sheets = data_sheets("gpu")
    made = Blueprint.fit(sheets.fields, sheets.table())
    points = made.embed(sheets.table())
    assert points.shape == (len(sheets.rows), made.size)
    devices = list(sheets.rows)
    near, far = (
        np.linalg.norm(points[devices.index("GeForce RTX 2080 Ti")] - points[devices.index(other)])
        for other in ("Titan RTX", "GeForce GTX 750 Ti")
    )
    assert near < far / 3


def test_bad_sheets_are_named(tmp_path: Path) -> None:
    with pytest.raises(TuningError, match=r"no data sheet of gpu 'Voodoo 2'; there are those of GeForce"):
        data_sheets("gpu").row("Voodoo 2")
    with pytest.raises(TuningError, match=r"no data sheets of kind 'tpu'; there are gpu, cpu, hexagon, vta"):
        data_sheets("tpu")
    with pytest.raises(TuningError, match=r"data sheet of gpu A: 1 numbers for 2 columns"):
        DataSheets("gpu", ("cores", "mhz"), {"A": (1.0,)})
    for value in (-1.0, float("nan"), "many", True):
        with pytest.raises(TuningError, match=r"data sheet of gpu A: mhz is .*; expected a number of 0 or more"):
            DataSheets("gpu", ("cores", "mhz"), {"A": (1.0, value)})
    damaged = tmp_path / "sheets.json"
    for text in ("", "[]", '{"gpu": 3}', '{"gpu": {"fields": []}}'):
        damaged.write_text(text)
        with pytest.raises(TuningError, match=r"sheets\.json: no data sheets"):
            data_sheets("gpu", damaged)
    with pytest.raises(TuningError, match=r"cannot be read"):
        data_sheets("gpu", tmp_path / "none.json")


def test_blueprints_of_too_little_or_of_other_columns_are_refused() -> None:
    with pytest.raises(TuningError, match=r"two data sheets or more of 2 columns, found \[1, 2\]"):
        Blueprint.fit(("a", "b"), np.ones((1, 2)))
    made = Blueprint.fit(("a", "b"), np.array([[1.0, 2.0], [2.0, 0.0], [4.0, 5.0]]))
    with pytest.raises(TuningError, match=r"data sheets of shape \[1, 3\]; this blueprint has columns a, b"):
        made.embed(np.ones((1, 3)))
    assert np.isfinite(made.embed(np.zeros((1, 2)))).all()
    assert Blueprint.fit(("a", "b"), np.ones((3, 2))).embed(np.ones((1, 2))).tolist() == [[0.0]]
