"""What can be said about a stream without running it: accesses, dependencies, races, differences of hardware."""
