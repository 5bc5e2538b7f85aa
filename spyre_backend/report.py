"""What the compilers compiled: which operators reached lowering, which became programs, which stayed external.

What Inductor compiles carries its report in the generated module, so that one served from its caches reports like a
fresh one.
"""

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Compilation:
    """One compiled graph. Operators are named `aten::add.Tensor`; counts are occurrences in its graph."""

    lowered: dict[str, int]
    """Operators of the graph that were lowered, after decompositions and passes."""
    extern: dict[str, int]
    """Operators that the compiled graph calls instead of computing them in a program."""
    programs: list[tuple[str, str]]
    """(name, digest) of every program."""
    runs: int = field(default=0)
    """How often the graph was called since it was loaded or the list was reset."""

    def ran(self) -> None:
        """Called by the compiled graph on every run."""
        if not any(known is self for known in compilations):
            # the list was reset since the module was loaded
            self.runs = 0
            compilations.append(self)
        self.runs += 1


compilations: list[Compilation] = []
"""Every compilation that was loaded or run since the last `reset`, in order."""


def reset() -> None:
    """Forget what was compiled so far; a module that runs again reports again."""
    compilations.clear()


def loaded(data: str) -> Compilation:
    """Called by a generated module when it is imported, with what `describe` said of it."""
    fields = json.loads(data)
    programs = [(name, digest) for name, digest in fields["programs"]]
    compilation = Compilation(fields["lowered"], fields["extern"], programs)
    compilations.append(compilation)
    return compilation


def operator_name(overload: Any) -> str:
    """`aten::add.Tensor`, `aten::relu.default`."""
    return f"{overload._schema.name}.{overload._overloadname}"
