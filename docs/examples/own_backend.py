"""A backend of your own in one file: a compiler that knows three operations, runs them in NumPy and refuses others."""

import contextlib
import operator

import numpy as np
import torch

KERNELS = {torch.sin: np.sin, torch.add: np.add, operator.add: np.add, operator.mul: np.multiply}
launched = 0


class Runner(torch.fx.Interpreter):
    def call_function(self, target, args, kwargs):
        global launched
        if target not in KERNELS or kwargs:
            raise NotImplementedError(f"no kernel for {target.__name__}")
        launched += 1
        arrays = [a.numpy() if isinstance(a, torch.Tensor) else a for a in args]
        return torch.as_tensor(KERNELS[target](*arrays))


def compiler(graph, example_inputs):
    return Runner(graph).run


class NumpyBackend:
    name, protocol_version, device = "numpy", 1, "cpu"
    imports = "import torch\nfrom own_backend import compiler"
    compile_source = "torch.compile(fn, backend=compiler, dynamic={dynamic})"

    def availability(self):
        return True, np.__version__

    def capabilities(self):
        return {"device": self.device, "dtypes": ["float32", "int64"], "backward": False}

    def setup(self):
        """Import and register here what takes long; this module has nothing of the kind."""

    def compile(self, fn, *, dynamic, fullgraph=False):
        return torch.compile(fn, backend=compiler, dynamic=dynamic, fullgraph=fullgraph)

    @contextlib.contextmanager
    def observe(self):
        before, seen = launched, {}
        yield seen
        seen["kernels"] = launched - before
