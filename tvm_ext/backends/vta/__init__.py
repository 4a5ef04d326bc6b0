"""VTA: hardware configurations, the instruction set, simulators, and the cycle model.

VTA is the Versatile Tensor Accelerator of Moreau et al., "A Hardware-Software Blueprint for Flexible Deep Learning
Specialization", IEEE Micro 2019.
"""
