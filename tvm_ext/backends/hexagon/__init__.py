"""Hexagon DSPs, through TVM's code generator."""
