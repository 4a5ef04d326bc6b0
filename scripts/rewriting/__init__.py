"""What algebraic rewriting does to many networks: parts of ``count_rules.py``."""
