"""Files of C and make that are filled in."""
