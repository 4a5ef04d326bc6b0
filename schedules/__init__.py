"""Schedule rules and tensor intrinsics, one file per operator family and target."""
