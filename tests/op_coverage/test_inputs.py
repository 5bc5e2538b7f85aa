"""From an OpInfo sample to the call that is judged."""

import torch

from op_coverage import inputs, upstream


def test_a_tensor_that_is_passed_twice_stays_one_tensor():
    x = torch.randn(3, requires_grad=True)
    made = inputs._detach(0, upstream.SampleInput(x, x, torch.ones(3)))
    assert made.args[0] is made.args[1]
    assert made.differentiable == (0, 1)
