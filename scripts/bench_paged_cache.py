"""Time a decoder made with ``relax.frontend.nn`` and TVM's paged cache, compiled by TVM's own pipeline and by tvm-ext.

Run: python scripts/bench_paged_cache.py [--quick] [--json PATH]

Processor time of one thread, in turns, medians; logits are compared at every step. ``decode`` takes any number of
sequences, of which there is one, ``decode_one`` takes one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TVM_NUM_THREADS", "1")

import numpy as np
import tvm

from scripts.results import add_json_option, result_path, store
from tests.generation.paged_decoder import Session, Sizes, made
from tvm_ext.backends.cpu.target import native_target

SIZES = Sizes(2000, 768, 4, 12, 4, 64, 2048)
PROMPT, STEPS = 50, 30


def row_of(sizes: Sizes, steps: int) -> dict[str, Any]:
    """Time a prompt and the tokens behind it."""
    mod, weights = made(sizes)
    sessions = {
        "tvm": Session(tvm.compile(mod, native_target()), weights, 1, 128),
        "tvm_ext": Session(tvm.compile(mod, native_target(), relax_pipeline="tvm_ext"), weights, 1, 128),
    }
    seconds: dict[tuple[str, str], list[float]] = {}
    ids, calls = list(range(3, 3 + PROMPT)), ["prefill"] + ["decode", "decode_one"] * steps
    for call in calls:
        logits = {}
        for name, session in sessions.items():
            start = time.process_time()
            logits[name] = session.run(call, [0], ids)
            seconds.setdefault((call, name), []).append(time.process_time() - start)
        np.testing.assert_allclose(logits["tvm_ext"], logits["tvm"], rtol=1e-3, atol=1e-3)
        ids = [int(logits["tvm"].argmax())]
    row: dict[str, Any] = {"part": "paged_cache", "prompt": PROMPT}
    for (call, name), values in seconds.items():
        row[f"{call}_{name}"] = round(1e3 * statistics.median(values), 3)
    print(row, flush=True)
    return row


def main() -> int:
    """Time the decoder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny decoder, for the screen")
    add_json_option(parser, "dynamic")
    arguments = parser.parse_args()
    path = result_path("dynamic", arguments.json, not arguments.quick)
    warnings.simplefilter("ignore")
    row = row_of(Sizes(97, 48, 2, 4, 2, 12, 80), 3) if arguments.quick else row_of(SIZES, STEPS)
    calls = {"prefill": "paged_prefill", "decode": "paged_decode", "decode_one": "paged_decode_one"}
    summary = {f"{key}_vs_tvm": round(row[f"{call}_tvm_ext"] / row[f"{call}_tvm"], 4) for call, key in calls.items()}
    summary |= {f"{key}_milliseconds": row[f"{call}_tvm_ext"] for call, key in calls.items()}
    print(summary)
    store(path, "dynamic", [row], summary, part="paged_cache", notes=("milliseconds of one thread's processor time",))
    return 0


if __name__ == "__main__":
    sys.exit(main())
