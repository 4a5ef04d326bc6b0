"""Search for schedules of a model's kernels that are faster than the rules' own choices."""

from tvm_ext.tuning.loop import KernelResult, Task, TuningResult, kernels_to_tune, open_database, tune

__all__ = ["KernelResult", "Task", "TuningResult", "kernels_to_tune", "open_database", "tune"]
