"""What a compilation gives: run, saved, loaded."""
