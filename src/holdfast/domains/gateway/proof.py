"""How a gateway proves that it is one, before it is shown the token.

Where a gateway listened, another program may listen by now, and it would be handed the token by
whoever trusts an old note. So a client sends a challenge of its own, and the gateway answers with
what only somebody who has the token can make of it. Its port is a part of that: an answer that was
got from the gateway where it is now is of no use where it was.
"""

import hmac

CHALLENGE_HEADER = "Holdfast-Challenge"
CHALLENGE_PATTERN = r"^([A-Za-z0-9_-]{16,128})?$"


def proof_of(token: str, challenge: str, port: int) -> str:
    """The answer to a challenge of one who serves at that port and has the token."""
    said = f"holdfast gateway\n{port}\n{challenge}"
    return hmac.new(token.encode(), said.encode(), "sha256").hexdigest()


def is_proof(given: object, token: str, challenge: str, port: int) -> bool:
    """Is this that answer? Takes as long whatever they share."""
    return isinstance(given, str) and hmac.compare_digest(
        given.encode(), proof_of(token, challenge, port).encode()
    )
