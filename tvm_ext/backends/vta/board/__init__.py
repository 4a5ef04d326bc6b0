"""Boards: the driver, RPC, and the self-test."""
