"""The two simulators, and recordings to compare them with."""
