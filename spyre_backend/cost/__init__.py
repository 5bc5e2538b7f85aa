"""How long a program takes on the device, and on how many of its cores. Needs neither torch nor a compiler."""

from spyre_backend.cost.division import Division
from spyre_backend.cost.footprint import Footprint, footprints
from spyre_backend.cost.model import Bound, Cause, Cost, cost, divided

__all__ = ["Bound", "Cause", "Cost", "Division", "Footprint", "cost", "divided", "footprints"]
