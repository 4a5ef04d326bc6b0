"""Count lines of code, without docstrings, comments and blank lines, against an earlier commit.

Rooms that did not exist then are new functions, and left out of the comparison; the rows have them.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tokenize
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("tvm_ext", "schedules", "tuners")
NEW = (
    "tvm_ext/torch_compile/",
    "tvm_ext/embedding/",
    "tvm_ext/cli/embed.py",
    "tvm_ext/backends/vta/codegen/embedded.py",
    "tvm_ext/backends/hexagon/",
    "tvm_ext/cli/hexagon.py",
    "schedules/hexagon/",
    "tvm_ext/layout/selection/",
    "tvm_ext/report/profile",
    "tvm_ext/report/time_section.py",
    "tvm_ext/cli/profile.py",
    "tvm_ext/bench/calibrate.py",
    "tvm_ext/cli/calibrate.py",
    "schedules/cpu/calibration.py",
    "tvm_ext/shapes/",
    "tvm_ext/dynamic.py",
    "tvm_ext/layout/relax/open_products.py",
    "tvm_ext/layout/relax/open_attention.py",
    "schedules/cpu/open_attention.py",
    "schedules/compute/open_product.py",
    "tvm_ext/backends/c/",
    "tvm_ext/backends/cuda/",
    "tvm_ext/backends/vta/codegen/description.py",
    "tvm_ext/backends/description.py",
    "schedules/cuda/",
    "schedules/cpu/winograd_strips.py",
    "schedules/cpu/prologue.py",
    "tvm_ext/fusion/prologue_plan.py",
    "schedules/cpu/open_product.py",
    "schedules/instructions/",
    "schedules/embedded_form.py",
    "schedules/cpu/embedded.py",
    "schedules/cpu/embedded_tile.py",
    "tvm_ext/backends/cpu/embedded.py",
    "tvm_ext/backends/cpu/instructions.py",
    "tvm_ext/report/embeddings.py",
    "schedules/cpu/cached_attention.py",
    "schedules/cpu/decoder_kernels.py",
    "schedules/cpu/word_product.py",
    "schedules/compute/weight_words.py",
    "tvm_ext/graph/decisions.py",
    "tvm_ext/report/layout_section.py",
    "tvm_ext/fusion/relax/prologues.py",
    "tvm_ext/generation/",
    "tuners/presampling.py",
    "tuners/validity.py",
    "tuners/replay/recorded.py",
    "tuners/replay/convergence.py",
    "tuners/glimpse/",
    "schedules/compute/inverted_residual.py",
    "schedules/cpu/inverted_residual.py",
    "schedules/compute/row_attention.py",
    "tvm_ext/fusion/inverted_residual_plan.py",
    "tvm_ext/fusion/relax/inverted_residuals.py",
    "tvm_ext/fusion/relax/convolution_stage.py",
    "schedules/compute/open_convolution.py",
    "schedules/cpu/open_convolution.py",
    "schedules/cpu/open_tiles.py",
    "schedules/cpu/open_extents.py",
    "tvm_ext/memory/open_arena.py",
    "tvm_ext/memory/relax/image_segments.py",
    "tvm_ext/memory/relax/open_segments.py",
    "tvm_ext/memory/relax/segment_code.py",
    "tvm_ext/passes/named_extents.py",
    "tvm_ext/passes/transposed_phases.py",
    "tvm_ext/memory/patches.py",
    "tvm_ext/memory/relax/patches.py",
    "tvm_ext/memory/relax/row_graph.py",
    "tvm_ext/report/memory_pareto.py",
    "tvm_ext/layout/choices.py",
    "tvm_ext/layout/convolution_choices.py",
    "tvm_ext/layout/relax/offers.py",
    "tvm_ext/layout/relax/phases_as_channels.py",
    "tvm_ext/tuning/whole_network.py",
    "tvm_ext/tuning/pretraining.py",
    "tuners/pretrained/",
    "tuners/replay/rule_cost.py",
    "tvm_ext/backends/vta/codegen/result_order.py",
    "schedules/compute/bfloat16.py",
)
"""What did not exist in any form before."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--before", default="e06ca6f", metavar="COMMIT", help="what to compare with (%(default)s)")


def code_lines(text: str) -> int:
    """Count the lines of a module that hold code."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            for item in body:
                if (
                    isinstance(item, ast.Expr)
                    and isinstance(item.value, ast.Constant)
                    and isinstance(item.value.value, str)
                ):
                    documented |= set(range(item.lineno, (item.end_lineno or item.lineno) + 1))
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            found |= set(range(token.start[0], token.end[0] + 1))
    return len(found - documented)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Count; gives a row for each folder."""
    now: dict[str, int] = {}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            now[str(path.relative_to(ROOT))] = code_lines(path.read_text(encoding="utf-8"))
    names = [
        name
        for name in _git("ls-tree", "-r", "--name-only", arguments.before, *FOLDERS).split()
        if name.endswith(".py")
    ]
    before = {name: code_lines(_git("show", f"{arguments.before}:{name}")) for name in names}
    new = sum(count for name, count in now.items() if name.startswith(NEW))
    rows = [
        {"folder": folder, "before": _sum(before, folder), "now": _sum(now, folder)}
        for folder in (*FOLDERS, "tvm_ext/backends/vta", "tvm_ext/vta")
    ]
    rows.append({"folder": "new functions", "before": 0, "now": new})
    total, left = sum(before.values()), sum(now.values()) - new
    return rows, {"code_lines_before": total, "code_lines": left, "lines_removed": total - left}


def _sum(counts: dict[str, int], folder: str) -> int:
    return sum(count for name, count in counts.items() if name.startswith(f"{folder}/"))
