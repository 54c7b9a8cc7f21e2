"""`holdfast agents resolve`."""

from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import HoldfastError, status_of
from holdfast.operations.agent_key import AgentKey
from holdfast.operations.operation import Request
from holdfast.surfaces.cli.connection import connected
from holdfast.surfaces.cli.options import AsJson
from holdfast.surfaces.cli.output import remark, write
from holdfast.surfaces.cli.quick import quick_command


class ResolveOptions(Request, frozen=True, kw_only=True):
    """How the agent is shown."""

    as_json: AsJson = False


@quick_command("Print the id of a live agent.")
def resolve(request: AgentKey, options: ResolveOptions) -> int:
    """Print the id of the live agent of a name or an id; with --json its record, or the reason why
    there is none.

    Exit status 1 when it is missing, malformed, schema_invalid, expired or known by another name, 4
    when it is ambiguous; the reason goes to stderr.
    """
    with connected(create=False) as hf:
        found = hf.agents.resolve(request.agent)
    if options.as_json:
        write(to_json(found))
    elif found.record is not None:
        write(found.record.agent_id)
    try:
        found.unwrap()
    except HoldfastError as error:
        if not options.as_json:
            remark(f"{error.fields['reason']}: {error.message}")
        return status_of(error).exit
    return 0
