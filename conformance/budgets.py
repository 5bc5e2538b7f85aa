"""How often something may happen in a sample before a right answer becomes `budget`. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Budgets(msgspec.Struct, frozen=True):
    """Limits of a sample, by name of what is counted. None: as often as it likes."""

    graph_breaks: int | None = None
    recompiles: int | None = None
    fallbacks: int | None = None

    def exceeded(self, counts: Mapping[str, int]) -> str:
        """A sentence that names the first budget that `counts` exceeds, or an empty string."""
        for name in self.__struct_fields__:
            allowed, count = getattr(self, name), counts[name]
            if allowed is not None and count > allowed:
                return f"{count} {name.replace('_', ' ')}, at most {allowed} allowed"
        return ""
