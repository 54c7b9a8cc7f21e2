"""Every bound of the program, by name. Change one here and it changes everywhere."""

ID_CHARS_MAX = 128
"""Longest id: what becomes a key or part of a path."""

LABEL_CHARS_MAX = 256
"""Longest label: lock resources, session labels, actors."""

SPACE_NAME_CHARS_MAX = 24
"""Longest name of a space or an index: both become part of one identifier, of which PostgreSQL keeps 63 characters."""

KEY_BYTES_MAX = 4 * LABEL_CHARS_MAX
"""Longest key in UTF-8: any label fits, and so does every database's bound on an index entry."""

INDEX_BYTES_MAX = KEY_BYTES_MAX + 176
"""Longest encoded index tuple: a label and a few numbers."""

RECORD_BYTES_MAX = 1 << 20
"""Largest encoded record. A store is for claims and small documents, not for blobs."""

ENTRY_BYTES_MAX = 64 << 10
"""Largest encoded data of one journal entry."""

KEYS_PER_STATEMENT_MAX = 256
"""Most keys in one `put_new` or `delete_if`, well under every database's bound on parameters."""

TRANSACT_TIMEOUT_S = 10.0
"""Default time limit of one transaction, from the call to its acknowledgement."""

WAIT_RECHECK_S = 2.0
"""Longest sleep of a waiter before it looks again by itself. A wake-up is lost only if its sender is killed between its
commit and its signal; this bounds what that costs."""

LISTEN_TOPICS_MAX = 256
"""Most topics of one listener."""

JOURNAL_KEEP_ENTRIES = 100_000
"""Journal entries kept by default."""

JOURNAL_KEEP_S = 30 * 24 * 3600.0
"""Age up to which journal entries are kept by default."""

JOURNAL_TRIM_EVERY = 1024
"""How many entries pass, on average, between two looks at the journal's bounds."""

JOURNAL_READ_MAX = 1000
"""Most entries that one read of the journal returns."""

LIST_MAX = 10_000
"""Most records that one list returns unless told."""

LOCK_TIMEOUT_S = 30.0
"""How long a lock is waited for unless told."""

LOCK_LEASE_S = 30.0
"""How long a holder that cannot be probed is believed without a sign of life. Live processes renew at a third of it."""

HOLD_LEASE_S = 600.0
"""The same for counted holds, which are durable: each renewal is a sync."""

LOCK_PRIORITY_AGE_S = 10.0
"""What one step of priority is worth in a lock's queue: so many seconds of having come earlier."""

LOCK_PRIORITY_MAX = 1000
"""Greatest priority, up or down."""

BACKFILL_MAX = 4
"""How often a waiting request is overtaken by later ones that may delay it. Fewer leave free resources idle behind a blocked
set; more let large sets wait long."""

LOCK_NAMES_MAX = 64
"""Most names in one request."""

LOCK_SET_BYTES_MAX = 3072
"""Longest the names of one request may be together in UTF-8: each name's row lists them all, for each of its holders."""

LOCK_SHARERS_MAX = 256
"""Most that share one resource at a time; the next waits until one of them leaves. With this a row stays within its bound."""

LOCK_TTL_MAX_S = 10 * 365 * 24 * 3600.0
"""Longest time to live of a grant."""

LOCK_WATCHED_MAX = 64
"""Most processes whose death one waiter is told of by the kernel; of more, it asks now and then."""

LOCK_STATISTICS_MAX = 10_000
"""Most resources with statistics of their own; what comes beyond is summed up together."""

LOCK_STATISTICS_EVERY_S = 5.0
"""How often a process adds what it counted to the store's statistics."""

QUEUE_DEPTH_MAX = 1000
"""Most requests that one queue has accepted and not finished; the next is refused."""

QUEUE_KEEP_REQUESTS = 10_000
"""Finished requests that a queue keeps."""

QUEUE_KEEP_S = 30 * 24 * 3600.0
"""Age up to which it keeps them."""

QUEUE_TRIM_EVERY = 64
"""How many requests end, on average, between two looks at these bounds."""

QUEUE_TRIM_MAX = 256
"""Most finished requests dropped at one look."""

PROMPT_BYTES_MAX = 256 << 10
"""Longest prompt in UTF-8. With the answer beside it, a request stays within a record's bound."""

ANSWER_CHARS_MAX = 64 << 10
"""Longest answer that is kept of a request; of a longer one, the end."""

GATEWAY_INSPECT_EVERY_S = 1.0
"""How often a gateway looks at its agent by itself. It also looks just before each delivery."""

GATEWAY_LEASE_S = 30.0
"""How long a gateway's process that cannot be probed is believed without a sign of life. It renews at a third of it."""

GATEWAY_STOP_S = 10.0
"""How long a gateway that is told to stop waits for the request that runs."""

GATEWAY_WAIT_MAX_S = 25.0
"""Longest that one HTTP request waits for a request to end."""

HTTP_BODY_BYTES_MAX = 384 << 10
"""Largest body of an HTTP request. The longest prompt fits, also with much of it escaped."""

HTTP_HEADER_BYTES_MAX = 32 << 10
"""Largest head of an HTTP request."""

HTTP_STOP_S = 5.0
"""How long a server that is told to stop waits for the answers it is giving."""

HTTP_KEEP_ALIVE_S = 15.0
"""How often a stream of events says that it is still there."""

ACCEPTS_PER_COMMIT_MAX = 64
"""Most requests that are accepted in one commit."""

GATEWAY_EVENTS_BYTES_MAX = 16 << 20
"""How long a gateway's events.jsonl gets before it is begun anew; one older file is kept."""
