"""Cost models that were trained before: on measurements of other networks' kernels."""
