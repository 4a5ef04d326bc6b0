"""What only one target needs: a folder for each."""
