"""C sources that are linked to every Hexagon program."""
