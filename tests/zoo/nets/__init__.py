"""Definitions of well-known networks in torch, out of standard layers; one file for each family, sizes as arguments."""
