"""GPUs by NVIDIA: CUDA targets."""
