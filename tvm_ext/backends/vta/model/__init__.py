"""From a model in floats to regions of layers on VTA: quantisation, partition, borders."""
