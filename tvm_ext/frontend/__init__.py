"""From a model file or a framework object to a Relax module."""
