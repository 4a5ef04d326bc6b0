"""GPUs, with the schedules that come with TVM."""
