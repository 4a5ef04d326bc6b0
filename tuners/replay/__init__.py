"""Tuners at work on recorded or simulated landscapes: experiments without a machine to measure on."""
