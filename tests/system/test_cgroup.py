from __future__ import annotations

from pathlib import Path

import pytest

from tvm_ext.system import threads
from tvm_ext.system.cgroup import cpu_quota


def system(root: Path, groups: str, mounts: str, files: dict[str, str]) -> Path:
    """Write what the kernel would show of control groups below ``root``."""
    for name, text in {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


UNIFIED = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
OLD = "33 25 0:28 {inside} /sys/fs/cgroup/cpu,cpuacct rw shared:15 - cgroup cgroup rw,cpu,cpuacct\n"


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "quota"),
    [
        ("0::/\n", UNIFIED, {"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/\n", UNIFIED, {"sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ("0::/\n", UNIFIED, {}, None),
        (  # the smallest of those around it counts
            "0::/a/b\n",
            UNIFIED,
            {"sys/fs/cgroup/a/cpu.max": "150000 100000\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"},
            1.5,
        ),
        (  # a container that sees its own group as the root
            "0::/../kubepods/pod1\n",
            UNIFIED,
            {"sys/fs/cgroup/cpu.max": "200000 100000\n"},
            2.0,
        ),
        (
            "4:memory:/x\n3:cpu,cpuacct:/docker/1f\n",
            OLD.format(inside="/docker/1f"),
            {
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "25000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "50000\n",
            },
            0.5,
        ),
        (
            "3:cpu,cpuacct:/slice\n",
            OLD.format(inside="/"),
            {
                "sys/fs/cgroup/cpu,cpuacct/slice/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu,cpuacct/slice/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ("0::/\n", UNIFIED, {"sys/fs/cgroup/cpu.max": "damaged\n"}, None),
    ],
)
def test_quota(tmp_path: Path, groups: str, mounts: str, files: dict[str, str], quota: float | None) -> None:
    assert cpu_quota(system(tmp_path, groups, mounts, files)) == quota


def test_without_control_groups(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None


@pytest.mark.parametrize(("quota", "cores"), [(None, 4), (0.5, 1), (1.5, 2), (3.0, 3), (64.0, 4)])
def test_cores_are_at_most_the_quota(monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int) -> None:
    monkeypatch.setattr(threads, "cpu_quota", lambda: quota)
    monkeypatch.setattr(threads, "_one_of_each_core", lambda: [0, 2, 4, 6])
    assert threads.physical_cores.__wrapped__() == cores


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({"TVM_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, 3),
        ({"OMP_NUM_THREADS": "5"}, 5),
        ({"TVM_NUM_THREADS": "0"}, 1),
        ({"TVM_NUM_THREADS": "many"}, 1),
        ({}, 7),
    ],
)
def test_threads_are_what_the_user_says(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], count: int) -> None:
    for variable in threads.VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(threads, "physical_cores", lambda: 7)
    assert threads.threads() == count
