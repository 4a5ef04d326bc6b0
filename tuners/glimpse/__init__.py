"""Glimpse: what a data sheet says of the hardware guides a tuner (Ahn, dissertation, UC San Diego, 2022, chapter 4).

:mod:`.datasheets` has the data sheets, :mod:`.blueprint` makes short vectors of them, :mod:`.artefact` has what was
trained on other machines and layers, :mod:`.guide` applies it to one space.
"""
