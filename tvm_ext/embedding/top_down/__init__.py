"""The top-down engine: an operator is rewritten until patterns of instructions match it (chapter 3 of the source)."""
