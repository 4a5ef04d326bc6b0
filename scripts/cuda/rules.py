"""Count which schedule rule takes each kernel of the zoo's models for a CUDA target, and which go to TVM's own rules.

What takes part is lowered as for a compilation, without code generation. A model that cannot be lowered has a row with
the reason.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from typing import Any

from scripts.cuda.kernels import model_kernels, target_of
from tvm_ext.errors import TvmExtError, first_line
from tvm_ext.schedules.rule import FAULT_ATTRIBUTE, RULE_ATTRIBUTE

MODELS = (
    "tiny_cnn", "tiny_cell", "tiny_mlp", "tiny_transformer", "tiny_cnn_uint8", "tiny_cnn_int8", "resnet18", "resnet50",
    "mobilenet_v2", "squeezenet", "shufflenet", "densenet121", "inception_v1", "vgg16", "alexnet", "unet",
    "efficientnet_b0", "tinybert", "minilm", "darts", "c3d",
)  # fmt: skip
TVM = "TVM's"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--models", nargs="+", default=MODELS, help="names of the zoo; not for the ledger")


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Lower; gives a row for each model and precision."""
    target = target_of(arguments.arch)
    rows: list[dict[str, Any]] = []
    counted: Counter[str] = Counter()
    faults = 0
    for precision in ("float32", "float16"):
        for name in arguments.models:
            start = time.perf_counter()
            row: dict[str, Any] = {"model": name, "precision": precision, "arch": arguments.arch}
            try:
                kernels = model_kernels(name, target, precision=precision)
            except TvmExtError as error:
                row["why"] = first_line(error)
            else:
                rules = Counter(_rule(kernel.scheduled) for kernel in kernels)
                row |= {"rules": dict(rules), "others": [k.name for k in kernels if _rule(k.scheduled) == TVM]}
                faults += sum(FAULT_ATTRIBUTE in (kernel.scheduled.attrs or {}) for kernel in kernels)
                counted += rules
            rows.append(row)
            print(name, precision, row.get("rules", row.get("why")), round(time.perf_counter() - start, 1), flush=True)
    lowered = [row for row in rows if "rules" in row]
    total = counted.total()
    return rows, {
        "lowered_models": len(lowered),
        "models": len(rows),
        "scheduled_kernels": total,
        "own_rules": round(1 - counted[TVM] / max(total, 1), 4),
        "tensor_core_kernels": sum(counted[f"cuda.{name}_matmul"] for name in ("tensor", "warpgroup")),
        "rule_faults": faults,
    }


def _rule(func: Any) -> str:
    return str((func.attrs or {}).get(RULE_ATTRIBUTE, TVM))
