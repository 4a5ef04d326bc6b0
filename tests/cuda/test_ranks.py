"""The cost model's order of tiles against what a GPU measured, as stored."""

from __future__ import annotations

import json

import pytest

from scripts.cuda.ranks import CHOICES, STORED, chosen, ranked, stored_rows


def test_stored_measurements() -> None:
    lines = STORED.read_text(encoding="utf-8").splitlines()
    rows = ranked([json.loads(line) for line in lines])
    assert sum(row["tiles"] for row in rows) == len(lines)
    assert sum(row["tau"] for row in rows) / len(rows) > 0.7
    for row in rows:
        assert row["chosen_seconds"] < 1.25 * row["best_seconds"]


def test_an_order_turned_round_is_the_opposite() -> None:
    measured = [json.loads(line) for line in STORED.read_text(encoding="utf-8").splitlines()]
    turned = ranked([{**row, "seconds": 1 / row["seconds"]} for row in measured])
    assert [row["tau"] for row in turned] == pytest.approx([-row["tau"] for row in ranked(measured)], abs=1e-2)


def test_what_is_stored() -> None:
    about = {"rows": 8, "columns": 8, "depth": 64, "tile": "Tile(rows=16)"}
    row = {"kind": "rank", "about": about, "fault": "", "seconds": 1e-6}
    found = {"device": "a", "arch": "sm_90", "rows": [row, {**row, "fault": "wrong"}, {**row, "kind": "gemm"}]}
    assert stored_rows(found) == [{"device": "a", "arch": "sm_90", **about, "seconds": 1e-6}]


def test_the_instruction_that_is_chosen() -> None:
    pairs = chosen([json.loads(line) for line in CHOICES.read_text(encoding="utf-8").splitlines()])
    assert {pair["by"] for pair in pairs} == {"wgmma", "mma.sync"}
    total = {name: sum(pair["times"] * pair[name] for pair in pairs) for name in ("chosen_seconds", "best_seconds")}
    assert total["chosen_seconds"] < 1.12 * total["best_seconds"]
