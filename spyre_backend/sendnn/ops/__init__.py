"""The operator table: ATen overload -> what makes its result out of those of its operands. All is written by hand.

A lowering takes the `Graph` and the operator's arguments, with tensors as `Tensor`, and returns a `Tensor` or a tuple.
"""

from spyre_backend.sendnn.ops import attention, contractions, creation, indexing, pointwise, reductions, sorting, views
from spyre_backend.sendnn.ops.table import LOWERINGS
from spyre_backend.sendnn.ops.views import VIEWS

__all__ = ["LOWERINGS", "VIEWS"]

_ROOMS = (attention, contractions, creation, indexing, pointwise, reductions, sorting, views)  # each fills the table
