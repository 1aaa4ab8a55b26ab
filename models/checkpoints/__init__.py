"""Checkpoints: published ones are read tensor by tensor, and converted once to the layouts that kernels take.

source = open_checkpoint(folder)                 # sharded or not; headers only
source.require([("norm.weight", Expected((5120,), FLOATING))])
source.read("norm.weight")                       # memory-mapped
source.read("proj.weight", slice(0, 1280))       # this rank's rows

convert(destination, description, parts)         # resumable; `destination` appears when it is whole
description, packed = open_converted(destination)
"""

from models.checkpoints.conversion import Part as Part
from models.checkpoints.conversion import convert as convert
from models.checkpoints.conversion import open_converted as open_converted
from models.checkpoints.errors import CheckpointError as CheckpointError
from models.checkpoints.reading import FLOATING as FLOATING
from models.checkpoints.reading import Checkpoint as Checkpoint
from models.checkpoints.reading import Expected as Expected
from models.checkpoints.reading import open_checkpoint as open_checkpoint
