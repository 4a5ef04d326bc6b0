"""Compile every model of the zoo and compare it with onnxruntime; writes docs/results/zoo.json and docs/models.md.

Run: python scripts/check_zoo.py [--only NAME ...] [--json PATH]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import tvm_ext
from scripts.results import add_json_option, result_path, store
from tests.zoo import ZOO, Entry
from tvm_ext.errors import TvmExtError
from tvm_ext.verify import compare_outputs, onnxruntime_outputs

TOLERANCE = 1e-4


def check(entry: Entry) -> dict[str, Any]:
    """Compile and compare one model."""
    row: dict[str, Any] = {
        "model": entry.name,
        "kind": entry.kind,
        "family": entry.family,
        "tolerance": entry.tolerance,
    }
    reason = entry.missing()
    if reason:
        return row | {"state": "missing", "reason": reason}
    model, inputs = entry.onnx_model(), entry.inputs(0)
    start = time.perf_counter()
    try:
        compiled = tvm_ext.compile(model, input_shapes={name: array.shape for name, array in inputs.items()})
        row["compile_seconds"] = round(time.perf_counter() - start, 2)
        results = compiled.run({spec.name: inputs[spec.name] for spec in compiled.inputs})
    except TvmExtError as error:
        return row | {"state": "refused", "reason": str(error)}
    differences = compare_outputs(results, onnxruntime_outputs(model, inputs))
    row["relative_error"] = max(difference.relative for difference in differences)
    row["state"] = "agrees" if row["relative_error"] <= entry.tolerance else "differs"
    return row


def page(rows: list[dict[str, Any]]) -> str:
    """Write the two lists as a Markdown page."""
    lines = [
        "# Models that compile",
        "",
        "Every model of the test zoo, compiled for the CPU and compared with onnxruntime on the same inputs. The error",
        "is the largest absolute difference of any output over the standard deviation of onnxruntime's output. The",
        "bound is 1e-4, except where onnxruntime with and without its own graph optimisations already differs by more:",
        "there it is the bound shown.",
        "Written by `python scripts/check_zoo.py`; the same rows are in `docs/results/zoo.json`.",
        "",
        "## Compiled",
        "",
        "| model | kind | family | error | bound | state |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "relative_error" in row:
            figures = f"{row['relative_error']:.1e} | {row['tolerance']:g}"
            lines.append(f"| {row['model']} | {row['kind']} | {row['family']} | {figures} | {row['state']} |")
    refused = [row for row in rows if "relative_error" not in row]
    lines += ["", "## Not compiled", ""]
    if not refused:
        lines.append("None.")
    else:
        lines += ["| model | kind | state | reason |", "|---|---|---|---|"]
        lines += [f"| {row['model']} | {row['kind']} | {row['state']} | {row['reason']} |" for row in refused]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Check the zoo; exit 1 when a model differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=None, help="names of models")
    add_json_option(parser, "zoo")
    arguments = parser.parse_args()
    path = result_path("zoo", arguments.json, is_whole=arguments.only is None)
    rows = []
    for entry in ZOO.values():
        if arguments.only is not None and entry.name not in arguments.only:
            continue
        row = check(entry)
        rows.append(row)
        print(
            f"{row['model']:22} {row['state']:8} {row.get('relative_error', float('nan')):.1e} {row.get('reason', '')}",
            flush=True,
        )
    trained = [row for row in rows if row["kind"] == "trained" or row["model"] == "minilm"]
    summary = {
        "models": len(rows),
        "agree": sum(row["state"] == "agrees" for row in rows),
        "agree_within_1e-4": sum(row.get("relative_error", 1.0) <= TOLERANCE for row in rows),
        "differ": sum(row["state"] == "differs" for row in rows),
        "refused": sum(row["state"] == "refused" for row in rows),
        "missing": sum(row["state"] == "missing" for row in rows),
        "trained": len(trained),
        "trained_agree": sum(row["state"] == "agrees" for row in trained),
    }
    print(summary)
    store(path, "zoo", rows, summary)
    if arguments.only is None:
        (ROOT / "docs/models.md").write_text(page(rows))
    return int(summary["differ"] > 0)


if __name__ == "__main__":
    sys.exit(main())
