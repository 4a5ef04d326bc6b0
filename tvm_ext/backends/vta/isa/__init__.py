"""The instruction set: instructions, their text form, the modules that run them, and why a stream is refused."""
