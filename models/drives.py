"""How a compiled model is used: one forward, a decode loop, training steps. Each is a `drive` of a sample.

Everything around the model's forward is ordinary eager code, as in a user's program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conformance.observe import mark_dynamic
from models.results import plain

Model = Callable[..., Any]

COMPILED = "_orig_mod."
"""What torch.compile puts before the names of a module's parameters."""

TIE = 1e-3
"""Two logits nearer than this share of the logits' standard deviation are a tie, in which either token is right. In 16
bits, where logits themselves are no better known, `SHORT_TIE`."""
SHORT_TIE = 5e-2


def forward(model: Model, **inputs: Any) -> Any:
    """Inference: everything that the model returns, its cache included."""
    with torch.no_grad():
        return plain(model(**inputs))


SOURCES = {forward: "plain(torch.no_grad()(call)(*args, **kwargs))"}
"""How a drive is written in a script that has `PLAIN`."""

PLAIN = """
def plain(x):
    held = x if isinstance(x, dict) else {} if isinstance(x, torch.Tensor) else getattr(x, "__dict__", {})
    return [plain(v) for v in x] if isinstance(x, (list, tuple)) else {k: plain(v) for k, v in held.items()} or x
""".strip()
"""`results.plain` for a script."""


def part(module: Model, *args: Any, **kwargs: Any) -> Any:
    """A part of a model, called as the model calls it."""
    with torch.no_grad():
        return plain(module(*args, **kwargs))


def marked_forward(
    model: Model, *, dims: Mapping[str, Sequence[int]], drive: Callable[..., Any] = forward, **inputs: Any
) -> Any:
    """The same, or another drive, with the dimensions of inputs that `dims` names marked dynamic."""
    for name, numbers in dims.items():
        for number in numbers:
            mark_dynamic(inputs[name], number)
    return drive(model, **inputs)


def within(context: Callable[[], AbstractContextManager[None]], drive: Callable[..., Any]) -> Callable[..., Any]:
    """A drive that does the same as `drive`, all of it within `context()`."""

    def driven(model: Model, **inputs: Any) -> Any:
        with context():
            return drive(model, **inputs)

    return driven


class Greedy:
    """Tokens that greedy decoding chose, batch by batch, and by how much each won. One value, not a container.

    Two are equal if they agree up to the first tie: from there on two right models may write different texts.
    `margins` are the best logit less the second, in standard deviations of the step's logits.
    """

    def __init__(self, tokens: list[list[int]], margins: list[list[float]], tie: float) -> None:
        self.tokens, self.margins, self.tie = tokens, margins, tie

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Greedy) and all(map(self._agree, range(len(self.tokens)), [other] * len(self.tokens)))

    def _agree(self, row: int, other: Greedy) -> bool:
        for ours, theirs, *margins in zip(
            self.tokens[row], other.tokens[row], self.margins[row], other.margins[row], strict=True
        ):
            if ours != theirs:
                return min(margins) < self.tie
        return True

    def __hash__(self) -> int:
        return 0  # equality is no equivalence: nothing tells two of them apart for sure

    def __repr__(self) -> str:
        return f"Greedy({self.tokens})"


@dataclass(frozen=True)
class Calls:
    """Which inputs the calls of a decode loop get, by name, beside the tokens and the cache."""

    tokens: str = "input_ids"  # what the tokens are called
    encoder: tuple[str, ...] = ()  # of the encoder, which is called once before all; empty: there is none
    prefill: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()  # of each call after the prefill


TOKENS_ALONE = Calls()
"""Of a causal language model."""


def decode(
    model: Model,
    *,
    calls: Calls = TOKENS_ALONE,
    prompt: int,
    free: int,
    cache_argument: str,
    make_cache: Callable[[Any], Any] | None,
    **inputs: Any,
) -> dict[str, Any]:
    """Prefill and then one token at a time with a cache: teacher-forced, and after that `free` tokens of its own.

    Of `inputs`, the tokens that it is given are (batch, prompt + steps). `make_cache` makes an empty cache, given what
    the encoder returned; None: the model makes its own. Returns logits of the prefill (batch, prompt, vocabulary), of
    the steps (batch, steps, vocabulary), and the `Greedy` tokens of a second run that is fed what it chose; with an
    encoder also what that returned, which both runs read.
    """
    given = inputs[calls.tokens]
    with torch.no_grad():
        encoded = model(**_named(inputs, calls.encoder)) if calls.encoder else None
        known = {} if encoded is None else {"encoder_outputs": encoded}

        def call(tokens: Tensor, cache: Any, names: Sequence[str]) -> tuple[Tensor, Any]:
            kept = {cache_argument: cache} if cache is not None else {}
            named = {calls.tokens: tokens.contiguous(), **_named(inputs, names)}
            output = model(**named, use_cache=True, **kept, **known)
            return output["logits"], output[cache_argument]

        def start() -> tuple[Tensor, Any]:
            return call(given[:, :prompt], make_cache(encoded) if make_cache is not None else None, calls.prefill)

        prefill, cache = start()
        steps = []
        for at in range(prompt, given.shape[1]):
            logits, cache = call(given[:, at : at + 1], cache, calls.steps)
            steps.append(logits[:, -1])
        logits, cache = start()
        tokens, margins = [], []
        tie = TIE if logits.dtype.itemsize > 2 else SHORT_TIE
        for _ in range(free):
            last = logits[:, -1].cpu().double()
            best = last.topk(2).values
            margins.append((best[:, 0] - best[:, 1]) / last.std(-1))
            tokens.append(last.argmax(-1))
            logits, cache = call(tokens[-1][:, None].to(given.device), cache, calls.steps)
    return {
        **({} if encoded is None else {"encoder": plain(encoded)}),
        "prefill": prefill,
        "steps": _gathered(steps, 1),
        "greedy": Greedy(torch.stack(tokens, 1).tolist(), torch.stack(margins, 1).tolist(), tie),
    }


def _gathered(tensors: Sequence[Tensor], dim: int) -> Tensor:
    """Stacked on the host: what only we put together is no op that the model left to it."""
    return torch.stack([t.cpu() for t in tensors], dim).to(tensors[0].device)


def _named(inputs: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: inputs[name] for name in names}


def train(model: Any, *, steps: int, rate: float, labels: str, **inputs: Any) -> dict[str, Any]:
    """Steps of gradient descent with momentum: the loss of each, the gradients of the first, the parameters at the end.

    `labels` names the input that the model is to predict (`labels=` of transformers); where empty, the loss is the mean
    square of what the model returns.
    """
    found = ((name.removeprefix(COMPILED), p) for name, p in model.named_parameters())
    parameters = {name: p for name, p in found if p.requires_grad}
    optimizer = torch.optim.SGD(parameters.values(), lr=rate, momentum=0.9)
    losses: list[Tensor] = []
    gradients: dict[str, Tensor | None] = {}
    for step in range(steps):
        output = model(**inputs, labels=inputs[labels]) if labels else model(**inputs)
        loss = output["loss"] if labels else _mean_square(plain(output))
        loss.backward()
        if step == 0:
            gradients = {name: None if p.grad is None else p.grad.clone() for name, p in parameters.items()}
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return {
        "loss": _gathered(losses, 0),
        "gradients": gradients,
        "parameters": {name: p.detach() for name, p in parameters.items()},
    }


def _mean_square(output: Any) -> Tensor:
    found = [t for t in _tensors(output) if t.is_floating_point() and t.requires_grad]
    return torch.stack([t.float().square().mean() for t in found]).sum()


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [t for item in items for t in _tensors(item)]
