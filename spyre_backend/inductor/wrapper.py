"""The Python module that Inductor generates: programs as serialised text, loaded when the module is imported."""

import json
from typing import Any

from spyre_backend import upstream
from spyre_backend.inductor.description import describe
from spyre_backend.program import Program, SpyreUnsupported
from spyre_backend.program.text import to_lines


class _LaunchesPrograms:
    """What upstream's wrapper lacks: the launch of a program."""

    def _generate_kernel_call_helper(self, kernel_name: str, call_args: list[str], **kwargs: Any) -> None:
        device = kwargs.get("device") or upstream.V.graph.get_current_device_or_throw()
        if device.type == "cpu":
            # kernels of upstream's C++ scheduling, in a graph that mixes devices
            super()._generate_kernel_call_helper(kernel_name, call_args, **kwargs)  # type: ignore[misc]
        else:
            self.writeline(self.wrap_kernel_call(kernel_name, call_args))  # type: ignore[attr-defined]

    def generate_extern_kernel_out(self, node: Any, *args: Any, **kwargs: Any) -> None:
        if type(node).__name__ == "RandomSeeds":
            self.writeline(f"draw_seeds({node.codegen_reference()})")  # type: ignore[attr-defined]
        else:
            super().generate_extern_kernel_out(node, *args, **kwargs)  # type: ignore[misc]


class SpyrePythonWrapper(_LaunchesPrograms, upstream.PythonWrapperCodegen):  # type: ignore[misc, name-defined]
    """Upstream's Python wrapper for graphs on the device."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.programs: list[tuple[str, str]] = []
        super().__init__(*args, **kwargs)

    @staticmethod
    def create(is_subgraph: bool, subgraph_name: Any, parent_wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        if is_subgraph:
            return SpyreSubgraphWrapper(subgraph_name, parent_wrapper, *args, **kwargs)
        return SpyrePythonWrapper()

    def write_header(self) -> None:
        super().write_header()
        self.imports.writeline("from spyre_backend import report as spyre_report")
        self.imports.writeline("from spyre_backend.inductor.runtime import draw_seeds")
        self.imports.writeline("from spyre_backend.simulator import load as load_program")

    def define_program(self, program: Program, text: str) -> None:
        """Put a program into the module, under its own name."""
        self.programs.append((program.name, program.digest))
        self.header.writeline("")
        for line in to_lines(program):
            self.header.writeline(f"# {line}")
        self.header.writeline(f"{program.name} = load_program({text!r})")

    def generate(self, is_inference: bool) -> Any:
        data = json.dumps(describe(upstream.V.graph, self.programs), sort_keys=True)
        self.header.writeline(f"spyre_compilation = spyre_report.loaded({data!r})")
        self.lines.insert(0, "spyre_compilation.ran()")
        return super().generate(is_inference)


class SpyreSubgraphWrapper(_LaunchesPrograms, upstream.SubgraphPythonWrapperCodegen):  # type: ignore[misc, name-defined]
    """A function inside the module: the body of a control-flow operator, or a partition of the graph."""

    def define_program(self, program: Program, text: str) -> None:
        """Programs live at the level of the module."""
        self.parent_wrapper.define_program(program, text)


class SpyreCppWrapper(upstream.PythonWrapperCodegen):  # type: ignore[misc, name-defined]
    """Stands where upstream looks for a C++ wrapper, to say that there is none."""

    @staticmethod
    def create(*args: Any, **kwargs: Any) -> Any:
        raise SpyreUnsupported("spyre has no C++ wrapper: compile without cpp_wrapper and without AOTInductor")
