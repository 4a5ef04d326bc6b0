"""What searches found, as the papers have it: measurements, hours and latency of each network; and the figures of it.

The tables of Ahn et al., "Chameleon", ICLR 2020, and of Ahn's dissertation (UC San Diego, 2022) have a network a row:
how many configurations were measured, the hours of the search, and the latency of the network's convolutions that
comes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean
from typing import Any

Row = dict[str, Any]


def table(rows: Sequence[Row], stock: str) -> str:
    """Make the table, in Markdown: only tasks that all searches of a row have, each once."""
    arms = _arms(rows, stock)
    lines = [
        f"| network (tasks) | {' | '.join(f'{arm}: measurements, hours, ms' for arm in arms)} |",
        f"|---|{'---|' * len(arms)}",
    ]
    networks = dict.fromkeys(row["network"] for row in rows if "network" in row)
    for network in (*networks, None):
        tasks = _tasks(rows, arms, network)
        if not tasks or (network is None and len(networks) == 1):
            continue
        cells = []
        for arm in arms:
            own = [task[arm] for task in tasks]
            hours = sum(row["seconds"] for row in own) / 3600
            latency = sum(row["latency_us"] for row in own) / 1e3
            cells.append(f"{sum(row['trials'] for row in own)}, {hours:.4f}, {latency:.4f}")
        lines.append(f"| {network or 'all'} ({len(tasks)}) | {' | '.join(cells)} |")
    return "\n".join(lines)


def summarised(rows: Sequence[Row], stock: str) -> dict[str, float]:
    """Make the figures: geometric means over the tasks of a search and of TVM's.

    ``gpu_tuner_NAME_latency`` is latency over that of TVM's search; ``..._faster`` how many times less time, and
    ``..._fewer`` how many times fewer measurements, it takes to what TVM's search ends at. A search that does not come
    to it counts with all of its time, and is counted in ``..._short``.
    """
    arms = _arms(rows, stock)
    found: dict[str, float] = {}
    for arm in arms:
        tasks = _tasks(rows, [stock, arm], None)
        if arm == stock or not tasks:
            continue
        key = f"gpu_tuner_{arm.replace('@', '_in_')}"
        reached = [_reached(task[arm], task[stock]["best_us"]) for task in tasks]
        whole = [task[stock] for task in tasks]
        found |= {
            f"{key}_tasks": len(tasks),
            f"{key}_latency": round(geometric_mean(t[arm]["latency_us"] / t[stock]["latency_us"] for t in tasks), 3),
            f"{key}_faster": round(
                geometric_mean(stop["seconds"] / at[1] for stop, at in zip(whole, reached, strict=True)), 2
            ),
            f"{key}_fewer": round(
                geometric_mean(stop["trials"] / at[0] for stop, at in zip(whole, reached, strict=True)), 2
            ),
            f"{key}_short": sum(not at[2] for at in reached),
            f"{key}_failed": round(sum(t[arm]["failed"] for t in tasks) / sum(t[arm]["trials"] for t in tasks), 3),
        }
    ran = [row for row in rows if row["arm"] == stock and row.get("trials")]
    if ran:
        failed, trials = sum(row.get("failed", 0) for row in ran), sum(row["trials"] for row in ran)
        found |= {"gpu_tuner_trials": max(row["trials"] for row in ran), "gpu_tuner_stock_failed": failed / trials}
    return found


def _arms(rows: Sequence[Row], stock: str) -> list[str]:
    return sorted(dict.fromkeys(row["arm"] for row in rows), key=lambda arm: arm != stock)


def _tasks(rows: Sequence[Row], arms: Sequence[str], network: str | None) -> list[dict[str, Row]]:
    """Collect the rows of tasks that every one of some searches has ended; one a search."""
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        ended = row.get("latency_us") and not row.get("stopped") and "fault" not in row
        if ended and network in (None, row["network"]):
            found.setdefault((row["task"], row["dtype"]), {})[row["arm"]] = row
    return [task for task in found.values() if all(arm in task for arm in arms)]


def _reached(row: Row, best: float) -> tuple[int, float, bool]:
    """Measurements and seconds until a search came to a latency (microseconds), and whether it did."""
    for trials, seconds, latency in row["curve"]:
        if latency is not None and latency <= best:
            return trials, max(seconds, 1e-2), True
    return row["trials"], row["seconds"], False
