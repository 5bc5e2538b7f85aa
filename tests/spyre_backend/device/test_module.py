"""`torch.spyre`, `torch.accelerator`, simulated time and memory."""

from __future__ import annotations

import pytest
import torch

import spyre_backend
from spyre_backend.device import clock, memory

pytestmark = pytest.mark.filterwarnings("ignore::spyre_backend.HostFallbackWarning")


def test_devices() -> None:
    assert torch.spyre.is_available()
    assert torch.spyre.device_count() == 1
    assert torch.spyre.current_device() == 0
    torch.spyre.set_device("spyre:0")
    with torch.spyre.device(0):
        assert torch.empty(1, device="spyre").device.index == 0
    with pytest.raises(RuntimeError, match="spyre:3"):
        torch.spyre.set_device(3)
    with pytest.raises(RuntimeError, match="expected a spyre device"):
        torch.spyre.set_device("cpu")
    assert torch.get_device_module("spyre") is torch.spyre
    properties = torch.spyre.get_device_properties()
    assert (properties.multi_processor_count, properties.stick_bytes) == (32, 128)
    assert torch.spyre.is_bf16_supported()
    with pytest.raises(AttributeError, match="no_such_thing"):
        torch.spyre.no_such_thing  # noqa: B018


def test_accelerator() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("spyre")
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == 1
    torch.accelerator.synchronize()
    supported = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float16, torch.float32, torch.bfloat16, torch.int64} <= set(supported)


def test_events_read_simulated_time() -> None:
    start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    before = clock.now()
    start.record()
    clock.advance(1.5e-3)
    clock.advance(0.5e-6)
    end.record()
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) == 1.5005
    assert clock.now() - before == pytest.approx(1.5005e-3)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)
    assert isinstance(start, torch.spyre.Event)
    assert issubclass(torch.spyre.Event, torch.Event)


def test_streams() -> None:
    default = torch.spyre.current_stream()
    assert default == torch.spyre.default_stream()
    stream = torch.spyre.Stream()
    assert isinstance(stream, torch.Stream)
    assert stream != default
    with torch.spyre.stream(stream):
        assert torch.spyre.current_stream() == stream
        x = torch.ones(3, device="spyre") * 2
        x.record_stream(stream)
    assert torch.spyre.current_stream() == default
    stream.synchronize()
    assert stream.query()
    default.wait_stream(stream)
    torch.spyre.synchronize()


def test_memory_statistics() -> None:
    torch.spyre.reset_peak_memory_stats()
    start = torch.spyre.memory_allocated()
    allocations = torch.spyre.memory_stats()["allocation.all.allocated"]
    x = torch.empty(1000, device="spyre")  # 4000 bytes: 32 sticks
    assert torch.spyre.memory_allocated() - start == 4096
    assert torch.spyre.memory_reserved() == torch.spyre.memory_allocated()
    y = x + 1  # a result of the host counts too
    view = y[:10]
    assert torch.spyre.memory_allocated() - start == 8192
    del x, y
    assert torch.spyre.memory_allocated() - start == 4096
    del view
    assert torch.spyre.memory_allocated() == start
    assert torch.spyre.max_memory_allocated() - start == 8192
    stats = torch.accelerator.memory_stats()
    assert stats["allocation.all.allocated"] - allocations == 2
    torch.spyre.reset_peak_memory_stats()
    assert torch.spyre.max_memory_allocated() == start
    torch.spyre.empty_cache()
    free, total = torch.spyre.mem_get_info()
    assert free == total - start


def test_memory_is_not_leaked_by_fallbacks() -> None:
    def work() -> None:
        x = torch.randn(16, 16, device="spyre", requires_grad=True)
        torch.nn.functional.conv2d(x[None, None], x[None, None, :3, :3]).relu().sum().backward()
        out = torch.empty(0, device="spyre")
        torch.add(x.detach(), 1, out=out)
        torch.stack([x, x]).unbind()

    work()
    start = torch.spyre.memory_allocated()
    for _ in range(5):
        work()
    assert torch.spyre.memory_allocated() == start


def test_running_out_of_memory() -> None:
    used = torch.spyre.memory_allocated()
    with memory.limited_to(used + 1024):
        kept = torch.empty(256, dtype=torch.uint8, device="spyre")
        with pytest.raises(torch.OutOfMemoryError, match="spyre is out of memory"):
            torch.empty(1024, device="spyre")
        del kept
    assert torch.empty(1024, device="spyre").numel() == 1024


def test_fresh_memory_can_be_poisoned() -> None:
    with memory.fresh_memory_filled_with(0xFF):
        assert torch.empty(33, device="spyre").isnan().all().item()
        assert torch.empty(33, dtype=torch.float16, device="spyre").isnan().all().item()
        assert (torch.empty(5, dtype=torch.int32, device="spyre") == -1).all().item()
        tail = torch.ones(3, device="spyre")
        stick = spyre_backend.device.as_cpu(tail).as_strided((3,), (1,))
        assert stick.tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="not a byte"), memory.fresh_memory_filled_with(256):
        pass


def test_data_is_aligned_to_sticks() -> None:
    for n in (1, 3, 1000, 100_000):
        assert torch.empty(n, device="spyre").data_ptr() % 128 == 0
