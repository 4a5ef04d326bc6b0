"""How much processor time the control groups of this process allow, in processors (Linux, versions 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Read the smallest quota of processor time among the control groups that this process is in.

    Parameters
    ----------
    root : Path
        Where ``proc`` and ``sys`` are.

    Returns
    -------
    float or None
        Processors: 0.5 is half of one. None if there is no quota, or none that can be read.
    """
    quotas = [quota for folder in _folders(root) if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def _quota(folder: Path) -> float | None:
    """Read the quota of one group: ``cpu.max`` of version 2, ``cpu.cfs_quota_us`` over its period of version 1."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        microseconds, of = float(quota), float(period)  # "max" is no number: there is no quota
    except (OSError, ValueError):
        return None
    return microseconds / of if microseconds > 0 and of > 0 else None


def _folders(root: Path) -> Iterator[Path]:
    """List the folders of this process's groups that may limit its processor time, from the innermost outwards."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = [line.split() for line in (root / "proc/self/mountinfo").read_text().splitlines()]
    except OSError:
        return
    for fields in mounts:
        # Fields: id, parent, device, root in the file system, mount point, options, ..., "-", type, source, options.
        if "-" not in fields or len(fields) < fields.index("-") + 4:
            continue
        kind, _, options = fields[fields.index("-") + 1 :][:3]
        if kind not in ("cgroup", "cgroup2") or (kind == "cgroup" and "cpu" not in options.split(",")):
            continue
        inside, point = Path(fields[3]), root / fields[4].lstrip("/")
        for group in groups:
            _, controllers, path = group.split(":", 2)
            if (kind == "cgroup2" and controllers == "") or (kind == "cgroup" and "cpu" in controllers.split(",")):
                yield from _upwards(point, inside, Path(path))


def _upwards(point: Path, inside: Path, path: Path) -> Iterator[Path]:
    """Give the folder of a group below a mount point, and those of the groups around it.

    A container often sees its own group as the root of the file system, whatever the kernel calls the group.
    """
    relative = path.relative_to(inside) if path.is_relative_to(inside) else path.relative_to(path.anchor)
    folder = point / relative
    if ".." in relative.parts or not folder.is_dir():
        folder = point
    yield folder
    while folder != point:
        folder = folder.parent
        yield folder
