"""Which Inductor nodes become one kernel, and how its program gets into the generated module."""

import logging
from typing import Any

import msgspec
import torch

from spyre_backend import upstream
from spyre_backend.inductor.kernel import SpyreKernel
from spyre_backend.program import dumps, verify
from spyre_backend.program.text import to_text_form

log = logging.getLogger(__name__)


class SpyreScheduling(upstream.SIMDScheduling):  # type: ignore[misc, name-defined]
    """Upstream's SIMD scheduling: fusion is theirs, the kernels are tile programs."""

    kernel_type = SpyreKernel

    def get_backend_features(self, device: torch.device) -> Any:
        feature = upstream.BackendFeature
        names = (
            "BUCKETIZE",
            "INPLACE_BUFFERS",
            "MASKED_SCATTER_WITH_INDEX",
            "SCAN",
            "SORT",
            "TUPLE_REDUCTION",
            # a reduction sees all of its elements: splitting it in stages would only cost launches
            "REDUCE_TO_SINGLE_ELEMENT",
        )
        return upstream.OrderedSet(getattr(feature, name) for name in names if hasattr(feature, name))

    @classmethod
    def get_tiling_and_scores(cls, node_schedule: Any, numel: Any, reduction_numel: Any = 1, *_: Any, **__: Any) -> Any:
        # one flat pointwise and one flat reduction range: the axes are found from the splits in use
        return cls.create_tiling([numel], [reduction_numel]), None

    def codegen_node(self, node: Any) -> Any:
        with upstream.without_coalescing_analysis():
            return super().codegen_node(node)

    def define_kernel(self, src_code: str, node_schedule: Any, kernel: SpyreKernel) -> str:
        wrapper = upstream.V.graph.wrapper_code
        name = wrapper.src_to_kernel.get(src_code)
        if name is None:
            fused = upstream.fused_kernel_name(node_schedule)
            name = f"spyre_{fused}_{wrapper.next_kernel_suffix()}"
            wrapper.src_to_kernel[src_code] = name
            assert kernel.program is not None
            program = msgspec.structs.replace(kernel.program, name=name)
            verify(program)
            if log.isEnabledFor(logging.DEBUG):
                log.debug("%s", to_text_form(program))
            wrapper.define_program(program, dumps(program))
        return name

    def can_fuse_multi_outputs_template(self, *args: Any, **kwargs: Any) -> bool:
        return False

    def benchmark_fused_nodes(self, *args: Any, **kwargs: Any) -> tuple[float, str]:
        raise NotImplementedError("kernels are not benchmarked while compiling")
