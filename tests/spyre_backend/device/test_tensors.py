"""Storage, copies, aliasing and mutation: what the device's tensors promise without any operator of their own."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from spyre_backend.device import as_cpu

pytestmark = pytest.mark.filterwarnings("ignore::spyre_backend.HostFallbackWarning", "ignore:Sparse:UserWarning")

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip_keeps_every_bit(dtype: torch.dtype) -> None:
    host = torch.randn(5, 7).to(dtype)
    there = host.to("spyre")
    assert there.device == torch.device("spyre:0")
    assert there.dtype == dtype
    assert torch.equal(there.cpu().view(torch.uint8), host.view(torch.uint8))


def layouts() -> dict[str, torch.Tensor]:
    base = torch.randn(2, 3, 4, 5)
    return {
        "transposed": base.transpose(1, 3),
        "sliced": base[:, 1:, ::2],
        "offset": base.flatten()[7:],
        "expanded": base[:1, :1].expand(3, 2, 4, 5),
        "channels_last": base.to(memory_format=torch.channels_last),
        "empty": base[:0],
        "scalar": base[0, 0, 0, 0],
        "conjugate": torch.randn(3, 4, dtype=torch.complex64).t().conj(),
        "negative": torch.randn(3, dtype=torch.complex64).conj().imag,
    }


@pytest.mark.parametrize("name", layouts())
def test_copies_agree_for_every_layout(name: str) -> None:
    host = layouts()[name]
    there = host.to("spyre")
    assert torch.equal(there.cpu(), host)
    # A view of device memory with the same strides, and a copy of it with another dtype.
    target = torch.empty_strided(host.shape, host.contiguous().stride(), dtype=host.dtype, device="spyre")
    target.copy_(there)
    assert torch.equal(target.cpu(), host)
    wide = torch.complex128 if host.is_complex() else torch.float64
    assert torch.equal(there.to(wide).cpu(), host.to(wide))


def test_strides_survive_the_way_to_the_device() -> None:
    host = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert host.to("spyre").stride() == host.stride()
    assert host.to("spyre").is_contiguous(memory_format=torch.channels_last)


def test_views_share_storage_and_in_place_operators_return_self() -> None:
    x = torch.zeros(4, 6, device="spyre")
    storage = x.untyped_storage().data_ptr()
    for view in (x[1], x.t(), x.view(6, 4), x.unfold(0, 2, 1), x.diagonal(), x.as_strided((2,), (3,)), x.detach()):
        assert view.untyped_storage().data_ptr() == storage
    assert x.add_(1) is x
    x[1:3, ::2].mul_(5)
    expected = torch.ones(4, 6)
    expected[1:3, ::2] = 5
    assert torch.equal(x.cpu(), expected)
    assert x._version >= 2


def test_out_is_written_and_resized() -> None:
    a = torch.randn(3, 4, device="spyre")
    out = torch.empty(3, 4, device="spyre")
    pointer = out.data_ptr()
    assert torch.add(a, a, out=out) is out
    assert out.data_ptr() == pointer
    resized = torch.empty(0, device="spyre")
    view_of_the_same = resized.view(0)
    torch.mul(a, 2, out=resized)
    assert resized.shape == (3, 4)
    assert torch.equal(resized.cpu(), (a * 2).cpu())
    assert view_of_the_same.untyped_storage().nbytes() == resized.untyped_storage().nbytes()
    values, indices = torch.empty(0, device="spyre"), torch.empty(0, dtype=torch.int64, device="spyre")
    torch.max(a, 1, out=(values, indices))
    assert torch.equal(values.cpu(), a.cpu().max(1).values)


def test_overlap_of_input_and_output_is_noticed() -> None:
    x = torch.randn(8, device="spyre")
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.add(x[:-1], 1, out=x[1:])


def test_list_arguments_are_mutated() -> None:
    tensors = [torch.ones(3, device="spyre"), torch.ones(2, device="spyre")]
    torch._foreach_add_(tensors, 2)
    assert [t.sum().item() for t in tensors] == [9, 6]
    weight = torch.ones(3, device="spyre", requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=0.1)
    (weight * 2).sum().backward()
    optimizer.step()
    assert torch.allclose(weight.detach().cpu(), torch.full((3,), 0.9))


def test_as_cpu_shares_memory_and_keeps_it_alive() -> None:
    x = torch.arange(12.0, device="spyre").view(3, 4)
    view = x.t()[1:]
    alias = as_cpu(view)
    assert alias.device.type == "cpu"
    assert (alias.shape, alias.stride(), alias.storage_offset()) == (view.shape, view.stride(), view.storage_offset())
    assert alias.data_ptr() == view.data_ptr()
    alias.fill_(-1)
    assert x[:, 1:].sum().item() == -9
    assert torch._C._is_alias_of(as_cpu(x), as_cpu(x[1]))
    del x, view
    assert alias.sum().item() == -9
    with pytest.raises(RuntimeError, match="spyre tensor"):
        as_cpu(torch.ones(1))


def test_resize_and_set() -> None:
    x = torch.arange(4.0, device="spyre")
    x.resize_(2, 3)
    assert torch.equal(x.cpu().flatten()[:4], torch.arange(4.0))
    x.untyped_storage().resize_(64)
    assert x.untyped_storage().nbytes() == 64
    y = torch.empty(0, device="spyre")
    y.set_(x.untyped_storage(), 1, (2,), (2,))
    assert torch.equal(y.cpu(), torch.tensor([1.0, 3.0]))
    assert y.set_().numel() == 0


def test_mixing_devices_is_an_error_except_for_numbers_and_indices() -> None:
    x = torch.arange(4.0, device="spyre")
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(4)
    with pytest.raises(RuntimeError, match="same device"):
        torch.add(x, x, out=torch.empty(4))
    assert torch.equal((x + torch.tensor(1.0)).cpu(), torch.arange(1.0, 5.0))
    assert torch.equal(x[torch.tensor([3, 0])].cpu(), torch.tensor([3.0, 0.0]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(2).to_sparse().to("spyre"),
        lambda: torch.ones(2, device="spyre").to_sparse(),
        lambda: torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (2,), device="spyre"),
        lambda: torch.quantize_per_tensor(torch.ones(2, device="spyre"), 1.0, 0, torch.qint8),
        lambda: torch.empty(2, dtype=torch.qint8, device="spyre"),
    ],
)
def test_what_is_not_dense_is_refused_clearly(make) -> None:
    with pytest.raises(NotImplementedError, match=r"spyre device holds|no quantized"):
        make()


def test_pickle_save_deepcopy_and_print() -> None:
    x = torch.randn(3, 2, device="spyre").t()
    for other in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x), x.clone()):
        assert other.device == x.device
        assert other.stride() == x.stride()
        assert torch.equal(other.cpu(), x.cpu())
        assert other.data_ptr() != x.data_ptr()
    buffer = io.BytesIO()
    torch.save({"x": x}, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer)["x"].cpu(), x.cpu())
    buffer.seek(0)
    assert torch.load(buffer, map_location="cpu")["x"].device.type == "cpu"
    assert "device='spyre:0'" in repr(x)
    module = torch.nn.Linear(2, 2).spyre()
    assert module.weight.is_spyre


def test_results_of_one_call_that_share_storage_still_do() -> None:
    x = torch.randn(6, device="spyre")
    parts = torch.split(x, 2)
    parts[1].zero_()
    assert x[2:4].abs().sum().item() == 0
    real = torch.view_as_real(torch.zeros(2, dtype=torch.complex64, device="spyre"))
    assert real.shape == (2, 2)
