"""What the operations on jobs take: requests, with their options and tool arguments."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from holdfast.domains.jobs import JobStatus
from holdfast.domains.jobs.events import EventKind
from holdfast.domains.jobs.records import (
    FOLDER_LIMITS,
    HOST,
    PASSWORD_ENV,
    PORT,
    TLS_PORT,
)
from holdfast.kernel.limits import (
    JOB_ATTEMPTS,
    JOB_ATTEMPTS_MAX,
    JOB_PROMPT_BYTES_MAX,
    JOB_TIMEOUT_MAX_S,
    LIST_MAX,
)
from holdfast.operations.fields import (
    DAY_S,
    QUEUE,
    Count,
    Id,
    JobId,
    Label,
    Limit,
    PathText,
    Pid,
    Priority,
    Seconds,
    Text,
    Token,
    described,
)
from holdfast.operations.job_status import AttemptToken, JobKey
from holdfast.operations.operation import Argument, Flag, Request

_DETAIL_CHARS_MAX = 8000
_Prompt = Annotated[str, described("What is to be done.", pattern=r"\S", min_length=1)]
_TimeLimit = Annotated[
    float,
    Meta(
        gt=0,
        le=JOB_TIMEOUT_MAX_S,
        description="Seconds that one attempt may take; then it ends in error. A day by default.",
    ),
]
_IdleLimit = Annotated[
    float,
    Meta(
        gt=0,
        le=JOB_TIMEOUT_MAX_S,
        description="Seconds without a sign of life; then it ends in error. No limit by default.",
    ),
]
_Attempts = Annotated[
    int,
    Meta(ge=1, le=JOB_ATTEMPTS_MAX, description="How often it is begun when its workers die."),
]
_Variable = Annotated[
    str, described("A variable's name.", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=100)
]
_Ending = Literal["completed", "error", "cancelled"]


class BrokerChoice(Request, frozen=True, kw_only=True):
    """The MQTT broker of a job's events. The sender has the password in an environment variable."""

    host: Annotated[
        Label,
        Flag("--broker", metavar="HOST", show_default=True, help="The MQTT broker of its events."),
    ] = HOST
    port: Annotated[
        Annotated[int, Meta(ge=1, le=65535)] | None,
        Flag(
            "--broker-port",
            within=None,
            help=f"The broker's port.  [default: {PORT}; {TLS_PORT} with TLS]",
        ),
    ] = None
    tls: Annotated[bool, Flag("--broker-tls", help="Use TLS to the broker.")] = False
    username: Annotated[
        Label | None,
        Flag("--broker-username", metavar="NAME", help="The name to log in to the broker with."),
    ] = None
    password_env: Annotated[
        _Variable,
        Flag(
            "--broker-password-env",
            metavar="VARIABLE",
            show_default=True,
            help="The variable that holds the password, which is not stored.",
        ),
    ] = PASSWORD_ENV


class Register(Request, frozen=True, kw_only=True):
    """Work to be done."""

    prompt: Annotated[
        _Prompt,
        Argument(
            f"What is to be done, in at most {JOB_PROMPT_BYTES_MAX} bytes of JSON in UTF-8. Put "
            "longer input into a file and name its path.",
            max_length=JOB_PROMPT_BYTES_MAX,
        ),
    ]
    agent: Annotated[
        Label, Flag("--agent", show_default=True, help="The kind of agent it is for."), Argument()
    ] = "agent"
    agent_session: Annotated[
        Label,
        Flag(*QUEUE, metavar="LABEL", help="The queue it joins, such as tmux:claude-a."),
        Argument(name="queue"),
    ]
    timeout_sec: Annotated[
        _TimeLimit | None,
        Flag(
            "--timeout",
            within=None,
            help="Seconds one attempt may take; then it ends in error.  [default: 86400, a day; "
            f"{FOLDER_LIMITS.timeout_sec:g} with --registry-dir]",
        ),
        Argument(name="timeout_s"),
    ] = None
    idle_timeout_sec: Annotated[
        _IdleLimit | None,
        Flag(
            "--idle-timeout",
            within=None,
            help="Seconds it may be without a sign of life; then it ends in error.  "
            f"[default: no limit; {FOLDER_LIMITS.idle_timeout_sec:g} with --registry-dir]",
        ),
        Argument(name="idle_timeout_s"),
    ] = None
    expected_artifacts: Annotated[
        tuple[PathText, ...],
        Flag(
            "--artifact",
            metavar="PATH",
            help="A file the work must leave, in its working folder; repeatable. "
            "`jobs run` looks for it.",
        ),
        Argument("Files that the work must leave."),
    ] = ()
    workdir: Annotated[
        PathText | None,
        Flag(
            "--workdir",
            metavar="FOLDER",
            help="Where `jobs run` runs its command.  [default: where it runs itself]",
        ),
        Argument("An absolute path."),
    ] = None
    priority: Annotated[
        Priority, Flag("--priority", show_default=True, help="Higher goes first."), Argument()
    ] = 0
    max_attempts: Annotated[
        _Attempts,
        Flag(
            "--max-attempts",
            within=None,
            show_default=True,
            help="How many attempts may end by the worker's death.",
        ),
        Argument(),
    ] = JOB_ATTEMPTS
    job_id: Annotated[
        Id | None, Flag("--id", metavar="ID", help="An id of your own instead of a random one.")
    ] = None
    signed: Annotated[
        bool,
        Flag(
            "--unsigned",
            choose=(True, False),
            help="Give it no key: events received for it are ignored.",
        ),
    ] = True
    broker: BrokerChoice = BrokerChoice()
    topic_prefix: Annotated[
        Label | None,
        Flag(
            "--topic-prefix",
            metavar="TOPIC",
            help="Its events go to TOPIC/events.  [default: holdfast/jobs/ID]",
        ),
    ] = None


class Report(JobKey, frozen=True, kw_only=True):
    """How the work on a claimed job goes, or how it ended."""

    outcome: Annotated[
        Literal["progress", "permission_required", "completed", "error", "give_back"], Argument()
    ]
    detail: Annotated[
        Annotated[str, Meta(max_length=_DETAIL_CHARS_MAX)],
        Argument("The result, or what there is to say."),
    ] = ""
    token: AttemptToken = None


class FinishAndPick(Request, frozen=True, kw_only=True):
    """How a job ended, and the queue to pick the next one from: the job's own by default."""

    job_id: JobId
    status: _Ending
    token: Token
    agent_session: Label | None = None
    result: Text | None = None
    error: Text | None = None
    pid: Pid | None = None


class Cancel(JobKey, frozen=True, kw_only=True):
    """The job to cancel, and why."""

    reason: Annotated[Text | None, Flag("--reason", help="Why.")] = None


class Requeue(JobKey, frozen=True, kw_only=True):
    """The job to put back. Without a token the caller speaks as an operator."""

    token: AttemptToken = None


class RetryAll(Request, frozen=True, kw_only=True):
    """Which jobs to retry: those that ended in error, or were cancelled; of one queue or of all."""

    status: Annotated[
        Literal["cancelled", "error"],
        Flag("--status", default=None, help="All jobs with this status."),
    ] = "error"
    agent_session: Annotated[
        Label | None, Flag(*QUEUE, metavar="LABEL", help="Only those of this queue; with --status.")
    ] = None


class Heartbeat(JobKey, frozen=True, kw_only=True):
    """The job that goes on, and its attempt's token."""

    token: Annotated[Token, Flag("--token", within=None, help="The attempt's token.")]


class ListJobs(Request, frozen=True, kw_only=True):
    """Which jobs."""

    status: Annotated[JobStatus | None, Flag("--status", help="Only those with this status.")] = (
        None
    )
    agent_session: Annotated[
        Label | None, Flag(*QUEUE, metavar="LABEL", help="Only those of this queue.")
    ] = None
    limit: Annotated[
        Limit,
        Flag("--limit", within=(0, None), show_default=True, help="At most this many, the newest."),
    ] = LIST_MAX


class ReadJobLog(Request, frozen=True, kw_only=True):
    """A job, and how many of the last lines; all by default."""

    job_id: JobId
    tail: Annotated[
        Limit | None,
        Flag("-n", "--tail", within=(0, None), help="How many of the last lines.  [default: all]"),
    ] = None


class EventsAfter(Request, frozen=True, kw_only=True):
    """A job, and the number of the event after which to begin."""

    job_id: JobId
    after_seq: Count = 0


class PublishEvent(Request, frozen=True, kw_only=True):
    """An event of a job: what there is to say, for people and for programs."""

    job_id: JobId
    event: EventKind
    detail: Annotated[Text, Flag("--detail", help="What there is to say, for people.")] = ""
    data: Any = None
    token: AttemptToken = None


class Prune(Request, frozen=True, kw_only=True):
    """How many finished jobs to keep, and for how long; the configured bounds by default."""

    keep_finished: Annotated[
        Count | None,
        Flag(
            "--keep",
            within=(0, None),
            help="How many finished jobs to keep.  [default: jobs.keep_finished]",
        ),
    ] = None
    keep_s: Annotated[
        Seconds | None,
        Flag(
            "--keep-days",
            unit_s=DAY_S,
            help="For how many days to keep them.  [default: jobs.keep_s]",
        ),
    ] = None
    adopted: Annotated[
        bool, Flag("--adopted", help="Those too that another program registered.")
    ] = False
