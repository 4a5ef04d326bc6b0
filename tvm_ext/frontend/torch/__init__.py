"""From a PyTorch module or exported program to a Relax module."""
