"""Parts of check_house.py: one measurement of the package itself a file."""
