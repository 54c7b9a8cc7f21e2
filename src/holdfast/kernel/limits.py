"""Every bound of the program, by name. Change one here and it changes everywhere."""

# Names, keys and records.
ID_CHARS_MAX = 128  # an id becomes a key or part of a path
LABEL_CHARS_MAX = 256  # lock resources, session labels, actors
PATH_CHARS_MAX = 4096  # a path in a record: as Linux bounds it
SPACE_NAME_CHARS_MAX = 24  # with an index name one identifier: PostgreSQL keeps 63 characters
KEY_BYTES_MAX = 4 * LABEL_CHARS_MAX  # any label fits, and every database can index it
INDEX_BYTES_MAX = KEY_BYTES_MAX + 176  # an encoded index tuple: a label and a few numbers
RECORD_BYTES_MAX = 1 << 20  # a store is for claims and small documents, not for blobs
LABEL_JSON_BYTES_MAX = 4 * LABEL_CHARS_MAX + 2  # an escaped character takes two bytes, others four
HOLDER_BYTES_MAX = 2 * LABEL_JSON_BYTES_MAX + 512  # a process as JSON: its label and host id
ENTRY_BYTES_MAX = 64 << 10  # the data of one journal entry, as JSON
KEYS_PER_STATEMENT_MAX = 256  # keys of one `put_new` or `delete_if`: databases bound parameters
LIST_MAX = 10_000  # records that one list returns by default

# Transactions and waiting.
TRANSACT_TIMEOUT_S = 10.0  # of one transaction by default, from the call to its acknowledgement
# Longest sleep before a waiter checks again: its waker may be killed between commit and signal.
WAIT_RECHECK_S = 2.0
LISTEN_TOPICS_MAX = 256  # topics of one listener

# The store's clock, compared with the time since boot: see primitives/steady_clock.py.
CLOCK_COMPARE_EVERY_S = 10.0  # how long a process relies on its last comparison
CLOCK_WRITE_EVERY_S = 60.0  # how old the stored comparison may be before it is written again
CLOCK_JUMP_S = 2.0  # a greater step forward is a jump, not a leap second or a slow answer
LEASE_JUMP_IGNORED_S = 300.0  # how long a jump ends no lease: live holders renew meanwhile
RETENTION_JUMP_IGNORED_S = 24 * 3600.0  # how long a jump of the clock removes nothing for its age
# If the newest journal entry is older at the first use after a boot, the clock may have jumped.
CLOCK_SILENCE_S = 24 * 3600.0
CLOCK_ROWS_KEEP_S = 30 * 24 * 3600.0  # how long the comparison of an earlier boot is kept

# The journal.
JOURNAL_KEEP_ENTRIES = 100_000  # entries kept by default
JOURNAL_KEEP_S = 30 * 24 * 3600.0  # age up to which entries are kept by default
JOURNAL_KEEP_LEAST = 1000  # entries kept at any age: by a wrong clock all of them are old
JOURNAL_TRIM_EVERY = 1024  # entries between two checks of these bounds, on average
JOURNAL_TRIM_MAX = 2 * JOURNAL_TRIM_EVERY  # entries that one check drops: no other writer goes on
JOURNAL_READ_MAX = 1000  # entries that one read returns
JOURNAL_SEARCHED_MAX = 64 * JOURNAL_READ_MAX  # entries that a search reads at once, from the end
JOURNAL_LAG_SCAN_MAX = 10_000  # entries that are scanned to measure how far a follower lags
MIRROR_LOOK_BACK_BYTES = 16 << 20  # end of a mirror file that is scanned for lines written before

# Metrics and doctor.
METRICS_RESOURCES_MAX = 200  # resources with their own metrics; the others are summed up
METRICS_CLAIMS_MAX = 200  # agents, and workflows, with a lease metric: those that end first
METRICS_GATEWAYS_MAX = 200  # gateways that are asked for metrics
METRICS_ASK_S = 1.0  # how long a gateway may take to answer metrics or doctor
METRICS_PROBE_S = 2.0  # how long a store may take for one empty transaction
DOCTOR_CHECK_S = 5.0  # how long one check may take
CLOCK_SKEW_S = 2.0  # difference between database and machine clock that doctor reports
DISK_FREE_BYTES_MIN = 64 << 20  # free disk a store should have: a busy log grows that large
# SQLite's log after a restart; doctor reports a larger one. Usually it restarts at 14 MB.
LOG_BYTES_KEPT = 64 << 20
# SQLite's log while a stopped reader prevents its restart; then changes are refused. One stopped
# process must neither stop all writers soon nor fill the disk.
LOG_BYTES_MAX = 1 << 30
GATE_HELD_S = 2.0  # how long a process may be inside a transaction before doctor reports it

# The files store.
FILES_RETRY_ATTEMPTS = 3  # attempts to read or write a file
FILES_RETRY_DELAY_S = 0.1  # pause between them
# Number of files from which inotify is used instead of a look at each. Users have few watches, 128
# on most machines, and looking at fewer files takes half a millisecond.
FILES_WATCHED_FROM = 256

# Locks and counted holds.
LOCK_TIMEOUT_S = 30.0  # how long `acquire` waits by default
LOCK_LEASE_S = 30.0  # how long an unknown holder counts as alive; it renews at a third of it
HOLD_LEASE_S = 600.0  # the same for counted holds, where each renewal is a sync
LOCK_PRIORITY_AGE_S = 10.0  # seconds of earlier arrival that one step of priority is worth
LOCK_JOURNAL_WAITS_S = 1.0  # how long a wait must last to be journalled
LOCK_JOURNAL_NAMES_MAX = 16  # names of a large set, or holders, that a journal entry lists
LOCK_PRIORITY_MAX = 1000  # greatest priority, up or down
# How often later requests that may delay a waiter overtake it. Fewer leave free resources idle
# behind a blocked set; more let large sets wait long.
BACKFILL_MAX = 4
# Names in one request: a free set is taken by one statement. Each name's row lists the whole set,
# so a grant grows with its square; the largest is granted in 20 ms and handed over in 40 ms.
LOCK_NAMES_MAX = KEYS_PER_STATEMENT_MAX
LOCK_SET_BYTES_MAX = 8192  # all names of one request: each row lists them, once for each holder
LOCK_TOKENS_KNOWN_MAX = 100_000  # tokens whose names a process remembers
LOCK_SHARERS_MAX = 256  # holders that share one resource; the next waits until one leaves
# All holds of one resource, which a grant writes for each of its names. The next waits then too.
LOCK_HOLDS_BYTES_MAX = 256 << 10
LOCK_TTL_MAX_S = 10 * 365 * 24 * 3600.0  # time to live of a grant
LOCK_WATCHED_MAX = 64  # processes that one waiter watches by pidfd; it probes the others
LOCK_REAPED_MAX = 250  # waiters of one dead process that one transaction removes: others need turns
LOCK_AHEAD_COUNTED_MAX = 1000  # waiters ahead that are counted after a timeout
LOCK_AHEAD_NAMED_MAX = 16  # holders, and waiters, that a timeout names
LOCK_STATISTICS_MAX = 10_000  # resources with their own statistics; the others are summed up
LOCK_STATISTICS_EVERY_S = 5.0  # how often a process adds its counts to the store

# Jobs.
JOB_TIMEOUT_MAX_S = 10 * 365 * 24 * 3600.0  # time limit of one attempt
JOB_PROMPT_BYTES_MAX = 768 << 10  # prompt of a job, as JSON in UTF-8
# A job at its registration: the longest prompt, names, paths and broker. The rest of a record is
# for what attempts add (JOB_GROWTH_BYTES_MAX), so that a registered job can be claimed and ended.
JOB_REGISTERED_BYTES_MAX = JOB_PROMPT_BYTES_MAX + (64 << 10)
JOB_ATTEMPTS = 3  # of a job whose registrant names no number: then it ends in error
JOB_ATTEMPTS_MAX = 1000  # attempts of one job, at most
JOB_LEASE_S = 120.0  # how long an unknown worker counts as alive: a failover takes a minute
TREE_GRACE_S = 10.0  # between SIGTERM and SIGKILL of a process tree
# When a wrapper that only waits for its command becomes a slim program. Standby and return cost one
# more start of Holdfast, which a short command must not pay.
STANDBY_AFTER_S = 5.0
JOB_PAST_ATTEMPTS_MAX = 10  # failed attempts that a job's record keeps, the last ones
JOB_PAST_ERROR_BYTES_MAX = 2 << 10  # error that is kept of each of them, as JSON
JOB_LATE_BYTES_MAX = 24 << 10  # result, and error, that are kept of a late verdict, as JSON
JOB_CLAIM_BYTES_MAX = HOLDER_BYTES_MAX + (2 << 10)  # what a claim adds to a job's record
JOB_GROWTH_BYTES_MAX = (  # what attempts add beside a verdict: claim, past attempts, a late result
    JOB_CLAIM_BYTES_MAX
    + JOB_PAST_ATTEMPTS_MAX
    * (HOLDER_BYTES_MAX + JOB_PAST_ERROR_BYTES_MAX + 2 * LABEL_JSON_BYTES_MAX)
    + 2 * JOB_LATE_BYTES_MAX
    + 4 * LABEL_JSON_BYTES_MAX
)
# What is always kept of a verdict, as JSON; more when the rest of the record is smaller.
JOB_VERDICT_BYTES_MIN = RECORD_BYTES_MAX - JOB_REGISTERED_BYTES_MAX - JOB_GROWTH_BYTES_MAX
JOBS_TREE_AGAIN_S = 60.0  # pause before another attempt to end a tree that survived SIGKILL
JOBS_SWEEP_EVERY_S = 1.0  # how often a busy worker looks for jobs of dead ones; idle: at once
JOBS_SWEPT_MAX = 1000  # overdue jobs in one page of such a look, and about how many one step reaps
JOBS_OF_WORKERS_READ = 64  # running jobs in one page of such a look, in order of workers
JOBS_WATCHED_MAX = 64  # workers that one waiter for a job watches by pidfd; it probes the others
JOBS_PAGE = 256  # jobs that a list reads at a time
JOBS_KEEP = 100_000  # finished jobs kept by default
JOBS_KEEP_S = 30 * 24 * 3600.0  # age up to which finished jobs are kept by default
JOBS_KEEP_LEAST = 1000  # finished jobs kept at any age: by a wrong clock all of them are old
JOBS_PRUNED_MAX = 500  # finished jobs that one transaction removes
JOBS_PRUNE_EVERY = 1024  # registrations between two checks of these bounds, on average
JOB_EVENTS_KEEP = 1000  # events of one job, sent or not; the oldest go first
JOB_EVENT_BYTES_MAX = 32 << 10  # as JSON: it must fit into a journal entry

# The message broker.
BROKER_CONNECT_S = 5.0  # for a connection, and for the acknowledgement of one message
BROKER_BACKOFF_MAX_S = 30.0  # longest pause between two attempts to connect

# Agents and tmux.
AGENT_LEASE_S = 24 * 3600.0  # how long a silent agent counts; it renews at a third of it
AGENT_GRACE_S = 300.0  # how long a cleanup spares an expired agent, or a folder without a record
AGENT_RUN_KEEP_S = 7 * 24 * 3600.0  # how long it is kept how an agent was started, and ended
AGENT_SCREEN_LINES = 1000  # how much of the screen and what scrolled off is kept of an agent
AGENT_SCREEN_CHARS = 128 << 10
AGENT_STOP_GRACE_MAX_S = 600.0  # how long an agent may take to end when it is stopped, at most
AGENT_START_S = 20.0  # how long `agents start` waits for the agent in its tmux session
# How long `agents start` watches a started program. Most programs that die at once (wrong option,
# missing file, no login) do so within it; a healthy start takes that much longer.
AGENT_MOMENT_S = 1.0
TMUX_ANSWER_S = 5.0  # a tmux server that is silent for longer is unknown, neither dead nor alive
TMUX_START_S = 15.0  # for a new session: its server may have to start and read its configuration
AGENT_RESERVED_S = TMUX_START_S + AGENT_START_S  # how long the id of a starting agent is kept
TMUX_SILENCE_S = 10.0  # how long a silent tmux is not asked again: only one question waits
# How long tmux may take to begin a paste or an interrupt, else it skips it. Well below
# TMUX_ANSWER_S: a prompt that was given up must not be typed later between the words of another.
TMUX_PASTE_S = 3
MANIFEST_BYTES_MAX = 1 << 20  # largest manifest that is read

TOOL_ANSWER_S = 20.0  # a tool that is asked about itself before it is started as an agent

# Queues and requests to agents.
QUEUE_DEPTH_MAX = 1000  # unfinished requests of one queue; the next is refused
QUEUE_KEEP_REQUESTS = 10_000  # finished requests that a queue keeps
QUEUE_KEEP_S = 30 * 24 * 3600.0  # age up to which it keeps them
QUEUE_KEEP_LEAST = 1000  # newest finished requests kept at any age: a clock may jump
QUEUE_TRIM_EVERY = 64  # finished requests between two checks of these bounds, on average
QUEUE_TRIM_MAX = 256  # finished requests that one check drops
QUEUE_PRUNE_LEAST_S = 24 * 3600.0  # finished requests stay for so long: their key may come again
PROMPT_BYTES_MAX = 256 << 10  # prompt of a request to a gateway, in UTF-8
ANSWER_CHARS_MAX = 64 << 10  # of a longer answer the end is kept
# As JSON: the longest prompt fits, also escaped.
REQUEST_PAYLOAD_BYTES_MAX = 2 * PROMPT_BYTES_MAX + (1 << 10)
# As JSON: the longest answer fits, also of control characters; with a payload it fits a record.
REQUEST_RESULT_BYTES_MAX = 6 * ANSWER_CHARS_MAX + (16 << 10)
REQUEST_DETAIL_BYTES_MAX = 16 << 10  # reason of a failure, as JSON
ACCEPTS_PER_COMMIT_MAX = 64  # requests that one commit accepts

# Gateways.
GATEWAY_PROBE_S = 1.0  # for a gateway to say that it is there
GATEWAY_PATIENCE_MAX_S = 30 * 24 * 3600.0  # longest wait that an adapter can be configured for
GATEWAY_INSPECT_EVERY_S = 1.0  # how often a gateway looks at its agent, beside each delivery
GATEWAY_GLANCE_S = 1.0  # how long a status waits for a look in progress, else it shows the last
GATEWAY_PROVE_S = 5.0  # for a listener at a gateway's address to prove that it is the gateway
GATEWAY_ANNOUNCE_EVERY_S = 60.0  # how often it checks its agent's record, beside notifications
GATEWAY_LEASE_S = 30.0  # how long an unknown gateway counts; it renews at a third of it
GATEWAY_STOP_S = 10.0  # how long a stopping gateway waits for the running request
GATEWAY_WAIT_MAX_S = 25.0  # longest that one HTTP request waits for the end of a request
HOSTING_LOOK_EVERY_S = 1.0  # how often a host of gateways compares itself with the registry
HOSTING_RETRY_MAX_S = 10.0  # longest pause before a gateway that did not start is tried again
HOSTING_START_S = 20.0  # for a host to start, and to serve the gateway that was asked for
HOSTING_STOP_S = 20.0  # for all gateways of a stopping host, which stop at the same time
HOSTING_END_S = 30.0  # for a host that is asked to end
HOSTING_LOG_BYTES_MAX = 4 << 20  # log of a host before it is moved aside; one older file is kept
HOSTING_LOG_TAIL_LINES = 12  # of its log, in the error that says why it did not start
GATEWAY_EVENTS_BYTES_MAX = 16 << 20  # events.jsonl before it is rotated; one older file is kept

# Agents that speak a protocol on their standard input and output.
PROTOCOL_LINE_BYTES_MAX = 8 << 20  # message of such an agent; a longer one is not kept
PROTOCOL_START_S = 60.0  # for such an agent to begin or resume its conversation
PROTOCOL_RECEIPT_S = 20.0  # for it to read a prompt
PROTOCOL_CANCEL_S = 20.0  # for it to stop its work when asked to; then its processes are ended
PROTOCOL_RETRY_MAX_S = 60.0  # longest pause before an agent that does not start is started again
PROTOCOL_STEADY_S = 10.0  # an agent that served for so long is started again at once

REPORT_BYTES_MAX = 8 << 20  # a tool's report of what it does
QUESTION_CHARS = 200  # of a question and its answer, in the journal and in lists
REPLY_BYTES_MAX = 4096  # answer to a question of an agent

# HTTP.
# The longest prompt fits, also if a client escapes all that is not ASCII into three bytes for one.
HTTP_BODY_BYTES_MAX = 832 << 10
HTTP_CODE_BYTES_MAX = 1 << 10  # body with the code of a link, from a client without a token yet
HTTP_HEADER_BYTES_MAX = 32 << 10  # head of a request
HTTP_REFUSED_BYTES_MAX = 8 << 20  # refused body that is discarded, so that a client gets its answer
HTTP_REFUSED_S = 1.0  # wait for the next piece of such a body
HTTP_STOP_S = 5.0  # how long a stopping server waits for its answers
HTTP_KEEP_ALIVE_S = 15.0  # how often an event stream sends a sign of life
HTTP_LISTEN_ON_S = 5.0  # how long a server listens for changes after the last client that waited
HTTP_HEAD_S = 10.0  # for a client to send the head of a request, from its connection on
HTTP_BODY_S = 30.0  # for a client to send the body
HTTP_READ_S = 60.0  # for a client to read an answer that does not fit into the buffers
HTTP_CONNECTIONS_MAX = 1000  # beyond it an idle connection is closed, or else the new one

# The server.
SERVER_PORT = 8470  # of `holdfast serve` by default
SERVER_THREADS = 16  # operations at a time; others wait for a thread
SERVER_WAITS_MAX = 128  # waiting requests, each in a thread; the next is refused and may come again
SERVER_WAIT_MAX_S = 25.0  # longest wait of one request, for a lock, a job, a swap or an answer
SERVER_DELIVERED_MAX = 4096  # delivered or returned grants that it knows: none is delivered twice
SERVER_REAP_EVERY_S = 2.0  # how often it looks for jobs whose workers died or whose time is over
SERVER_LINK_S = 600.0  # how long a one-time link is valid
SERVER_LINKS_MAX = 16  # unused one-time links; the oldest goes first
SERVER_SESSION_S = 7 * 24 * 3600.0  # how long a browser session by a link is valid
SERVER_ENDED_MAX = 1000  # sessions that were logged out early and are remembered

# The network registry.
LEASES_PER_HOST_MAX = 256  # on one host or neighbour entry: they are one bounded record
BATCH_MAX = 1000  # hosts or leases in one batch
DSCP_MAX = 63  # greatest differentiated services code point: six bits of an IP header
RETRY_ATTEMPTS = 3  # attempts of a change that the store could not make
RETRY_DELAY_S = 0.1  # pause between them

# Workflows.
WORKFLOW_TTL_S = 300.0  # how long a workflow counts by default; `run` renews at a third of it
WORKFLOW_TTL_MAX_S = 10 * 365 * 24 * 3600.0  # time to live of a workflow
SWAP_GRACE_S = 30.0  # how long preemptible work may take to yield to a swap, by default
SWAP_TIMEOUT_S = 300.0  # how long a swap waits, for another swap and for running work together
SWAP_WATCHED_MAX = 64  # processes that one swap watches by pidfd; it probes the others
SWAP_LOAD_GRACE_S = 10.0  # between SIGTERM and SIGKILL of a load whose swapping process is dead
# How long the load of a dead swap may run on another machine, until its guardian has ended it.
SWAP_LOAD_UNSEEN_S = SWAP_LOAD_GRACE_S + 10.0
SWAP_WHY_CHARS_MAX = 500  # reason of a failed swap in the journal
SIGNAL_PATH_BYTES_MAX = 1024  # path of a signal file
SIGNAL_BYTES_MAX = 4096  # of a signal file that is read to see whose it is

# MCP.
MCP_WAIT_MAX_S = 25.0  # longest wait of one tool call: clients give up after 30 s or more
MCP_HANDLES_MAX = 64  # held or awaited by one agent; each wait is a thread
MCP_CALLS_MAX = 64  # calls of one agent at a time; the next is refused
MCP_UNCLAIMED_S = 120.0  # how long a granted lock or swap is kept for an agent that does not ask
MCP_LINE_BYTES_MAX = 1 << 20  # message from a client: the longest prompt fits, also mostly escaped
MCP_CLOSE_S = 1.5  # for the release of all claims at the end: clients kill a server after 2 s
MCP_LIST_MAX = 100  # agents that one call lists: a model reads all of it

# The page.
PAGE_LINES = 200  # lines of a list that it requests at a time
PAGE_WAITS_MAX = 60  # waiting requests in its graph
PAGE_JOURNAL_MAX = 1000  # journal entries that it shows and draws the timeline from
PAGE_LANES_MAX = 40  # resources with a lane in its timeline
PAGE_GATEWAYS_MAX = 200  # gateways that it asks for their state
PAGE_GATEWAY_S = 1.5  # how long it waits for a gateway before it shows what is known without
PAGE_CENSUS_S = 3.0  # how long a count of agents by state is reused
