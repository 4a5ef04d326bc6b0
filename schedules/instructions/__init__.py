"""Instructions that multiply and add, one row each: what they mean, how they are written, what they need and cost."""
