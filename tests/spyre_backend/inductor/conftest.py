"""Functions compiled for the device by Inductor."""

from collections.abc import Iterator

import pytest
import torch

from tests.spyre_backend.on_device import OnDevice


@pytest.fixture
def on_device() -> Iterator[OnDevice]:
    torch._dynamo.reset()
    yield OnDevice()
    torch._dynamo.reset()
