"""Functions compiled for the device by sendnn."""

from collections.abc import Iterator

import pytest
import torch

from spyre_backend import sendnn
from tests.spyre_backend.on_device import OnDevice


@pytest.fixture
def on_device() -> Iterator[OnDevice]:
    sendnn.register()
    torch._dynamo.reset()
    with torch.no_grad():
        yield OnDevice("sendnn")
    torch._dynamo.reset()
