"""Both compilers of the simulated Spyre on the layers of well-known models at true width, costed without running.

    python two_compilers.py [--layers 2 12] [--lengths 128 512 2048] [--families llama granite bert mixtral]

Weights have no memory, so that a laptop will do. Times of the device are simulated: docs/spyre-backend.md says what is
modelled and what is not, and that sendnn is a reconstruction. Compile times are of this machine, and of one run.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings

import torch
import transformers
from tabulate import tabulate

import spyre_backend
from spyre_backend import sendnn
from spyre_backend.hardware import SPYRE

WIDE = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000}
FAMILIES = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {**WIDE, "intermediate_size": 14336}),
    "granite": ("GraniteForCausalLM", "GraniteConfig", {**WIDE, "intermediate_size": 12800}),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {**WIDE, "intermediate_size": 14336, "num_local_experts": 8}),
    "bert": ("BertForMaskedLM", "BertConfig", {"max_position_embeddings": 2048}),
}


def model(family: str, layers: int) -> torch.nn.Module:
    """A model of a family in float16 on the device; inside of a dry run."""
    of, config, sizes = FAMILIES[family]
    with torch.device("spyre"):
        made = getattr(transformers, of)._from_config(
            getattr(transformers, config)(num_hidden_layers=layers, **sizes), dtype=torch.float16
        )
    return made.eval()


def filled(config: transformers.PretrainedConfig, length: int) -> transformers.DynamicCache:
    """A cache that holds so many tokens."""
    heads, size = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    one = torch.empty(1, heads, length, size, dtype=torch.float16, device="spyre")
    return transformers.DynamicCache([(one, one.clone()) for _ in range(config.num_hidden_layers)])


def costed(family: str, layers: int, length: int, backend: str, *, decode: bool) -> dict[str, object]:
    """One row: what a forward of `length` tokens costs, or that of the token after them, with a cache."""
    torch.compiler.reset()
    with spyre_backend.dry_run() as found, torch.no_grad():
        made = model(family, layers)
        compiled = torch.compile(made, backend=backend, dynamic=False)
        tokens = torch.ones(1, 1 if decode else length, dtype=torch.int64, device="spyre")
        more = {"past_key_values": filled(made.config, length)} if decode else {}
        started = time.perf_counter()
        compiled(tokens, **({"use_cache": decode, **more} if family != "bert" else {}))
        compile_s = time.perf_counter() - started
    kernels = found.kernels()
    products = sum(kernel.cost.multiply_accumulates * kernel.times for kernel in kernels)
    lost = sum(kernel.lost_s for kernel in kernels)
    peak = SPYRE.peak_products * SPYRE.cores
    return {
        "model": family,
        "layers": layers,
        "step": f"decode after {length}" if decode else f"prefill {length}",
        "compiler": backend,
        "compile s": f"{compile_s:.1f}",
        "programs": found.programs,
        "launches": found.launches,
        "device ms": f"{found.seconds * 1e3:.2f}",
        "lost ms": f"{lost * 1e3:.2f}",
        "of peak": f"{products / peak / found.seconds:.0%}",
        "on the host": sum(found.on_host().values()),
        "seconds": found.seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 12])
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    sendnn.register()
    rows = []
    for family in asked.families:
        for layers in asked.layers:
            steps = [(length, False) for length in asked.lengths]
            steps += [(max(asked.lengths), True)] if family != "bert" else []
            for length, decode in steps:
                pair = [costed(family, layers, length, each, decode=decode) for each in ("inductor", "sendnn")]
                inductor, ours = (each.pop("seconds") for each in pair)
                pair[1]["Inductor / sendnn"] = f"{inductor / ours:.2f}"  # type: ignore[operator]
                rows += pair
                print(tabulate(pair, headers="keys"), flush=True)
    print(tabulate(rows, headers="keys", tablefmt="github"))


if __name__ == "__main__":
    main()
