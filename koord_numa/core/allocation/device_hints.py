"""Devices of resource claims as a hint provider: what the merge of NUMA nodes asks of them."""

from typing import Protocol


class DeviceHints(Protocol):
    """
    Where the devices of a pod's claims can be allocated. Sets of NUMA nodes are masks, never empty.

    A set that has too few devices cannot hold the pod, however much of everything else it has: that is how devices join the merge of
    all other resources (KEP-693, "Hint Providers").
    """

    def fits(self, mask: int) -> bool:
        """Can all claims be allocated on these NUMA nodes, beside what is in use?"""
        ...

    def fits_if_empty(self, mask: int) -> bool:
        """Could they be if nothing were in use?"""
        ...
