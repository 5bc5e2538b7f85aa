"""sendnn: right results in as few programs as it promises, refusals that name their cause, and its independence."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import spyre_backend
from spyre_backend.program.ir import Matmul
from spyre_backend.sendnn import SendnnUnsupported
from spyre_backend.sendnn.graph import MOST_TENSORS
from tests.spyre_backend.on_device import OnDevice, to_device

pytest.importorskip("transformers.integrations.moe")  # registers its product by groups

X = torch.randn(4, 6, 16)
W, V = torch.randn(16, 32), torch.randn(16, 32)
Q, K = torch.randn(2, 4, 10, 16), torch.randn(2, 2, 12, 16)
IDS = torch.randint(0, 20, (3, 5))

FUSED: dict[str, tuple[Callable[..., object], tuple[torch.Tensor, ...], int]] = {
    "pointwise": (lambda x: F.gelu(x * 2 + 1) - x.abs(), (X,), 1),
    "product and what follows": (lambda x, w: F.relu(x @ w + 1), (X, W), 1),
    "gated": (lambda x, w, v: F.silu(x @ w) * (x @ v), (X, W, V), 1),
    "softmax": (lambda x: F.softmax(x, -1), (X,), 1),
    "softmax over the middle": (lambda x: F.log_softmax(x, 1), (X,), 1),
    "layer norm": (lambda x, w: F.layer_norm(x, (16,), w[:, 0], w[:, 1]), (X, W), 1),
    "rms norm by hand": (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), (X,), 1),
    "group norm": (lambda x: F.group_norm(x, 3), (X,), 1),
    "residual and norm": (lambda x, y: (x + y, F.layer_norm(x + y, (16,))), (X, X.flip(0)), 1),
    "views are no work": (lambda x: x.view(4, 6, 4, 4).transpose(1, 2).reshape(4, 4, 24).mean(-1), (X,), 1),
    "attention": (lambda q, k: F.scaled_dot_product_attention(q, k, k.flip(2), enable_gqa=True), (Q, K), 1),
    "one query for all": (lambda q, k: F.scaled_dot_product_attention(q[:1, :1], k, k * 2), (Q, Q.flip(0)), 1),
    "causal": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), (Q,), 1),
    "repeated keys": (
        lambda q, k: F.scaled_dot_product_attention(q, *(k.repeat_interleave(2, 1),) * 2),
        (Q, K),
        1,
    ),
    "masked": (
        lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m > 0),
        (Q, torch.arange(100).view(10, 10) % 3),
        1,
    ),
    "a row without keys": (
        lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m),
        (Q, torch.zeros(10, 10).index_fill(0, torch.tensor([3]), float("-inf"))),
        1,
    ),
    "parts": (lambda x: torch.cat([x[..., 8:] * 2, -x[..., :8], x], -1), (X,), 1),
    "lookup": (lambda i, w: F.embedding(i, w) * 3, (IDS, torch.randn(20, 8)), 1),
    "convolution": (
        lambda x, w: F.relu(F.conv2d(x, w, padding=1)),
        (torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)),
        1,
    ),
    "two products": (lambda x, w: (x @ w) @ w.t(), (X, W), 2),
    "product of a norm": (lambda x, w: F.layer_norm(x, (16,)) @ w, (X, W), 2),
    "rows at once": (lambda x: x.topk(3), (X,), 1),
    "scan": (lambda x: x.cumsum(1), (X,), 1),
    "counts": (lambda x: torch.histc(x, 5, -1.0, 1.0), (X,), 2),
    "groups": (
        lambda x, w, ends: torch.ops.transformers.grouped_mm_fallback(x, w, ends),
        (torch.randn(8, 6), torch.randn(4, 5, 6).transpose(1, 2), torch.tensor([0, 5, 5, 7])),
        1,
    ),
    "write": (lambda x, i: x.index_put((i,), x[:2] * 0), (X, torch.tensor([1, 3])), 2),
}


@pytest.mark.parametrize("name", FUSED)
def test_right_and_in_so_many_programs(on_device: OnDevice, name: str) -> None:
    function, operands, programs = FUSED[name]
    ran = on_device.native(function, *operands, atol=1e-4, rtol=1e-4)
    assert ran.launches.launches == programs


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.sum(0), x.mean((0, 2)), x.amax(-1), x.max(1), x.argmin(0), (x > 0).all(-1), x.var(-1)),
        lambda x: x[:, 1:, ::3].flip(-1).unfold(1, 3, 2).squeeze(0),
        lambda x: (x.permute(2, 0, 1).contiguous(), x.expand(2, 4, 6, 16), x.diagonal(dim1=1, dim2=2)),
        lambda x: F.pad(x, (1, 2, -1, 3), value=0.5),
        lambda x: torch.stack([x, x + 1], 1).unbind(2)[1],
        lambda x: x.to(torch.int32).float().half().bool(),
        lambda x: x.roll((1, -2), (0, 2)).repeat(2, 1, 3),
        lambda x: torch.where(x > 0, x, x.sum(-1, keepdim=True)).softmax(-1).sum(1),
        lambda x: x.sum(-1).sum(-1),
        lambda x: (x @ x.transpose(1, 2)).softmax(-1) @ x,
        lambda x: torch.ops.aten.slice_scatter(x, x[:, :2] * 2, 1, 0, 6, 3),
        lambda x: torch.logsumexp(x, 1) + torch.linalg.vector_norm(x, dim=1),
        lambda x: x.new_zeros(2, 3, dtype=torch.int64) + torch.arange(3, device=x.device),
        lambda x: (x[0:0], x[0:0].sum(0), torch.cat([x[0:0], x])),
    ],
)
def test_right(on_device: OnDevice, function: Callable[..., object]) -> None:
    on_device.native(function, X, atol=1e-4, rtol=1e-4)


def test_numbers_are_reduced_alone_beside_other_reductions(on_device: OnDevice) -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x.softmax(-1) * torch.logsumexp(n, 0)
        return rows, n.softmax(0), F.log_softmax(n, 0), n.var(correction=0)

    on_device.native(function, X, torch.tensor(1.5), atol=1e-4, rtol=1e-4)


def test_half_precision_is_computed_in_float32(on_device: OnDevice) -> None:
    x = (torch.randn(8, 64) * 100).half()
    on_device.native(lambda x: F.layer_norm(x, (64,)), x, atol=2e-3, rtol=2e-3)


def test_a_kernel_touches_no_more_tensors_than_the_device_takes(on_device: OnDevice) -> None:
    many = [X + i for i in range(12)]
    ran = on_device.native(lambda *xs: (sum(xs[1:], xs[0]) @ xs[0].transpose(1, 2), torch.cat(xs).softmax(-1)), *many)
    assert max(len(bound.program.buffers) for bound in ran.launches.sequence) <= MOST_TENSORS


def test_numbers_and_constants_of_the_host_are_brought_to_the_device(on_device: OnDevice) -> None:
    compiled = on_device.compile(lambda x, n: x * n + torch.tensor([1.0, 2.0], device="spyre").sum())
    torch.testing.assert_close(compiled(X.to("spyre"), torch.tensor(3.0)).result.cpu(), X * 3 + 3)


def test_statistics_have_the_dtype_that_they_have_on_the_cpu(on_device: OnDevice) -> None:
    norm = lambda x: torch.ops.aten.native_layer_norm(x, [16], None, None, 1e-5)  # noqa: E731
    on_device.native(norm, X.half(), atol=2e-3, rtol=2e-3)


def test_arguments_are_changed_in_place(on_device: OnDevice) -> None:
    def update(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache[:, 2:4] = x
        return cache + 1

    on_device.check(update, torch.zeros(3, 6), torch.ones(3, 2))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: ((y := x + 1), y.transpose(0, 1)),
        lambda x: ((y := x + 1)[1:], y.view(-1)),
        lambda x: torch.unsafe_split(x, 2),
        lambda x: (x, x.view(-1), x + 1),
    ],
)
def test_results_share_memory_as_in_eager_mode(on_device: OnDevice, function: Callable[..., tuple]) -> None:
    def shared(results: tuple, x: torch.Tensor) -> list[list[bool]]:
        pointers = [each.untyped_storage().data_ptr() for each in (*results, x)]
        return [[one == other for other in pointers] for one in pointers]

    on_device.check(function, X)
    (x,) = to_device([X])
    compiled = torch.compile(function, backend="sendnn")
    assert shared(compiled(x), x) == shared(function(X), X)


def test_what_nobody_reads_is_not_written(on_device: OnDevice) -> None:
    ran = on_device.check(lambda x: (x * 3 + 1).exp().topk(2)[1], X)
    assert [len([each for each in bound.program.buffers if each.written]) for bound in ran.launches.sequence] == [1]


def test_heads_that_share_keys_stay_affine(on_device: OnDevice) -> None:
    function, operands, _ = FUSED["attention"]
    (bound,) = on_device.check(function, *operands, atol=1e-4, rtol=1e-4).launches.sequence
    assert bound.cost.read == 4 * (Q.numel() + 2 * K.numel())
    assert sum(isinstance(each, Matmul) for each in bound.program.body) == 2


def test_symbolic_sizes_are_compiled_one_by_one(on_device: OnDevice) -> None:
    compiled = on_device.compile(lambda x: F.softmax(x * 2, -1), dynamic=True)
    counts = []
    for rows in (4, 7, 4):
        x = torch.randn(rows, 16)
        ran = compiled(x.to("spyre"))
        torch.testing.assert_close(ran.result.cpu(), F.softmax(x * 2, -1))
        counts.append(len(ran.compilations))
    assert counts == [1, 1, 1]


def _sorted_by_hand(x: torch.Tensor) -> torch.Tensor:
    return torch.histc(x)


def test_a_refusal_names_operator_operands_and_line(on_device: OnDevice) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as refused:
        on_device.compile(_sorted_by_hand)(X.to("spyre"))
    assert isinstance(refused.value.inner_exception, SendnnUnsupported)
    for part in ("aten::histc.default of float32[4, 6, 16]", Path(__file__).name, "return torch.histc(x)"):
        assert part in str(refused.value)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x.double() * 2, "aten::_to_copy.default of float32.*: it has no float64"),
        (lambda x: x.bernoulli(), "aten::bernoulli.default of float32.*: there is no lowering for it"),
        (lambda x: x.cpu() * 2, "it copies to cpu inside of a graph"),
    ],
)
def test_refuses(on_device: OnDevice, function: Callable[..., object], why: str) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=why):
        on_device.compile(function)(X.to("spyre"))


def test_the_host_helps_where_it_is_asked(on_device: OnDevice) -> None:
    ran = OnDevice("sendnn", host=True).check(lambda x: torch.histc(x * 2, 8) + 1, X)
    assert ran.extern == {"aten::histc.default": 1}


def test_an_unknown_option_is_named(on_device: OnDevice) -> None:
    with pytest.raises(Exception, match="sendnn has no option fallback; it has host"):
        OnDevice("sendnn", fallback=True).check(lambda x: x + 1, X)


@pytest.mark.parametrize("function", [lambda x: (x * 2).sum(), lambda x: F.scaled_dot_product_attention(x, x, x).sum()])
def test_gradients_are_refused_when_they_are_asked_for(on_device: OnDevice, function: Callable[..., Any]) -> None:
    with torch.enable_grad():
        (x,) = to_device([X.clone().requires_grad_()])
        result = torch.compile(function, backend="sendnn")(x)
        torch.testing.assert_close(result.detach().cpu(), function(X), atol=1e-4, rtol=1e-4)
        with pytest.raises(SendnnUnsupported, match="forwards only"):
            result.backward()


def test_it_uses_nothing_of_inductor() -> None:
    root = Path(spyre_backend.__file__).parent / "sendnn"
    for file in sorted(root.rglob("*.py")):
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            named = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            named += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for module in named:
                assert not module.startswith(("torch._inductor", "spyre_backend.inductor")), (file, module)
