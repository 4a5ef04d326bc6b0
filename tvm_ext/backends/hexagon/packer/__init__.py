"""Our own packets for Hexagon: dependences, slots and pipes, soft-dependence-aware packing, a model of cycles."""
