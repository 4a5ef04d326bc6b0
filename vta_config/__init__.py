"""VTA hardware configurations as JSON, in upstream's key names."""
