"""Latency of one model under several engines, side by side in one run.

Each engine lives in its own process (:mod:`tvm_ext.bench.worker`) that loads nothing but that engine. The parent goes
round: every round asks each engine in turn for a few timed runs, so that drift of the machine hits all engines alike.
While one engine runs the others are frozen (``SIGSTOP``), because thread pools go on spinning after the last run: with
two threads, TVM's burns a core for about 0.3 s and onnxruntime's for about 0.04 s.
"""

from __future__ import annotations

from tvm_ext.bench.compare import compare
from tvm_ext.bench.contender import Contender
from tvm_ext.bench.result import BenchResult, Row

__all__ = ["BenchResult", "Contender", "Row", "compare"]
