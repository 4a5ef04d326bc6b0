"""Dataflow embedding: how an instruction fits an operator is found by constraint solving, and layout and code follow.

After Rieber, "Deployment of Deep Neural Networks on Dedicated Hardware Accelerators" (dissertation, Heidelberg 2022),
chapter 4; "the source" in this room.
"""
