"""What can be said of AArch64 without such a machine: models under an emulator, inner loops under an analyser."""
