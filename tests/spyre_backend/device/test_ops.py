"""Operators: the same results and strides as the CPU, autograd, random numbers, autocast, and what is counted."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import spyre_backend
from spyre_backend.device.counters import count_transfers

pytestmark = pytest.mark.filterwarnings("ignore::spyre_backend.HostFallbackWarning")


def on(device: str, function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The result and all gradients of `function` on a device, on the host."""
    leaves = [x.detach().to(device).requires_grad_(x.is_floating_point()) for x in inputs]
    torch.manual_seed(11)
    result = function(*leaves)
    result.sum().backward()
    return [result.detach().cpu(), *(x.grad.cpu() for x in leaves if x.grad is not None)]


RANDOM = {
    "rand": lambda device: torch.rand(1000, device=device),
    "randn": lambda device: torch.randn(1001, device=device),
    "randn_half": lambda device: torch.randn(33, device=device, dtype=torch.float16),
    "randint": lambda device: torch.randint(0, 99, (50,), device=device),
    "randperm": lambda device: torch.randperm(257, device=device),
    "dropout": lambda device: F.dropout(torch.linspace(1, 2, 999, device=device), 0.3),
    "alpha_dropout": lambda device: F.alpha_dropout(torch.linspace(1, 2, 99, device=device), 0.3, training=True),
    "bernoulli": lambda device: torch.full((99,), 0.4, device=device).bernoulli(),
    "multinomial": lambda device: torch.full((9,), 0.4, device=device).multinomial(20, replacement=True),
    "normal_": lambda device: torch.empty(20, device=device).normal_(1, 2),
    "exponential_": lambda device: torch.empty(20, device=device).exponential_(),
    "rrelu": lambda device: F.rrelu(torch.linspace(-1, 1, 30, device=device), training=True),
}


@pytest.mark.parametrize("name", RANDOM)
def test_seeded_random_numbers_are_those_of_the_cpu(name: str) -> None:
    draw = RANDOM[name]
    torch.manual_seed(5)
    expected = [draw("cpu") for _ in range(2)]
    torch.manual_seed(5)
    got = [draw("spyre").cpu() for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


def test_drawing_on_the_device_leaves_the_cpu_generator_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    for draw in RANDOM.values():
        draw("spyre")
    assert torch.equal(torch.rand(3), expected)


def test_generators_are_separate_and_restorable() -> None:
    generator = torch.Generator(device="spyre").manual_seed(3)
    host = torch.Generator().manual_seed(3)
    assert torch.equal(torch.rand(4, device="spyre", generator=generator).cpu(), torch.rand(4, generator=host))
    assert generator.device == torch.device("spyre:0")
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(4, device="spyre", generator=host)
    state = torch.spyre.get_rng_state()
    first = torch.rand(4, device="spyre").cpu()
    torch.spyre.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="spyre").cpu(), first)
    torch.spyre.manual_seed(9)
    assert torch.spyre.initial_seed() == 9
    with torch.random.fork_rng(devices=[0], device_type="spyre"):
        torch.rand(4, device="spyre")
    assert torch.equal(torch.rand(2, device="spyre").cpu(), torch.rand(2, generator=torch.Generator().manual_seed(9)))


DIFFERENTIABLE = {
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, padding=1), (2, 4, 9), (6, 4, 3), (6,)),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), (2, 4, 9, 8), (6, 4, 3, 3), (6,)),
    "conv2d_grouped": (lambda x, w, b: F.conv2d(x, w, b, groups=2, dilation=2), (2, 4, 9, 8), (6, 2, 3, 3), (6,)),
    "conv3d": (lambda x, w, b: F.conv3d(x, w, b), (1, 2, 5, 5, 5), (3, 2, 3, 3, 3), (3,)),
    "conv_transpose2d": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, output_padding=1),
        (2, 4, 5, 5),
        (4, 3, 3, 3),
        (3,),
    ),
    "convolution_overrideable": (
        lambda x, w, b: torch.ops.aten.convolution_overrideable(x, w, b, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        (2, 4, 5, 5),
        (3, 4, 3, 3),
        (3,),
    ),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (4, 3, 5), (3,), (3,)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (7,), w, b), (4, 3, 7), (7,), (7,)),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (4, 6, 7), (6,), (6,)),
    "linear": (F.linear, (5, 4), (3, 4), (3,)),
    "dropout": (lambda x: F.dropout(x, 0.3), (50, 5)),
    "mish": (F.mish, (30,)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (2, 3, 6, 6)),
    "indexing": (lambda x: x[[0, 2, 0]] * x[:, 1:2].sum(), (4, 5)),
    "in_place": (lambda x: (x * 2).mul_(3).relu_(), (40,)),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_forward_and_backward_agree_with_the_cpu(name: str) -> None:
    function, *shapes = DIFFERENTIABLE[name]
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, generator=generator) for shape in shapes]
    # The CPU has no overrideable convolution: compare with the operator that it stands for.
    reference = F.conv2d if name == "convolution_overrideable" else function
    expected = on("cpu", reference, *inputs)
    got = on("spyre", function, *inputs)
    assert len(expected) == len(got)
    for a, b in zip(expected, got, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool) -> None:
    inputs = [torch.randn(2, 3, 8, 4) for _ in range(3)]

    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    for a, b in zip(on("cpu", attention, *inputs), on("spyre", attention, *inputs), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cell", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN], ids=lambda cell: cell.__name__)
def test_recurrent_networks(cell: type[torch.nn.Module]) -> None:
    torch.manual_seed(0)
    network = cell(3, 4, num_layers=2, bidirectional=True)
    x = torch.randn(5, 2, 3)
    expected = network(x)[0]
    expected.sum().backward()
    gradients = [p.grad.clone() for p in network.parameters()]
    network.zero_grad()
    network.to("spyre")
    got = network(x.to("spyre"))[0]
    got.sum().backward()
    torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=1e-5, atol=1e-5)
    for parameter, gradient in zip(network.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), gradient, rtol=1e-4, atol=1e-5)


def test_convolution_has_the_strides_that_shape_inference_promises() -> None:
    x = torch.randn(2, 4, 9, 8).to(memory_format=torch.channels_last)
    w = torch.randn(6, 4, 3, 3).to(memory_format=torch.channels_last)
    real = F.conv2d(x.to("spyre"), w.to("spyre"))
    with FakeTensorMode():
        fake = F.conv2d(
            torch.empty_strided(x.shape, x.stride(), device="spyre"),
            torch.empty_strided(w.shape, w.stride(), device="spyre"),
        )
    assert real.stride() == fake.stride()


def test_complex_views_are_read_through() -> None:
    host = torch.randn(3, 3, dtype=torch.complex64)
    there = host.to("spyre")
    assert there.conj().is_conj()
    assert torch.equal((there.conj() @ there.mH).cpu(), host.conj() @ host.mH)
    assert torch.equal(there.conj().imag.clone().cpu(), host.conj().imag)
    assert torch.equal(there.conj().resolve_conj().cpu(), host.conj().resolve_conj())


def test_fallbacks_are_counted_by_overload_and_views_are_not() -> None:
    x = torch.ones(4, device="spyre")
    with spyre_backend.count_fallbacks() as counts:
        y = x + x
        y.add_(1)
        y.t().unfold(0, 2, 1).view(3, 2)[1:]
        torch.mul(x, y, out=y)
        with spyre_backend.count_fallbacks() as inner:
            x.exp()
    assert counts == {"aten::add.Tensor": 1, "aten::add_.Tensor": 1, "aten::mul.out": 1, "aten::exp": 1}
    assert inner == {"aten::exp": 1}
    before = spyre_backend.fallback_counts()
    assert before["aten::add.Tensor"] >= 1
    spyre_backend.reset_fallback_counts()
    assert spyre_backend.fallback_counts() == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_the_device_fills_its_own_memory(dtype: torch.dtype) -> None:
    x = torch.ones(3, 4, dtype=dtype, device="spyre")
    version = x._version
    with spyre_backend.count_fallbacks() as counts:
        x[:, 1:3].fill_(0)
        x[2].zero_()
        made = torch.full((2,), True, dtype=dtype, device="spyre"), torch.zeros(2, dtype=dtype, device="spyre")
    assert counts == {}
    assert x._version > version
    assert x.cpu().tolist() == [[1, 0, 0, 1], [1, 0, 0, 1], [0, 0, 0, 0]]
    assert [t.cpu().tolist() for t in made] == [[1, 1], [0, 0]]


def test_a_fallback_warns_once_for_each_operator() -> None:
    x = torch.ones(4, device="spyre")
    spyre_backend.reset_fallback_counts(warnings=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            x.cos()
            x.sin()
    named = [str(w.message).split()[0] for w in caught if w.category is spyre_backend.HostFallbackWarning]
    assert named == ["aten::cos", "aten::sin"]
    spyre_backend.reset_fallback_counts(warnings=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", spyre_backend.HostFallbackWarning)
        with pytest.raises(spyre_backend.HostFallbackWarning, match="aten::cos"):
            x.cos()


def test_copies_are_counted_by_direction() -> None:
    with count_transfers() as counts:
        x = torch.ones(8).to("spyre")
        x.to(torch.float16)
        x.cpu()
        x[0].item()
    assert counts == {
        "host_to_device": 1,
        "host_to_device_bytes": 32,
        "device_to_device": 1,
        "device_to_device_bytes": 32,
        "device_to_host": 2,
        "device_to_host_bytes": 36,
    }


def test_an_operator_without_a_cpu_kernel_is_refused() -> None:
    x = torch.ones(2, 2, device="spyre")
    with pytest.raises(NotImplementedError, match="neither a spyre kernel nor a CPU kernel"):
        torch.ops.aten._cudnn_rnn_flatten_weight([x], 0, 0, 0, 0, 0, 0, False, False)


def test_custom_operators_of_users_fall_back() -> None:
    with torch.library._scoped_library("spyre_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        x = torch.ones(2, device="spyre")
        with spyre_backend.count_fallbacks() as counts:
            assert torch.equal(torch.ops.spyre_test.twice(x).cpu(), torch.full((2,), 2.0))
        assert counts == {"spyre_test::twice": 1}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_policy(dtype: torch.dtype) -> None:
    a, b = torch.randn(4, 4, device="spyre"), torch.randn(4, 4, device="spyre")
    with torch.autocast("spyre", dtype=dtype):
        assert (a @ b).dtype == dtype
        assert F.linear(a, b).dtype == dtype
        assert F.conv2d(a[None, None], b[None, None]).dtype == dtype
        low = a @ b
        assert low.exp().dtype == torch.float32
        assert low.softmax(-1).dtype == torch.float32
        assert low.sum().dtype == torch.float32
        assert low.norm().dtype == torch.float32
        assert torch.addcmul(a, low, low).dtype == torch.float32
        assert low.relu().dtype == dtype
        with torch.autocast("spyre", enabled=False):
            assert (a @ b).dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
            assert (a @ b).dtype == dtype
    assert (a @ b).dtype == torch.float32


def test_autocast_backward_returns_the_weights_dtype() -> None:
    weight = torch.randn(4, 4, device="spyre", requires_grad=True)
    with torch.autocast("spyre", dtype=torch.bfloat16):
        loss = (weight @ weight).float().sum()
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32


def test_a_cpu_autocast_region_does_not_change_what_the_device_computes() -> None:
    x = torch.randn(4, 4, device="spyre")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal((x @ x).cpu(), x.cpu().double().matmul(x.cpu().double()).float()) or (x @ x).dtype == x.dtype


def test_inference_mode_and_forward_mode() -> None:
    x = torch.randn(3, device="spyre")
    with torch.inference_mode():
        assert (x * 2).add_(1).is_inference()
    primal, tangent = torch.func.jvp(lambda t: t.sin() * t, (x,), (torch.ones(3, device="spyre"),))
    host = x.cpu()
    torch.testing.assert_close(tangent.cpu(), host.cos() * host + host.sin())
    assert primal.device.type == "spyre"
    batched = torch.func.vmap(lambda t: t.cumsum(0))(torch.ones(2, 3, device="spyre"))
    assert batched.cpu().tolist() == [[1, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_whole_numbers_are_counted_as_on_accelerators(dtype: torch.dtype, compiled: bool) -> None:
    """The CPU refuses them; models count the tokens of an expert so on every other device."""
    experts = torch.tensor([0, 3, 3, 1, 7, 0, 3, 9]).to(dtype)

    def count(x: torch.Tensor) -> torch.Tensor:
        return torch.histc(x, bins=8, min=0, max=7)

    torch._dynamo.reset()
    got = (torch.compile(count) if compiled else count)(experts.to("spyre"))
    assert got.dtype == dtype
    assert got.cpu().tolist() == [2, 1, 0, 3, 0, 0, 0, 1]
