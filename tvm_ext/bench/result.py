"""What a benchmark found: one row per engine, warnings, and the figures worth quoting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

# Limits above which a result carries a warning.
SPREAD_LIMIT = 0.20
NOISE_LIMIT = 1.10
BUSY_CORES = 0.25
ERROR_LIMIT = 1e-3


@dataclass(frozen=True)
class Row:
    """One engine's result. Figures are None where the engine failed or cannot tell.

    Attributes
    ----------
    label : str
        Name of the row.
    engine, version : str
        The engine and its version.
    error : str or None
        Why there are no figures.
    runs : int
        Timed runs.
    median_ms, q1_ms, q3_ms, min_ms : float or None
        Median, quartiles and minimum of the timed runs (milliseconds).
    ratio_to_best : float or None
        ``median_ms`` divided by the smallest median of all rows.
    max_abs_error : float or None
        Largest absolute difference from the reference's outputs.
    relative_error : float or None
        For each output its largest absolute difference divided by the standard deviation of the reference; the
        largest of these. Infinite if one side is not finite where the other is.
    import_seconds, compile_seconds : float or None
        Reading the model, and everything after that until it can run (seconds).
    planned_bytes : int or None
        Memory planned for intermediate tensors (bytes).
    kernels, kernel_calls : int or None
        Distinct kernels, and kernel calls in one run.
    samples_ms : tuple of float
        All timed runs (milliseconds), in the order they were made.
    """

    label: str
    engine: str
    version: str = ""
    error: str | None = None
    runs: int = 0
    median_ms: float | None = None
    q1_ms: float | None = None
    q3_ms: float | None = None
    min_ms: float | None = None
    ratio_to_best: float | None = None
    max_abs_error: float | None = None
    relative_error: float | None = None
    import_seconds: float | None = None
    compile_seconds: float | None = None
    planned_bytes: int | None = None
    kernels: int | None = None
    kernel_calls: int | None = None
    samples_ms: tuple[float, ...] = ()

    @property
    def spread(self) -> float:
        """Distance of the quartiles divided by the median; 0 without figures."""
        if self.median_ms is None or self.q1_ms is None or self.q3_ms is None:
            return 0.0
        return (self.q3_ms - self.q1_ms) / self.median_ms


@dataclass(frozen=True)
class BenchResult:
    """A whole comparison.

    Attributes
    ----------
    model : str
        Name of the model.
    threads : int
        Threads of every engine.
    target : str
        What the TVM rows were compiled for.
    rows : tuple of Row
        In the order asked for.
    reference : str or None
        The engine whose outputs the errors are measured against.
    noise_engine : str or None
        The engine that was measured twice.
    noise_ratio : float or None
        The larger of its two medians divided by the smaller: differences between rows below it mean nothing.
    load_average : float
        One-minute load average before the measurement.
    other_cores : float or None
        Processors that other processes kept busy meanwhile.
    processors : int
        Processors of the machine.
    notes : tuple of str
        Choices made, and warnings.
    """

    model: str
    threads: int
    target: str
    rows: tuple[Row, ...]
    reference: str | None
    noise_engine: str | None
    noise_ratio: float | None
    load_average: float
    other_cores: float | None
    processors: int
    notes: tuple[str, ...]

    def __getitem__(self, label: str) -> Row:
        """Return the row called ``label``."""
        for row in self.rows:
            if row.label == label:
                return row
        raise KeyError(f"no row {label!r}; there are {', '.join(row.label for row in self.rows)}")

    @property
    def best(self) -> Row | None:
        """The row with the smallest median; None when every engine failed."""
        measured = [row for row in self.rows if row.median_ms is not None]
        return min(measured, key=lambda row: row.median_ms or 0.0, default=None)

    def json_rows(self) -> list[dict[str, Any]]:
        """Rows as JSON values: six significant digits, no samples, an infinite error as the string ``"inf"``."""
        rows = []
        for row in self.rows:
            fields = asdict(row)
            del fields["samples_ms"]
            rows.append({key: _json_value(value) for key, value in fields.items()})
        return rows

    def summary(self) -> dict[str, float]:
        """Give the figures worth quoting, by name: medians, ratios between the engines of interest, noise."""
        figures: dict[str, float] = {"threads": self.threads, "load_average": self.load_average}
        medians = {row.label: row.median_ms for row in self.rows if row.median_ms is not None}
        figures |= {f"{label}_ms": median for label, median in medians.items()}
        if "tvm_ext" in medians:
            peers = [
                row.median_ms for row in self.rows if row.median_ms is not None and row.engine not in ("tvm", "tvm_ext")
            ]
            if peers:
                figures["tvm_ext_over_best_peer"] = medians["tvm_ext"] / min(peers)
            if "tvm" in medians:
                figures["tvm_over_tvm_ext"] = medians["tvm"] / medians["tvm_ext"]
        for name, value in (("noise_ratio", self.noise_ratio), ("other_cores", self.other_cores)):
            if value is not None:
                figures[name] = value
        return {name: _json_value(value) for name, value in figures.items()}


def warnings(result: BenchResult) -> list[str]:
    """List what makes a result doubtful: outputs that differ, a wide spread, a busy machine, noise."""
    found = []
    for row in result.rows:
        if row.relative_error is not None and not row.relative_error <= ERROR_LIMIT:
            found.append(
                f"warning: the outputs of {row.label} differ from those of {result.reference} by "
                f"{row.relative_error:.2g} of their standard deviation"
            )
        if row.spread > SPREAD_LIMIT:
            found.append(f"warning: the runs of {row.label} spread by {row.spread:.0%} of their median")
    if result.other_cores is not None and result.other_cores > BUSY_CORES:
        found.append(
            f"warning: other processes kept {result.other_cores:.1f} of {result.processors} processors busy meanwhile; "
            "measure again on a quiet machine"
        )
    if result.noise_ratio is not None and result.noise_ratio > NOISE_LIMIT:
        found.append(
            f"warning: {result.noise_engine} differs from itself by {result.noise_ratio - 1:.0%}; "
            "smaller differences between rows mean nothing"
        )
    return found


def statistics_ms(seconds: Sequence[float]) -> dict[str, Any]:
    """Fields of :class:`Row` that describe timed runs.

    Parameters
    ----------
    seconds : sequence of float
        Time of each run (seconds).
    """
    samples = np.asarray(seconds) * 1e3
    q1, median, q3 = np.percentile(samples, [25, 50, 75])
    return {
        "runs": len(samples),
        "median_ms": float(median),
        "q1_ms": float(q1),
        "q3_ms": float(q3),
        "min_ms": float(samples.min()),
        "samples_ms": tuple(samples.tolist()),
    }


def _json_value(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if np.isfinite(value) else "inf"
