"""Code generation: from packed data and schedules to programs."""
