"""Each kind of computation, compiled for the device: right, and native."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

aten = torch.ops.aten


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def ints(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(high))


FEATURES: dict[str, tuple[Callable, tuple]] = {
    "pointwise": (lambda x, y: torch.relu(x) + y * 2 - y.sigmoid(), (randn(5, 6), randn(6))),
    "transposed": (lambda x, y: x.t() + y[:, ::2], (randn(5, 6), randn(6, 10))),
    "flip": (lambda x: x.flip(0) - x.flip(1), (randn(5, 6),)),
    "cat_and_pad": (lambda x, y: F.pad(torch.cat([x, y], 1), (1, 2), value=3.0), (randn(5, 6), randn(5, 4))),
    "integer_division": (lambda x, y: (x // y, x % y, torch.fmod(x, y)), (ints(50, 20) - 25, ints(5, 20) - 7)),
    "comparison": (lambda x, y: torch.where(x > y, x, y.clamp(-1, 1)), (randn(9), randn(9))),
    "sum_and_max": (lambda x: (x.sum(0), x.amax(1), x.prod(), x.any(1)), (randn(5, 6),)),
    "softmax": (lambda x: x.softmax(-1), (randn(7, 33),)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (32,), w, b), (randn(4, 32), randn(32), randn(32))),
    "variance": (lambda x: torch.var_mean(x, 1), (randn(6, 50),)),
    "large_reduction": (lambda x: (x.sum(), x.var()), (randn(40_000),)),
    "argmax": (lambda x: (x.argmax(1), x.argmin(), x.max(0)), (ints(4, 6, 7),)),
    "cumsum": (lambda x: (x.cumsum(1), x.cumprod(0)), (randn(5, 6),)),
    "cummax": (lambda x: x.cummax(1), (ints(5, 4, 9).float(),)),
    "logcumsumexp": (lambda x: x.logcumsumexp(0), (randn(7, 3),)),
    "sort": (lambda x: x.sort(dim=1, stable=True), (ints(9, 4, 20),)),
    "sort_large": (lambda x: x.sort(stable=True), (ints(99, 1500),)),
    "topk": (lambda x: x.topk(3), (torch.randperm(20).float().reshape(2, 10),)),
    "median": (
        lambda x: (x.median(1).values, x.nanmedian(1).values),
        (torch.tensor([[3.0, 1, 2], [1, float("nan"), 0]]),),
    ),
    "order_statistics": (lambda x: (*x.topk(3, dim=0), *x.kthvalue(2, dim=1)), (randn(9, 4, 20),)),
    "gather": (lambda x, i: x.gather(1, i), (randn(5, 6), ints(6, 5, 3))),
    "embedding": (lambda w, i: F.embedding(i, w), (randn(11, 4), ints(11, 2, 5))),
    "index": (lambda x, i: x[i, :-1], (randn(5, 6), ints(5, 8) - 5)),
    "index_put_accumulate": (
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        (randn(5, 3), ints(5, 9), randn(9, 3)),
    ),
    "scatter_add": (lambda x, i, v: x.scatter_add(0, i, v), (randn(5, 3), ints(5, 7, 3), randn(7, 3))),
    "scatter_amax": (lambda x, i, v: x.scatter_reduce(0, i, v, "amax"), (randn(5, 3), ints(5, 7, 3), randn(7, 3))),
    "scatter_mean": (
        lambda x, i, v: x.scatter_reduce(0, i, v, "mean", include_self=False),
        (randn(5, 3), ints(3, 7, 3), randn(7, 3)),
    ),
    "masked_fill": (lambda x, m: x.masked_fill(m, -1.5), (randn(5, 6), ints(2, 5, 6).bool())),
    "bucketize": (
        lambda x, b: (torch.bucketize(x, b), torch.searchsorted(b, x, right=True)),
        (randn(30), torch.linspace(-1, 1, 7)),
    ),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), (randn(1, 2, 5, 6),)),
    "matmul": (lambda a, b: a @ b, (randn(5, 6), randn(6, 7))),
    "matmul_epilogue": (
        lambda a, b, c: torch.relu(torch.addmm(c, a, b, alpha=2, beta=0.5)),
        (randn(5, 6), randn(6, 7), randn(7)),
    ),
    "bmm": (lambda a, b: torch.baddbmm(a[:, :, :1], a, b.transpose(1, 2)), (randn(3, 4, 5), randn(3, 6, 5))),
    "addbmm": (
        lambda c, a, b: torch.addbmm(c, a, b, alpha=2, beta=3),
        (randn(4, 6), randn(3, 4, 5), randn(3, 5, 6)),
    ),
    "matmul_empty": (lambda a, b: a @ b, (randn(5, 0), randn(0, 7))),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, 2, 1), (randn(2, 4, 7, 8), randn(6, 4, 3, 2), randn(6))),
    "conv_groups": (lambda x, w: F.conv2d(x, w, None, 1, 2, 2, groups=2), (randn(1, 4, 7, 8), randn(6, 2, 3, 3))),
    "conv_transpose": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1, groups=2),
        (randn(2, 4, 3, 5), randn(4, 3, 3, 3), randn(6)),
    ),
    "conv1d_unbatched": (lambda x, w: F.conv1d(x, w, padding="same"), (randn(4, 9), randn(2, 4, 3))),
    "pooling": (lambda x: (F.max_pool2d(x, 3, 2), F.avg_pool2d(x, 2, 1, 1)), (randn(1, 2, 7, 8),)),
    "adaptive_pooling": (lambda x: F.adaptive_avg_pool2d(x, (3, 4)), (randn(1, 2, 7, 9),)),
    "cdist": (lambda x, y: torch.cdist(x, y, 1.5), (randn(4, 3), randn(5, 3))),
    "pdist": (lambda x: F.pdist(x, 3.0), (randn(5, 4),)),
    "bilinear": (lambda x, y, w: F.bilinear(x, y, w), (randn(5, 3), randn(5, 4), randn(2, 3, 4))),
    "index_reduce": (
        lambda x, i, v: x.index_reduce(0, i, v, "amin", include_self=False),
        (randn(5, 3), ints(5, 7), randn(7, 3)),
    ),
    "histogram": (lambda x: torch.histc(x, 7, -1.0, 1.5), (randn(200),)),
    # contiguous, because upstream's meta function has other strides than the CPU
    "nonzero_static": (lambda x: torch.nonzero_static(x, size=6, fill_value=-3).contiguous(), (ints(2, 3, 4),)),
    "large_pooling": (
        lambda x: F.avg_pool2d(x, 6, 3, 2, ceil_mode=True, count_include_pad=False),
        (randn(1, 2, 13, 11),),
    ),
    "antialiased": (lambda x: F.interpolate(x, (4, 9), mode="bicubic", antialias=True), (randn(1, 2, 11, 7),)),
    "mean_of_nothing": (lambda x: torch.var_mean(x, 1), (randn(3, 0),)),
    "attention": (
        lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) / 2, -1) @ v,
        (randn(2, 3, 5, 4), randn(2, 3, 6, 4), randn(2, 3, 6, 4)),
    ),
}


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_is_right_and_native(name: str, on_device) -> None:
    fn, args = FEATURES[name]
    on_device.native(fn, *args)


DYNAMIC = [
    *("pointwise", "transposed", "cat_and_pad", "softmax", "layer_norm", "argmax", "cumsum", "sort", "gather"),
    *("index_put_accumulate", "scatter_mean", "matmul", "bmm", "conv2d", "adaptive_pooling", "attention"),
]


@pytest.mark.parametrize("name", DYNAMIC)
def test_a_feature_with_symbolic_shapes(name: str, on_device) -> None:
    fn, args = FEATURES[name]
    if name == "conv2d":
        # the shapes of a model's weights are not dynamic
        for weight in args[1:]:
            torch._dynamo.mark_static(weight)
    on_device.native(fn, *args, dynamic=True)


UNDER_A_DEFAULT_DEVICE = [
    *("cat_and_pad", "large_reduction", "argmax", "cumsum", "sort", "gather", "index", "scatter_mean", "bucketize"),
    *("integer_division", "interpolate", "matmul_epilogue", "pooling", "attention"),
]


@pytest.mark.parametrize("device", ["spyre", "meta"])
@pytest.mark.parametrize("name", UNDER_A_DEFAULT_DEVICE)
def test_a_default_device_does_not_reach_into_a_launch(name: str, device: str, on_device) -> None:
    fn, args = FEATURES[name]
    on_the_device = [arg.to("spyre") for arg in args]
    with torch.device(device):
        ran = on_device.compile(fn)(*on_the_device)
    result = torch.utils._pytree.tree_map(lambda value: value.cpu(), ran.result)
    torch.testing.assert_close(result, fn(*args))


def test_a_default_device_does_not_reach_into_a_draw(on_device) -> None:
    x = torch.ones(4000).to("spyre")
    with torch.device("spyre"):
        ran = on_device.compile(lambda x: F.dropout(x, 0.25))(x)
    assert abs((ran.result.cpu() == 0).float().mean() - 0.25) < 0.03


# stride, padding and dilation, each a symbol under dynamic=True
SYMBOLIC_GEOMETRY = ((2, 3), (3, 2), (2, 4))


@pytest.mark.parametrize("shape", [(2, 4, 12, 19), (4, 12, 19)], ids=["batched", "unbatched"])
@pytest.mark.parametrize("convolve", [F.conv2d, F.conv_transpose2d], ids=["conv2d", "conv_transpose2d"])
def test_a_convolution_whose_geometry_is_symbolic(convolve: Callable, shape: tuple[int, ...], on_device) -> None:
    # its sizes are sums of symbols, and every split of its iteration space is a product of them
    def fn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, stride: Any, padding: Any, dilation: Any) -> Any:
        return convolve(x, weight, bias, stride=stride, padding=padding, dilation=dilation)

    args = (randn(*shape), randn(4, 4, 3, 5), randn(4), *SYMBOLIC_GEOMETRY)
    symbolic = on_device.native(fn, *args, dynamic=True)
    torch._dynamo.reset()
    static = on_device.native(fn, *args)
    # each operand is read along its own axes, as with sizes that are known; the bias may take a launch of its own
    assert symbolic.launches.bytes_loaded < 1.2 * static.launches.bytes_loaded


@pytest.mark.parametrize("convolve", [F.conv2d, F.conv_transpose2d], ids=["conv2d", "conv_transpose2d"])
def test_gradients_of_a_convolution_whose_geometry_is_symbolic(convolve: Callable, on_device) -> None:
    def fn(x: torch.Tensor, weight: torch.Tensor, stride: Any, padding: Any, dilation: Any) -> torch.Tensor:
        return convolve(x, weight, None, stride=stride, padding=padding, dilation=dilation)

    host = (randn(4, 12, 19).requires_grad_(), randn(4, 4, 3, 5).requires_grad_())
    device = tuple(value.detach().to("spyre").requires_grad_() for value in host)
    ran = on_device.compile(fn, dynamic=True)(*device, *SYMBOLIC_GEOMETRY)
    gradients = torch.autograd.grad(ran.result, device, torch.ones_like(ran.result))
    for got, expected in zip(gradients, torch.autograd.grad(fn(*host, *SYMBOLIC_GEOMETRY).sum(), host), strict=True):
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4)


MIXED = {
    "mul": (torch.mul, 2),
    "sub": (torch.sub, 2),
    "atan2": (torch.atan2, 2),
    "lt": (torch.lt, 2),
    "where": (lambda c, x, y: torch.where(c > 0, x, y), 3),
    "addcmul": (torch.addcmul, 3),
    "lerp": (torch.lerp, 3),
    # of integers: one is called, the other is made of primitives
    "pow": (lambda x, y: torch.pow(x.mul(9).long(), y.mul(9).long().abs()), 2),
    "lcm": (lambda x, y: torch.lcm(x.mul(9).long(), y.mul(9).long()), 2),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("name", "position"), [(name, at) for name, (_, n) in MIXED.items() for at in range(n)])
def test_a_number_on_the_host_beside_tensors_on_the_device(name: str, position: int, dynamic: bool, on_device) -> None:
    """Eager takes one as any operand; the result is where the tensors are."""
    fn, count = MIXED[name]
    host = [randn(4, 5) for _ in range(count)]
    host[position] = torch.tensor(0.7)
    device = [x if at == position else x.to("spyre") for at, x in enumerate(host)]
    result = on_device.compile(fn, dynamic=dynamic)(*device).result
    assert result.device.type == "spyre"
    torch.testing.assert_close(result.cpu(), fn(*host))


def test_one_graph_serves_many_sizes(on_device) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ y).softmax(-1).sum(0) + x.shape[0]

    call = on_device.compile(fn, dynamic=True)
    loaded = 0
    for rows, inner, columns in ((4, 5, 6), (7, 3, 9), (12, 10, 2)):
        x, y = randn(rows, inner), randn(inner, columns)
        ran = call(x.to("spyre"), y.to("spyre"))
        torch.testing.assert_close(ran.result.cpu(), fn(x, y))
        assert [one.runs for one in ran.compilations] == [1]
        loaded += ran.launches.bytes_loaded
        if rows == 4:
            programs = set(ran.launches.programs)
        assert set(ran.launches.programs) == programs
    assert loaded > 0


def test_one_graph_serves_sizes_on_both_sides_of_32_bits(on_device) -> None:
    """The multiplications of a product are more than 2**31 from 129 rows on, and no program counts them."""
    weight = randn(4096, 4096).to("spyre")
    torch._dynamo.mark_static(weight)
    call = on_device.compile(torch.matmul, dynamic=True)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for rows in (16, 160):
        x = randn(rows, 4096)
        ran = call(x.to("spyre"), weight)
        torch.testing.assert_close(ran.result.cpu(), x @ weight.cpu(), rtol=1e-4, atol=1e-3)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int8, torch.uint8])
def test_dtypes(dtype: torch.dtype, on_device) -> None:
    x, y = (randn(4, 9) * 5).to(dtype), (randn(9) * 5).to(dtype)
    eps = torch.finfo(dtype).eps if dtype.is_floating_point else 0
    tolerance = {"rtol": 4 * eps, "atol": 4 * eps}
    on_device.native(lambda x, y: (x + y * x, torch.maximum(x, y), (x > y) & (x < 3), x.sum(1)), x, y, **tolerance)


@pytest.mark.parametrize("x", [randn(4, 5).t(), randn(3, 4, 5)[::2, 1:, ::3], randn(1, 5).expand(3, 5), randn(1)[0]])
def test_a_conversion_to_complex_numbers_stays_external_whatever_the_strides(x: torch.Tensor, on_device) -> None:
    on_device.check(lambda x: (x.to(torch.complex64), (x + 1).to(torch.complex64)), x)
    on_device.check(lambda x: x.to(torch.float32), x.to(torch.complex64))


def test_half_precision_computes_in_float32_and_rounds_at_the_store(on_device) -> None:
    # 2048 + 1 is lost in float16, unless the intermediate is wider
    x, one = torch.full((3,), 2048.0, dtype=torch.float16), torch.ones(3, dtype=torch.float16)
    ran = on_device.compile(lambda x, one: x + one - x)(x.to("spyre"), one.to("spyre"))
    assert ran.result.cpu().tolist() == [1.0, 1.0, 1.0]
    assert ran.launches.opcodes["cast"] == 3


def test_an_explicit_cast_rounds(on_device) -> None:
    on_device.native(lambda x: x.half().float() * 2, randn(50) * 100, rtol=0.0, atol=0.0)


def test_nan_and_signed_zero_survive(on_device) -> None:
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0])
    on_device.native(lambda x: (x.clamp(-1, 1), x.relu(), x.amax(), x.amin(), x.sort().values, x.copysign(-x)), special)


def test_arguments_are_changed_in_place(on_device) -> None:
    def fn(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x.mul_(2).add_(1)
        x[:, 1] = 7
        x.index_add_(0, i, torch.ones_like(x[:2]))
        return x.sum()

    on_device.check(fn, randn(4, 5), torch.tensor([1, 3]))


def test_views_of_one_memory_see_each_other(on_device) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        a, b = x[:3], x[2:]
        a.add_(10)
        b.mul_(2)
        return x + 0

    on_device.check(fn, randn(5, 2))


def test_random_numbers_follow_the_seed_of_the_device(on_device) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.rand_like(x), torch.randn_like(x), F.dropout(x, 0.25)

    x = torch.ones(4000).to("spyre")
    call = on_device.compile(fn)
    torch.manual_seed(7)
    first, second = call(x).result, call(x).result
    torch.manual_seed(7)
    ran = call(x)
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(first, ran.result, strict=True))
    assert not torch.equal(first[0].cpu(), second[0].cpu())
    uniform, normal, dropped = (value.cpu() for value in ran.result)
    assert 0 <= uniform.min() <= uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.02
    assert abs(normal.std() - 1) < 0.05
    assert abs((dropped == 0).float().mean() - 0.25) < 0.03
    assert ran.extern == {}


DRAWS: dict[str, tuple[Callable, float, float]] = {
    # in place: what, its mean, its standard deviation
    "uniform": (lambda x: x.uniform_(-1, 3), 1.0, 4 / 12**0.5),
    "normal": (lambda x: x.normal_(2, 0.5), 2.0, 0.5),
    "exponential": (lambda x: x.exponential_(2.0), 0.5, 0.5),
    "geometric": (lambda x: x.geometric_(0.25), 4.0, 12**0.5),
    "log_normal": (lambda x: x.log_normal_(0.0, 0.25), 1.0317, 0.262),
    "bernoulli": (lambda x: x.bernoulli_(0.3), 0.3, 0.21**0.5),
    "multinomial": (lambda x: torch.multinomial(x.new_tensor([1.0, 3.0]), 6000, True).float(), 0.75, 0.1875**0.5),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_native_and_have_their_moments(name: str, on_device) -> None:
    fn, mean, deviation = DRAWS[name]
    torch.manual_seed(11)
    ran = on_device.compile(fn)(torch.zeros(6000).to("spyre"))
    drawn = ran.result.cpu()
    assert ran.extern == {}
    assert abs(drawn.mean() - mean) < 5 * deviation / 6000**0.5
    assert abs(drawn.std() / deviation - 1) < 0.1


def _gradients(fn: Callable, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    wanted = [arg for arg in args if arg.requires_grad]
    return torch.autograd.grad(fn(*args).square().sum(), wanted)


BACKWARD: dict[str, tuple[Callable, tuple]] = {
    "pointwise": (lambda x, y: torch.tanh(x) * y.exp(), (randn(5, 6), randn(6))),
    "softmax": (lambda x: x.softmax(-1), (randn(5, 6),)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (8,), w, b), (randn(4, 8), randn(8), randn(8))),
    "matmul": (lambda a, b: torch.relu(a @ b), (randn(5, 6), randn(6, 7))),
    "linear": (lambda x, w, b: F.gelu(F.linear(x, w, b)), (randn(3, 5, 6), randn(7, 6), randn(7))),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, 2, 1), (randn(2, 4, 7, 8), randn(6, 4, 3, 2), randn(6))),
    "conv_transpose": (
        lambda x, w: F.conv_transpose2d(x, w, None, 2, 1, 1, groups=2),
        (randn(2, 4, 3, 5), randn(4, 3, 3, 3)),
    ),
    "cumsum": (lambda x: x.cumsum(0), (randn(5, 6),)),
    "max": (lambda x: x.max(1).values, (randn(5, 6),)),
    "pooling": (lambda x: F.avg_pool2d(x, 2, 1, 1) + F.max_pool2d(x, 2, 1, 1), (randn(1, 2, 5, 6),)),
    "cdist": (lambda x, y: torch.cdist(x, y), (randn(4, 3), randn(5, 3))),
    "adaptive_pooling": (
        lambda x: F.adaptive_avg_pool2d(x, (3, 4)) + F.adaptive_max_pool2d(x, (3, 4)),
        (randn(1, 2, 7, 9),),
    ),
    "replication_pad": (lambda x: F.pad(x, (1, 2, 0, 3), mode="replicate"), (randn(1, 2, 5, 6),)),
    "masked_scatter": (lambda x, v: x.masked_scatter(x > 0, v), (randn(4, 5), randn(30))),
    "attention": (F.scaled_dot_product_attention, (randn(2, 3, 5, 4), randn(2, 3, 6, 4), randn(2, 3, 6, 4))),
}


@pytest.mark.parametrize("name", BACKWARD)
def test_gradients(name: str, on_device) -> None:
    fn, values = BACKWARD[name]
    host = tuple(value.clone().requires_grad_() for value in values)
    device = tuple(value.to("spyre").requires_grad_() for value in values)
    ran = on_device.compile(fn)(*device)
    with torch.no_grad():
        upstream = 2 * ran.result
    gradients = torch.autograd.grad(ran.result, device, upstream)
    for got, expected in zip(gradients, _gradients(fn, host), strict=True):
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4)
    from spyre_backend import report

    # forward and backward, and nothing external in either
    assert len(report.compilations) == 2
    assert [one.extern for one in report.compilations] == [{}, {}]


def test_gradient_of_an_embedding(on_device) -> None:
    index = ints(6, 9)
    weight = randn(6, 4)
    device = weight.to("spyre").requires_grad_()
    ran = on_device.compile(lambda w, i: F.embedding(i, w).sin())(device, index.to("spyre"))
    (got,) = torch.autograd.grad(ran.result.sum(), [device])
    host = weight.clone().requires_grad_()
    (expected,) = torch.autograd.grad(F.embedding(index, host).sin().sum(), [host])
    torch.testing.assert_close(got.cpu(), expected)


def test_an_index_out_of_range_fails(on_device) -> None:
    x, i = randn(5).to("spyre"), torch.tensor([0, 5]).to("spyre")
    with pytest.raises(IndexError, match="out of bounds"):
        on_device.compile(lambda x, i: x[i])(x, i)


def test_equal_kernels_are_one_program(on_device) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin().sum(1).cos(), y.sin().sum(1).cos()

    ran = on_device.native(fn, randn(4, 5), randn(4, 5))
    assert ran.launches.launches >= 1
    assert len(ran.launches.programs) == 1


def test_a_product_fuses_with_its_epilogue(on_device) -> None:
    ran = on_device.native(lambda a, b, c: F.gelu(a @ b + c), randn(5, 6), randn(6, 7), randn(7))
    assert (ran.launches.launches, ran.launches.matmuls) == (1, 1)
