"""Read-only dataflow view of a Relax function, shared by all graph passes."""
