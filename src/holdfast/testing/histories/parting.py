"""Cutting a history into parts that share no key: the whole is linearizable when each part is."""

from collections.abc import Sequence

from holdfast.testing.histories.operation import Operation


def parts(operations: Sequence[Operation]) -> dict[str, list[Operation]]:
    """The parts, each by the least of its keys. What has no keys comes into each part in which its process does something."""
    roots = _roots(operations)
    found: dict[str, list[Operation]] = {}
    for operation in operations:
        if operation.keys:
            found.setdefault(roots[operation.keys[0]], []).append(operation)
    everywhere = [operation for operation in operations if not operation.keys]
    for part in found.values():
        processes = {operation.process for operation in part}
        part += [operation for operation in everywhere if operation.process in processes]
        part.sort(key=lambda operation: operation.begin)
    return found


def _roots(operations: Sequence[Operation]) -> dict[str, str]:
    """For each key, the least of those that it is joined with by operations on several."""
    roots: dict[str, str] = {}

    def root_of(key: str) -> str:
        while roots.setdefault(key, key) != key:
            roots[key] = roots[roots[key]]
            key = roots[key]
        return key

    for operation in operations:
        for key in operation.keys:
            one, other = sorted((root_of(operation.keys[0]), root_of(key)))
            roots[other] = one
    return {key: root_of(key) for key in list(roots)}
