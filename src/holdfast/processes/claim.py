"""The claim that a command runs under."""

from holdfast.kernel.codec import Plain


class Claim(Plain, frozen=True, kw_only=True):
    """A claim that a command runs under: a lock by its token, a workflow by its name, or an agent by its id and generation."""

    kind: str
    token: int
    lease_s: float
    name: str = ""
    generation_id: str = ""
    by_lease: bool = False
    """Does the end of its lease end it on its own machine too, where its tree is seen to live?"""
    ends_when_lost: bool = False
    """Is the tree ended when the claim is lost?"""
