"""How a gateway proves its identity before a client sends it the token.

Another program may now listen where a gateway listened before. A client that trusts the old address
would send it the token. So the client sends a challenge first, and the gateway answers with an HMAC
that needs the token. The HMAC covers the port, so a program at the old port cannot relay the
challenge to the gateway at its new port.
"""

import hmac

CHALLENGE_HEADER = "Holdfast-Challenge"
CHALLENGE_PATTERN = r"^([A-Za-z0-9_-]{16,128})?$"


def proof_of(token: str, challenge: str, port: int) -> str:
    """The answer of a gateway that has the token and listens at that port."""
    message = f"holdfast gateway\n{port}\n{challenge}"
    return hmac.new(token.encode(), message.encode(), "sha256").hexdigest()


def is_proof(given: object, token: str, challenge: str, port: int) -> bool:
    """Is this the right answer? Compares in constant time."""
    return isinstance(given, str) and hmac.compare_digest(
        given.encode(), proof_of(token, challenge, port).encode()
    )
