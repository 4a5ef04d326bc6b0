"""Make what Glimpse ships with: landscapes of VTA on many designs, trained networks, and their comparison."""
