"""A reconstruction of sendnn, the earlier compiler of the Spyre stack, which was written from scratch.

    import spyre_backend
    torch.compile(model, backend="sendnn")

From Dynamo's graph on everything is its own: operator table, fusion, memory plan, programs. It compiles for plain
sizes: each combination of them is compiled anew. It computes forwards only, and refuses what it lacks;
`options={"host": True}` leaves that to the host. It is written from public facts and is not IBM's code: say so wherever
its results are shown.
"""

from spyre_backend.sendnn.errors import SendnnUnsupported

__all__ = ["SendnnUnsupported", "register"]


def register() -> None:
    """Make `backend="sendnn"` known to Dynamo, unless the entry point of the installed package has done so."""
    from spyre_backend import upstream
    from spyre_backend.sendnn.capture import sendnn

    if "sendnn" not in upstream.dynamo_backends():
        upstream.register_dynamo_backend(sendnn, "sendnn")
