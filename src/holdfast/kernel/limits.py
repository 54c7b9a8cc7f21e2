"""Every bound of the program, by name. Change one here and it changes everywhere."""

ID_CHARS_MAX = 128
"""Longest id: what becomes a key or part of a path."""

LABEL_CHARS_MAX = 256
"""Longest label: lock resources, session labels, actors."""

PATH_CHARS_MAX = 4096
"""Longest path in a record: what Linux takes."""

SPACE_NAME_CHARS_MAX = 24
"""Longest name of a space or an index: both become part of one identifier, of which PostgreSQL
keeps 63 characters.
"""

KEY_BYTES_MAX = 4 * LABEL_CHARS_MAX
"""Longest key in UTF-8: any label fits, and so does every database's bound on an index entry."""

INDEX_BYTES_MAX = KEY_BYTES_MAX + 176
"""Longest encoded index tuple: a label and a few numbers."""

RECORD_BYTES_MAX = 1 << 20
"""Largest encoded record. A store is for claims and small documents, not for blobs."""

LABEL_JSON_BYTES_MAX = 4 * LABEL_CHARS_MAX + 2
"""Longest label as JSON: a character has up to four bytes, and the two that are escaped become two.
"""

HOLDER_BYTES_MAX = 2 * LABEL_JSON_BYTES_MAX + 512
"""Longest process as JSON: its label, the id of its machine, and what else tells it from every
other process.
"""

ENTRY_BYTES_MAX = 64 << 10
"""Largest encoded data of one journal entry."""

KEYS_PER_STATEMENT_MAX = 256
"""Most keys in one `put_new` or `delete_if`, well under every database's bound on parameters."""

LIST_MAX = 10_000
"""Most records that one list returns unless told."""

TRANSACT_TIMEOUT_S = 10.0
"""Default time limit of one transaction, from the call to its acknowledgement."""

WAIT_RECHECK_S = 2.0
"""Longest sleep of a waiter before it looks again by itself. A wake-up is lost only if its sender
is killed between its commit and its signal; this bounds what that costs.
"""

CLOCK_LOOK_EVERY_S = 10.0
"""How long a process relies on its last comparison of the store's clock with the time that has
passed.
"""

CLOCK_WRITE_EVERY_S = 60.0
"""How old what the store knows of its clock may be before a process that compares it writes it
anew.
"""

CLOCK_JUMP_S = 2.0
"""By how much the store's clock may be ahead of the time that has passed before it counts as set
forward: a leap second, a step of a time server, a slow answer.
"""

LEASE_JUMP_BELIEVED_S = 300.0
"""How long after the store's clock was set forward a lease is judged without that. A live holder
renews several times in it.
"""

RETENTION_JUMP_BELIEVED_S = 24 * 3600.0
"""How long after the store's clock was set forward nothing is removed for its age by that."""

CLOCK_SILENCE_S = 24 * 3600.0
"""How old the newest journal entry may be when a store is first used after a boot, before the clock
counts as set forward for what is removed by its age.
"""

CLOCK_ROWS_KEEP_S = 30 * 24 * 3600.0
"""How long the clock of an earlier boot is remembered."""

LISTEN_TOPICS_MAX = 256
"""Most topics of one listener."""

JOURNAL_KEEP_ENTRIES = 100_000
"""Journal entries kept by default."""

JOURNAL_KEEP_S = 30 * 24 * 3600.0
"""Age up to which journal entries are kept by default."""

JOURNAL_KEEP_LEAST = 1000
"""Journal entries kept however old they are: by a clock that is wrong, all of them are."""

JOURNAL_TRIM_EVERY = 1024
"""How many entries pass, on average, between two looks at the journal's bounds."""

MIRROR_LOOK_BACK_BYTES = 16 << 20
"""How much of the end of a file that mirrors the journal is looked through for lines that are there
already.
"""

JOURNAL_READ_MAX = 1000
"""Most entries that one read of the journal returns."""

JOURNAL_LAG_LOOK_MAX = 10_000
"""Most entries that are looked through to see how far a follower of the journal is behind."""

METRICS_RESOURCES_MAX = 200
"""Most resources with metrics of their own; what comes beyond is summed up together."""

METRICS_CLAIMS_MAX = 200
"""Most agents, and most workflows, whose leases have metrics of their own: those that end first."""

METRICS_GATEWAYS_MAX = 200
"""Most gateways that are asked for metrics."""

METRICS_ASK_S = 1.0
"""How long a gateway may take to say how it is, for metrics and for the doctor."""

METRICS_PROBE_S = 2.0
"""How long a store may take for one empty transaction, for metrics."""

DOCTOR_CHECK_S = 5.0
"""How long one check of the doctor may take."""

CLOCK_SKEW_S = 2.0
"""How far a database's clock may be from this machine's before the doctor speaks of it."""

DISK_FREE_BYTES_MIN = 64 << 20
"""How much room a store's disk should have: the log of a busy store grows to a good part of it."""

LOG_BYTES_KEPT = 64 << 20
"""How long SQLite's log stays when it is begun anew, and from where on the doctor speaks of it. It
is begun anew at 14 MB unless a reader is in the way.
"""

LOG_BYTES_MAX = 1 << 30
"""How long SQLite's log may get while a stopped reader keeps it from being begun anew; then changes
are refused. Some hundred thousand changes: one stopped process must not stop all writers soon, nor
fill the disk in the end.
"""

GATE_HELD_S = 2.0
"""How long a process may be inside a transaction before the doctor speaks of it."""

FILES_RETRY_ATTEMPTS = 3
"""How often the files store tries to read or write a file before it says that it cannot."""

FILES_RETRY_DELAY_S = 0.1
"""How long it waits in between."""

FILES_WATCHED_FROM = 256
"""From how many files on it has the kernel tell which were changed, rather than look at each. A
user has few such watches, 128 on most machines, and to look at fewer files than these takes half a
millisecond.
"""

LOCK_TIMEOUT_S = 30.0
"""How long a lock is waited for unless told."""

LOCK_LEASE_S = 30.0
"""How long a holder that cannot be probed is believed without a sign of life. Live processes renew
at a third of it.
"""

HOLD_LEASE_S = 600.0
"""The same for counted holds, which are durable: each renewal is a sync."""

LOCK_PRIORITY_AGE_S = 10.0
"""What one step of priority is worth in a lock's queue: so many seconds of having come earlier."""

LOCK_PRIORITY_MAX = 1000
"""Greatest priority, up or down."""

BACKFILL_MAX = 4
"""How often a waiting request is overtaken by later ones that may delay it. Fewer leave free
resources idle behind a blocked set; more let large sets wait long.
"""

LOCK_NAMES_MAX = KEYS_PER_STATEMENT_MAX
"""Most names in one request: a free set is taken by one statement. Each name's row lists the whole
set, so the bytes of a grant grow with the square of it; a set of so many is granted in about 20 ms,
and handed to a waiter in about 40.
"""

LOCK_SET_BYTES_MAX = 8192
"""Longest the names of one request may be together in UTF-8: each name's row lists them all, for
each of its holders.
"""

LOCK_SHARERS_MAX = 256
"""Most that share one resource at a time; the next waits until one of them leaves."""

LOCK_HOLDS_BYTES_MAX = 256 << 10
"""Most bytes of all holds of one resource. Large sets fill it before there are so many sharers, and
then the next waits too: a grant of a set writes that much for each of its names.
"""

LOCK_TTL_MAX_S = 10 * 365 * 24 * 3600.0
"""Longest time to live of a grant."""

LOCK_WATCHED_MAX = 64
"""Most processes whose death one waiter is told of by the kernel; of more, it asks now and then."""

LOCK_REAPED_MAX = 250
"""Most waiters of one dead process that are taken out of a queue in one step: others must have
their turns in between.
"""

LOCK_AHEAD_COUNTED_MAX = 1000
"""Most waiters before a request that are counted when its time is over: a line that is longer is
said to be.
"""

LOCK_AHEAD_TOLD_MAX = 16
"""Most holders, and most waiters, that are named to one whose time is over."""

LOCK_STATISTICS_MAX = 10_000
"""Most resources with statistics of their own; what comes beyond is summed up together."""

LOCK_STATISTICS_EVERY_S = 5.0
"""How often a process adds what it counted to the store's statistics."""

JOB_TIMEOUT_MAX_S = 10 * 365 * 24 * 3600.0
"""Longest time limit of a job."""

JOB_PROMPT_BYTES_MAX = 768 << 10
"""Longest prompt of a job, as JSON in UTF-8."""

JOB_REGISTERED_BYTES_MAX = JOB_PROMPT_BYTES_MAX + (64 << 10)
"""Largest record of a job when it is registered: the longest prompt, and its names, paths and
broker. The rest of a record's room is for what attempts add (JOB_GROWTH_BYTES_MAX), so that a job
which was registered can be claimed and ended.
"""

JOB_ATTEMPTS_MAX = 1000
"""Most attempts that a job may be given."""

JOB_LEASE_S = 120.0
"""How long the worker of a job is believed without a sign of life where its process cannot be seen,
unless told. A database may be away for a minute, as while another takes over, and no work of hours
is to be begun anew for that.
"""

TREE_GRACE_S = 10.0
"""How long the processes of a tree have to end by themselves after SIGTERM."""

STANDBY_AFTER_S = 5.0
"""After how long a wrapper that only waits for its command becomes a slim program. Going on standby
and coming back takes as long as another start of Holdfast, which a short command must not pay.
"""

JOB_PAST_ATTEMPTS_MAX = 10
"""How many of a job's attempts that did not complete it are remembered in its record, the last
ones.
"""

JOB_PAST_ERROR_BYTES_MAX = 2 << 10
"""How much is remembered of what went wrong in each of them, as JSON."""

JOB_LATE_BYTES_MAX = 24 << 10
"""How much of a verdict that came too late is kept, as JSON: of its result, and of its error."""

JOB_CLAIM_BYTES_MAX = HOLDER_BYTES_MAX + (2 << 10)
"""Most that a claim, and the numbers and times of a job, add to its record."""

JOB_GROWTH_BYTES_MAX = (
    JOB_CLAIM_BYTES_MAX
    + JOB_PAST_ATTEMPTS_MAX
    * (HOLDER_BYTES_MAX + JOB_PAST_ERROR_BYTES_MAX + 2 * LABEL_JSON_BYTES_MAX)
    + 2 * JOB_LATE_BYTES_MAX
    + 4 * LABEL_JSON_BYTES_MAX
)
"""Most that attempts add to a job's record beside the words of its verdict: the claim, the past
attempts and a late result.
"""

JOB_VERDICT_BYTES_MIN = RECORD_BYTES_MAX - JOB_REGISTERED_BYTES_MAX - JOB_GROWTH_BYTES_MAX
"""How much of a verdict's words is always kept, as JSON. More is kept where the rest of the record
is smaller.
"""

JOBS_TREE_AGAIN_S = 60.0
"""How long a process waits before it tries once more to end a tree that SIGKILL did not end."""

JOBS_SWEEP_EVERY_S = 1.0
"""How often a busy worker looks for jobs whose workers died. Whoever finds nothing to take looks at
once.
"""

JOBS_SWEPT_MAX = 1000
"""Most overdue jobs that one such look reads and reaps at a time, the longest overdue first."""

JOBS_OF_WORKERS_READ = 64
"""How many running jobs one such look reads at a time to see whose they are; it goes on with the
worker after the last.
"""

JOBS_WATCHED_MAX = 64
"""Most workers of whose death one that waits for a job is told by the kernel; of more, it asks now
and then.
"""

JOBS_PAGE = 256
"""How many jobs a list reads at a time."""

JOBS_KEEP = 100_000
"""Finished jobs kept by default."""

JOBS_KEEP_S = 30 * 24 * 3600.0
"""Age up to which finished jobs are kept by default."""

JOBS_KEEP_LEAST = 1000
"""Finished jobs kept by default however old they are: by a clock that is wrong, all of them are."""

JOBS_PRUNED_MAX = 500
"""Most finished jobs removed in one transaction."""

JOBS_PRUNE_EVERY = 1024
"""How many registrations pass, on average, between two looks at the bounds of finished jobs."""

JOB_EVENTS_KEEP = 1000
"""Most events kept of one job, sent or not; the oldest go first."""

JOB_EVENT_BYTES_MAX = 32 << 10
"""Largest event in JSON: it must fit into a journal entry."""

BROKER_CONNECT_S = 5.0
"""How long connecting to a message broker, or its acknowledgement of one message, may take."""

BROKER_BACKOFF_MAX_S = 30.0
"""Longest pause between two attempts to reach a broker that is away."""

AGENT_LEASE_S = 24 * 3600.0
"""How long an agent that gives no sign of life is believed. Whoever runs one renews at a third of
it.
"""

AGENT_GRACE_S = 300.0
"""How long a cleanup leaves an expired agent, or a folder that has no record yet, alone."""

AGENT_START_S = 20.0
"""How long `agents start` waits for the agent to come up in its tmux session."""

AGENT_MOMENT_S = 1.0
"""How long `agents start` watches a program once it has begun. Most of what dies at once (a wrong
option, a missing file or library, no login) does so within that; a person waits that much longer
for a program that is well.
"""

TMUX_ANSWER_S = 5.0
"""How long tmux may take to answer. A server that is silent for longer is neither dead nor alive:
that is unknown.
"""

TMUX_START_S = 15.0
"""How long it may take to start a tmux session: its server may have to begin first, and to read the
user's configuration.
"""

AGENT_RESERVED_S = TMUX_START_S + AGENT_START_S
"""How long an id is kept for an agent that `agents start` has yet to bring up: should that be
killed, it is free again soon.
"""

TMUX_SILENCE_S = 10.0
"""How long a tmux that did not answer is not asked again whether a session is there: whoever has
many questions waits once.
"""

TMUX_PASTE_S = 3
"""Within how many seconds tmux must have come to a paste or an interrupt, or else it leaves it
undone. Well under the time for its answer: what was given up must not be typed later, between the
words of another.
"""

MANIFEST_BYTES_MAX = 1 << 20
"""Largest manifest that is read."""

QUEUE_DEPTH_MAX = 1000
"""Most requests that one queue has accepted and not finished; the next is refused."""

QUEUE_KEEP_REQUESTS = 10_000
"""Finished requests that a queue keeps."""

QUEUE_KEEP_S = 30 * 24 * 3600.0
"""Age up to which it keeps them."""

QUEUE_KEEP_LEAST = 1000
"""The newest of them, which it keeps at any age: a clock may have been stepped."""

QUEUE_TRIM_EVERY = 64
"""How many requests end, on average, between two looks at these bounds."""

QUEUE_TRIM_MAX = 256
"""Most finished requests dropped at one look."""

QUEUE_PRUNE_LEAST_S = 24 * 3600.0
"""How long ago a request must have ended for a person to drop it: until then its idempotency key
may be asked again.
"""

PROMPT_BYTES_MAX = 256 << 10
"""Longest prompt in UTF-8."""

ANSWER_CHARS_MAX = 64 << 10
"""Longest answer that is kept of a request; of a longer one, the end."""

REQUEST_PAYLOAD_BYTES_MAX = 2 * PROMPT_BYTES_MAX + (1 << 10)
"""Largest payload of a request, as JSON: the longest prompt fits, also when each of its characters
is escaped, which makes two bytes of one.
"""

REQUEST_RESULT_BYTES_MAX = 6 * ANSWER_CHARS_MAX + (16 << 10)
"""Largest result that is kept of a request, as JSON: the longest answer fits, also one of control
characters alone, each of which takes six bytes. With the payload beside it, a request stays within
a record's bound.
"""

REQUEST_DETAIL_BYTES_MAX = 16 << 10
"""Longest reason that is kept of a request's failure, as JSON."""

ACCEPTS_PER_COMMIT_MAX = 64
"""Most requests that are accepted in one commit."""

GATEWAY_PROBE_S = 1.0
"""How long a gateway may take to say that it is there."""

GATEWAY_PATIENCE_MAX_S = 30 * 24 * 3600.0
"""Longest that an adapter can be told to wait for anything."""

GATEWAY_INSPECT_EVERY_S = 1.0
"""How often a gateway looks at its agent by itself. It also looks just before each delivery."""

GATEWAY_GLANCE_S = 1.0
"""How long whoever asks for the status waits for a look that another has begun; then it is told
what was last seen.
"""

GATEWAY_PROVE_S = 5.0
"""How long what listens where a gateway should be may take to prove that it is one."""

GATEWAY_ANNOUNCE_EVERY_S = 60.0
"""How often a gateway looks at its agent's record by itself. It is told at once when the agent
changes hands.
"""

GATEWAY_LEASE_S = 30.0
"""How long a gateway's process that cannot be probed is believed without a sign of life. It renews
at a third of it.
"""

GATEWAY_STOP_S = 10.0
"""How long a gateway that is told to stop waits for the request that runs."""

GATEWAY_WAIT_MAX_S = 25.0
"""Longest that one HTTP request waits for a request to end."""

GATEWAY_EVENTS_BYTES_MAX = 16 << 20
"""How long a gateway's events.jsonl gets before it is begun anew; one older file is kept."""

HTTP_BODY_BYTES_MAX = 832 << 10
"""Largest body of an HTTP request. The longest prompt fits, also when a client escapes all that is
not ASCII, which makes three bytes of one at most.
"""

HTTP_CODE_BYTES_MAX = 1 << 10
"""Largest body that carries the code of a link, which somebody sends who has not shown a token yet.
"""

HTTP_HEADER_BYTES_MAX = 32 << 10
"""Largest head of an HTTP request."""

HTTP_REFUSED_BYTES_MAX = 8 << 20
"""How much of a body is heard out, unread, behind a refusal that did not need it, so that its
client gets to see the answer.
"""

HTTP_REFUSED_S = 1.0
"""How long the next piece of such a body is waited for."""

HTTP_STOP_S = 5.0
"""How long a server that is told to stop waits for the answers it is giving."""

HTTP_KEEP_ALIVE_S = 15.0
"""How often a stream of events says that it is still there."""

HTTP_HEAD_S = 10.0
"""How long a client may take for the head of a request, from its first connection on."""

HTTP_BODY_S = 30.0
"""How long it may take for the body."""

HTTP_READ_S = 60.0
"""How long it may leave an answer unread that does not fit into the buffers between."""

HTTP_CONNECTIONS_MAX = 1000
"""Most connections to one server. Beyond, one that asks for nothing just then is closed; when there
is none, the new one.
"""

SERVER_PORT = 8470
"""The port of `holdfast serve` unless told."""

SERVER_THREADS = 16
"""How many operations a server carries out at a time; others wait for a thread."""

SERVER_WAITS_MAX = 128
"""Most requests that wait for something on one server, each in a thread. The next is refused, and
may ask again.
"""

SERVER_WAIT_MAX_S = 25.0
"""Longest that one request waits: for a lock, a job, the end of a swap or of a request to an agent.
"""

SERVER_TOLD_MAX = 4096
"""How many grants a server remembers that it told of, or gave back, so that no other is told of one
that it gives back.
"""

SERVER_REAP_EVERY_S = 2.0
"""How often a server looks for jobs whose workers died or whose time is over."""

SERVER_LINK_S = 600.0
"""How long a one-time link can be used."""

SERVER_LINKS_MAX = 16
"""Most one-time links that nobody has used yet; the oldest goes first."""

SERVER_SESSION_S = 7 * 24 * 3600.0
"""How long a page that came by a link stays let in."""

SERVER_ENDED_MAX = 1000
"""How many sessions a server remembers that were logged out before their end."""

LEASES_PER_HOST_MAX = 256
"""Most leases on one host or one neighbour entry: they are one record, which has a bound."""

BATCH_MAX = 1000
"""Most hosts or leases in one batch."""

DSCP_MAX = 63
"""Greatest code point of differentiated services: six bits of an IP header."""

RETRY_ATTEMPTS = 3
"""How often a registry tries a change that its store could not make."""

RETRY_DELAY_S = 0.1
"""How long it waits in between."""

WORKFLOW_TTL_S = 300.0
"""How long a workflow is believed without a renewal unless told. `workflows run` renews at a third
of it.
"""

WORKFLOW_TTL_MAX_S = 10 * 365 * 24 * 3600.0
"""Longest time to live of a workflow."""

SWAP_GRACE_S = 30.0
"""How long preemptible work is given to yield to a swap unless told."""

SWAP_TIMEOUT_S = 300.0
"""How long a swap waits, for another swap and for running work together, unless told."""

SWAP_WATCHED_MAX = 64
"""Most processes whose death one swap is told of by the kernel; of more, it asks now and then."""

SWAP_LOAD_GRACE_S = 10.0
"""How long the processes of a load have to end by themselves after SIGTERM, once the process that
swapped is dead.
"""

SWAP_LOAD_UNSEEN_S = SWAP_LOAD_GRACE_S + 10.0
"""How long the load of a swap whose lock is free is believed to run on another machine: its
guardian has ended it by then.
"""

SWAP_WHY_CHARS_MAX = 500
"""Longest reason of a failed swap that the journal keeps."""

SIGNAL_PATH_BYTES_MAX = 1024
"""Longest path of a signal file."""

SIGNAL_BYTES_MAX = 4096
"""Most of a signal file that is read to see whose it is."""

MCP_WAIT_MAX_S = 25.0
"""Longest that one call of a tool waits: clients give up on a call after 30 s or more."""

MCP_HANDLES_MAX = 64
"""Most that one agent has in hand over MCP, held or waited for. Each that waits is a thread."""

MCP_CALLS_MAX = 64
"""Most calls of one agent at a time; the next is refused."""

MCP_UNTOLD_S = 120.0
"""How long a lock, or a swap, is kept for an agent that has not come back to hear that its turn has
come.
"""

MCP_LINE_BYTES_MAX = 1 << 20
"""Longest message that is read from a client. The longest prompt fits, also with much of it
escaped.
"""

MCP_CLOSE_S = 1.5
"""How long letting go takes at most when the client goes: it kills a server that is still there
after 2 s.
"""

MCP_LIST_MAX = 100
"""Most agents that one call lists: a model reads all of it."""
PAGE_LINES = 200
"""How many lines of a list the page asks for at a time."""

PAGE_WAITS_MAX = 60
"""Most waiting requests that the page draws in its graph."""

PAGE_JOURNAL_MAX = 1000
"""Most entries of the journal that the page shows, and that its timeline is read from."""

PAGE_LANES_MAX = 40
"""Most resources that the page's timeline has a lane for."""

PAGE_GATEWAYS_MAX = 200
"""Most gateways that the page asks how they are doing."""

PAGE_GATEWAY_S = 1.5
"""How long the page waits for a gateway's answer before it shows what is known without."""

PAGE_CENSUS_S = 3.0
"""How long a count of all agents by their state is good for."""
