"""Descriptions and examples of the fields of requests and answers, for /openapi.json and /docs.

A test checks that every field has one and that the code accepts the examples. Fields of the same
name share a description, unless the name of the struct is given too.
"""

from typing import Any, NamedTuple

from penstock.broker import QueueSettings

_ID = "01M7JPP85AENJB160000000001"
_WEBHOOK_ID = "wh_5d0a4f2c9b7e1f38"
_RECEIPT = "mLBkdQAAAQABAAAAAAAAAKosuYONRU_N"
_AT = "2030-01-31T09:00:00.000000Z"


# Their fields have no notes here, and mean what docs/settings.md says.
SETTINGS = ("QueueSettings", "QueueSettingsBody")


class Note(NamedTuple):
    """The meaning of a field, and a value that it may have."""

    description: str
    example: Any


NOTES: dict[str, Note] = {
    # messages
    "id": Note("The id of the message.", _ID),
    "ids": Note("Ids of messages.", [_ID]),
    "seq": Note("The number of the message in its queue.", 11),
    "payload": Note("The payload, where it is JSON.", {"order": 17}),
    "payload_b64": Note("The payload as base64, where it is not JSON.", "aGVsbG8="),
    "priority": Note("0 to 9, higher first; the queue's default if left out.", 5),
    "delay_s": Note("Seconds until it is delivered.", 60),
    "deliver_at": Note("The time at which it is delivered.", _AT),
    "ttl_s": Note("Seconds after which it expires.", 3600),
    "expires_at": Note("The time at which it expires.", _AT),
    "headers": Note("Names and values that travel with the message.", {"tenant": "acme"}),
    "key": Note("Messages with the same key go one at a time, in order.", "customer-7"),
    "dedup_id": Note("Published only if this was not seen within the window.", "order-17"),
    "dedup_window_s": Note("Seconds for which the dedup id is remembered.", 300),
    "duplicate": Note("The dedup id was seen before; this is the id of the first.", False),
    "max_attempts": Note("Deliveries after which it is a dead letter.", 5),
    "content_type": Note("What the payload is.", "application/json"),
    "after": Note("Ids of messages, or indexes in the batch, that must be done first.", [_ID]),
    "after_failed": Note("What happens to it if one of them fails: dead or run.", "dead"),
    "tenant": Note("Whom it is for: counts for limits and fair share.", "acme"),
    "compression": Note("How the payload is stored: none, gzip or zstd.", "none"),
    "published_at": Note("When it was published.", _AT),
    "state": Note("The state of the message in the group.", "ready"),
    "messages": Note("The messages.", None),
    "looked_at": Note("How many messages were looked at for this page.", 1),
    "exhausted": Note("The search budget ended the page; the next may have more.", False),
    "cursor": Note("Asks for the next page; absent on the last.", "b3JkZXJz"),
    # leases
    "max": Note("The most messages that are leased.", 10),
    "lease_s": Note("Seconds the lease lasts; the queue's own if left out.", 30),
    "wait_s": Note("Seconds to wait for the first message.", 20),
    "holder": Note("The holder of the lease; shown by why and history.", "worker-1"),
    "LeaseBody.dead": Note("Lease dead letters; an ack settles them for good.", False),
    "receipt": Note("Settles the message; valid for this lease only.", _RECEIPT),
    "attempt": Note("Which delivery this is; the first is 1.", 1),
    "attempts": Note("How often it was delivered.", 1),
    "deadline": Note("The time at which the lease ends.", _AT),
    # settling
    "ack": Note("Receipts of messages that are done.", [_RECEIPT]),
    "nack": Note("Receipts of messages that failed: retried later, or dead.", [_RECEIPT]),
    "extend": Note("Receipts of messages whose lease is to last longer.", [_RECEIPT]),
    "release": Note("Receipts of messages to give back; no attempt is spent.", [_RECEIPT]),
    "emit": Note("Messages to publish to the same queue, in the same write.", []),
    "reason": Note("Why it failed.", "ConnectionError: refused"),
    "NackItem.delay_s": Note("Seconds until the next try, instead of the backoff.", 60),
    "results": Note("An outcome for each receipt, in the order of the call.", None),
    "SettledOne.status": Note("done, repeated (acked before), gone or invalid.", "done"),
    "SettledOne.ids": Note("Ids of what the ack emitted.", []),
    "detail": Note("What is wrong, for people.", ""),
    # schedules
    "schedules": Note("The schedules of the queue, by name.", None),
    "message": Note("The message of each tick.", None),
    "cron": Note("Minute, hour, day of month, month, day of week.", "30 2 * * *"),
    "every_s": Note("Seconds from one tick to the next, instead of cron.", 3600),
    "time_zone": Note("In which cron is meant; UTC if left out.", "Europe/Berlin"),
    "misfire": Note("What happens to missed ticks: skip, once or all.", "once"),
    "grace_s": Note("Seconds by which a tick may be late before it was missed.", 60),
    "catch_up_max": Note("The most missed ticks that `all` publishes.", 100),
    "ScheduleBody.paused": Note("Null leaves it as it is.", False),
    "ScheduleBody.every_s": Note("Seconds from one tick to the next, instead of cron.", None),
    "payload_bytes": Note("The size of the payload.", 42),
    "next_at": Note("The next tick; absent if it does not run.", _AT),
    "put_at": Note("When it was put on record.", _AT),
    "last_due_at": Note("The last tick that has a message.", _AT),
    "last_message_id": Note("The message of that tick.", _ID),
    "fired": Note("Messages that it published.", 7),
    "last_missed_at": Note("The last tick without a message of its own.", _AT),
    "ScheduleState.trouble": Note("Why it does not run; empty if it does.", ""),
    "ScheduleStateAnswer.trouble": Note("Why it does not run; empty if it does.", ""),
    "ScheduleDetailsAnswer.trouble": Note("Why it does not run; empty if it does.", ""),
    "next_times": Note("The next ticks.", [_AT]),
    "removed": Note("Whether there was one of that name.", True),
    # queues, namespaces, groups
    "namespace": Note("A namespace.", "default"),
    "name": Note("Its name.", "orders"),
    "created_at": Note("When it was made.", _AT),
    "settings": Note("All settings of the queue, by name.", QueueSettings().as_dict()),
    "stats": Note("Counts, by name; `groups` has those of each group.", None),
    "queues": Note("The queues.", None),
    "Ready.queues": Note("How many queues there are.", 12),
    "namespaces": Note("The namespaces.", None),
    "defaults": Note("Settings that new queues of the namespace begin with.", {"lease_s": 60}),
    "max_queues": Note("How many queues the namespace may have; 0: any number.", 100),
    "max_bytes": Note("How many bytes its queues may hold; 0: any number.", 1073741824),
    "capacity": Note("How many messages at once after a quiet time.", 100),
    "refill_per_s": Note("How many messages a second; 0: no limit.", 50),
    "group": Note("The consumer group.", "main"),
    "PurgeBody.group": Note("The group to empty; all groups if left out.", "main"),
    "groups": Note("The names of the groups.", ["main"]),
    "at": Note("When it happened.", _AT),
    "GroupBody.at": Note("Where the group begins: an end of the queue, or a place.", "beginning"),
    "to": Note("An end of the queue, or a place: one of seq, id and time.", "beginning"),
    "time": Note("The first message published at or after this time.", _AT),
    "next_seq": Note("The number of the message that comes next.", 11),
    "paused": Note("Whether delivery is paused.", True),
    "freed_bytes": Note("Bytes given back to the file system.", 4096),
    "purged": Note("How many messages were removed.", 3),
    "ended": Note("False: wait_s was over before.", True),
    "open": Note("False: it was cancelled, or has expired.", True),
    "check": Note("Answer 404 if one of them was never published.", False),
    "endings": Note("What became of each message.", None),
    "Ending.outcome": Note("1 done, 2 dead, 3 removed without an ack, 4 not ended.", 1),
    "how": Note("How it failed, or forgotten if that is not known any more.", "cancelled"),
    "earlier": Note("The id of the message, which is in another queue.", _ID),
    "ResolveBody.outcome": Note("1 done, 2 dead, 3 removed without an ack, 4 not ended.", 3),
    "new": Note("False: it was on record.", True),
    "progress": Note("The share that is done, from 0 to 1: of a job, or of a search.", 0.4),
    "note": Note("About the progress; cut at 500 characters.", "resizing"),
    "cancelled": Note("False: the message was done already.", True),
    # counts
    "acked": Note("Messages acked since it was made.", 94),
    "nacked": Note("Attempts that were nacked since it was made.", 2),
    "timed_out": Note("Leases that ended without an answer since it was made.", 1),
    "expired": Note("Messages that expired since it was made.", 0),
    "redriven": Note("Dead letters that were made ready again.", 3),
    "discarded": Note("Dead letters that were removed.", 3),
    "retrying": Note("Messages that failed at least once, and are neither settled nor dead.", 1),
    "read_position": Note("The lowest seq that waits and was never delivered.", 11),
    "deduplicated": Note("Publishes that were answered with the id of an earlier message.", 0),
    "dedup_entries": Note("Dedup ids that are remembered now.", 0),
    "dedup_evicted": Note("Dedup ids that were forgotten before their time, for lack of room.", 0),
    "oldest_ready_age_s": Note("How long the oldest message that is ready has waited.", 0.4),
    "QueueStats.first_seq": Note("The seq of the first message that is kept.", 1),
    "QueueStats.cancelled": Note("Messages that were cancelled since it was made.", 0),
    "GroupStats.cancelled": Note("Messages that were cancelled since it was made.", 0),
    "QueueStats.storage": Note("The files of the queue; all 0 if its store has none.", None),
    "QueueStats.groups": Note("The counts of each group, by name.", None),
    "message_log_bytes": Note("Bytes of the log of messages.", 65_536),
    "event_log_bytes": Note("Bytes of the log of events.", 4096),
    "StorageStats.segments": Note("How many segments both logs have.", 2),
    "damaged": Note("Damaged ranges found since the queue was opened.", 0),
    # overview and charts
    "OverviewAnswer.queues": Note("How many queues there are.", 12),
    "OverviewAnswer.paused": Note("How many of them are paused.", 0),
    "unknown": Note("How many of them no running broker has opened; their counts may be old.", 0),
    "brokers": Note("How many brokers answered.", 1),
    "trouble": Note("Why some queue takes no writes.", "the disk is full"),
    "free_bytes": Note("Free space of the disk, where that is known.", 105_000_000_000),
    "oldest_queue": Note("The queue with the oldest message that is ready.", "default/orders"),
    "ready": Note("Messages that can be delivered now, in all groups.", 3),
    "scheduled": Note("Messages that are due later.", 2),
    "leased": Note("Messages that are being worked on.", 1),
    "parked": Note("Messages that wait for another of their key.", 0),
    "blocked": Note("Messages that wait for others that they come after.", 0),
    "dead": Note("Dead letters.", 0),
    "publish_rate": Note("Messages published a second, over the last 10 to 20 seconds.", 12.5),
    "ack_rate": Note("Messages acked a second.", 12.4),
    "fail_rate": Note("Attempts that failed, a second.", 0.1),
    "oldest_age_s": Note("How long the oldest message that is ready has waited.", 0.4),
    "OverviewAnswer.size_bytes": Note("Bytes of the logs of all queues.", 1_048_576),
    "QueueRow.size_bytes": Note("Bytes of its logs.", 65_536),
    "QueueRow.paused": Note("Whether delivery is paused.", False),
    "QueueRow.groups": Note("How many groups it has.", 1),
    "is_known": Note("False: no running broker has opened it; the counts may be old.", True),
    "published": Note("Messages published since it was made.", 100),
    "delivered": Note("Deliveries since it was made, each attempt.", 98),
    "failed": Note("Attempts that failed since it was made.", 3),
    "dead_lettered": Note("Messages that became dead letters since it was made.", 1),
    "spark": Note("The last ten minutes of a series, in 60 steps.", [4.0, 4.5, None]),
    "matched": Note("How many queues there are on all pages.", 12),
    "start": Note("When the first step begins.", _AT),
    "step_s": Note("Seconds of a step.", 10),
    "points": Note("How many steps.", 2),
    "series": Note("A value for each step, by series.", {"published": [4.0, None]}),
    "sync": Note("How long rounds of syncs took, in seconds.", None),
    "samples": Note("How many there were.", 4210),
    "p50": Note("Half of them took no longer.", 0.0011),
    "p95": Note("95 % of them took no longer.", 0.0032),
    "p99": Note("99 % of them took no longer.", 0.0047),
    "longest": Note("The longest.", 0.021),
    "StorageAnswer.queues": Note("How many queues there are.", 12),
    "StorageAnswer.size_bytes": Note("Bytes of the logs of all queues.", 1_048_576),
    # surveys of a queue
    "ConsumersAnswer.leases": Note("How many messages are leased.", 3),
    "holders": Note("The consumers that hold leases, those with most first.", None),
    "held": Note("The leases that end first.", None),
    "leases": Note("How many leases it holds.", 3),
    "leased_at": Note("When the lease began, or was extended.", _AT),
    "deadline_at": Note("When the lease ends.", _AT),
    "ConsumersAnswer.exhausted": Note("Not all leases were looked at.", False),
    "KeyBacklogsAnswer.exhausted": Note("Not all keys were looked at.", False),
    "KeyBacklogsAnswer.keys": Note("The keys with most unsettled messages.", None),
    "KeyBacklogsAnswer.total": Note("How many keys have unsettled messages.", 40),
    "KeyBacklog.messages": Note("How many unsettled messages it has.", 12),
    "KeyBacklog.id": Note("The first of them: being worked on, or the next.", _ID),
    "reasons": Note("The reasons, the most frequent first.", None),
    "DeadReasonsAnswer.total": Note("How many dead letters there are.", 7),
    "others": Note("How many of them have reasons that are not listed.", 0),
    "DeadReasonsAnswer.exhausted": Note("Only those that died last were looked at.", False),
    "DeadReason.reason": Note("The reason, with # for numbers and ids.", "no answer in # s"),
    "DeadReason.messages": Note("How many dead letters have it.", 7),
    "DeadReason.id": Note("One of them: the one that died last.", _ID),
    "first_at": Note("The first failure.", _AT),
    "last_at": Note("The last failure.", _AT),
    "reason_group": Note(
        "Only those of this reason, as dead_reasons names it.", "no answer in # s"
    ),
    "SeekPreviewAnswer.messages": Note("How many messages follow, at most.", 100),
    "SeekPreviewAnswer.repeated": Note("Of these, done, dead or leased: delivered again.", 60),
    "skipped": Note("Messages before it that would not be delivered any more.", 0),
    "StorageReportAnswer.segments": Note("The newest segments of both logs.", None),
    "total_segments": Note("How many segments there are.", 2),
    "live_ratio": Note("Which part of the messages on disk some group needs.", 0.8),
    "StorageReportAnswer.snapshots": Note("How many snapshots there are.", 2),
    "damage": Note("What differs from what was written, since the queue was opened.", None),
    "quarantine": Note("Copies of damaged bytes.", None),
    "refusal": Note("Why the queue takes no writes; empty: it does.", ""),
    "log": Note("messages or events.", "messages"),
    "live": Note("How many of its messages some group needs, at most.", 80),
    "SegmentState.entries": Note("How many seqs it stands for.", 100),
    "SegmentState.size_bytes": Note("Its size.", 65_536),
    "is_sealed": Note("False: it is being written.", False),
    "file": Note("The file, in the directory of the queue.", "messages/0000000000000001.log"),
    "offset": Note("Where the damage begins.", 4096),
    "length": Note("How many bytes are damaged.", 12),
    "lost": Note("How many seqs are missing because of it.", 0),
    "DamageReport.reason": Note("What is wrong.", "the checksum does not match"),
    "is_torn": Note("An unfinished write, as a crash leaves it.", False),
    "QuarantineFile.name": Note("The file.", "messages-0000000000000001.log-4096.bin"),
    "QuarantineFile.size_bytes": Note("Its size.", 12),
    "limits": Note("The limits that are set.", None),
    "Limit.name": Note("The setting.", "max_messages"),
    "used": Note("How much of it is used.", 600),
    "most": Note("The limit.", 1000),
    "effect": Note("What happens beyond it.", "publishing is refused"),
    # keys
    "keys": Note("The keys.", None),
    "KeyAnswer.id": Note("The id of the key, to revoke it.", "0f3a51c2b7d4"),
    "label": Note("What the key is for.", "web"),
    "verbs": Note("What the key allows: publish, consume, manage, read.", ["publish", "read"]),
    "KeyAnswer.namespaces": Note("The namespaces it is for; left out: all.", ["shop"]),
    "KeyBody.namespaces": Note("The namespaces it is for; left out: all.", ["shop"]),
    "revoked_at": Note("When it was revoked.", _AT),
    "KeyAnswer.sqs": Note("Whether SQS clients may sign with it.", True),
    "KeyBody.sqs": Note("Let SQS clients use it as their secret access key.", True),
    "token": Note("The key itself; shown only when it is made.", "psk_0f3a51c2b7d4_…"),
    # history and why
    "events": Note("What happened, oldest first.", None),
    "event": Note("What happened.", "leased"),
    "event_seq": Note("The number of the event.", 42),
    "retry_at": Note("The time of the next try.", _AT),
    "WhyAnswer.code": Note("The reason, for programs.", "ready"),
    "sentence": Note("The reason, for people.", "It is ready, and is delivered next."),
    "details": Note("Values that belong to the reason.", {"position": 1}),
    # dead letters
    "cause": Note("nack, timeout, or what else ended it.", "nack"),
    "first_failure_at": Note("When it failed first.", _AT),
    "last_failure_at": Note("When it failed last.", _AT),
    "next_attempt_at": Note("When it is due again, if it waits for that.", _AT),
    "RedriveBody.ids": Note("These dead letters; all that match if left out.", [_ID]),
    "RedriveBody.reason": Note("Only those with this text in their reason.", "refused"),
    "DiscardBody.ids": Note("These dead letters; all that match if left out.", [_ID]),
    "DiscardBody.reason": Note("Only those with this text in their reason.", "refused"),
    "since": Note("Only those that failed last at or after this time.", _AT),
    "until": Note("Only those that failed last before this time.", _AT),
    "limit": Note("The most that are taken.", 100),
    "dry_run": Note("Only count them.", False),
    "max_rate": Note("How many a second, in the background; left out: all at once.", 10.0),
    "redrives": Note("The redrives, in the order of their ids.", None),
    "RedriveAnswer.id": Note("The redrive, to cancel it.", "8d969eef6ecad3c2"),
    "RedriveAnswer.max_rate": Note("Dead letters a second.", 10.0),
    "RedriveAnswer.state": Note(
        "retrying: after an error that may pass; failed: it is not retried.", "retrying"
    ),
    "RedriveAnswer.reason": Note("The last error; absent while it runs.", "the disk is full"),
    "RedriveCancelled.cancelled": Note("Always true.", True),
    "Redriven.redriven": Note("How many.", 3),
    "DiscardAnswer.discarded": Note("How many.", 3),
    # webhooks
    "webhooks": Note("The subscriptions.", None),
    "WebhookAnswer.id": Note("The id of the subscription.", _WEBHOOK_ID),
    "queue": Note("The queue.", "orders"),
    "url": Note("The address that is called.", "https://example.com/hooks/orders"),
    "style": Note("How a delivery looks and is signed.", "standard"),
    "retry_s": Note("Seconds between tries.", [5, 300, 1800]),
    "enabled": Note("Whether it is pushed.", True),
    "circuit": Note("closed (pushing), open (resting) or half_open (trying again).", "closed"),
    "disabled_because": Note("Why it was switched off.", ""),
    "secret": Note(
        "Signs deliveries; shown only when it is made.", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZI"
    ),
    "rotate_secret": Note("Make another secret; the old one signs for a day.", True),
    "damaged_log": Note(
        "The document of the earlier log, if that could not be read.",
        "webhook-log-5d41402abc4b2a76b9719d91.json.damaged-1",
    ),
    "deliveries": Note("The deliveries, latest first.", None),
    "message_id": Note("The id of the message.", _ID),
    "took_s": Note("Seconds until the answer.", 0.12),
    "outcome": Note("What became of the delivery.", "delivered"),
    "DeliveryAnswer.status": Note("The HTTP status of the answer; 0: there was none.", 200),
    "DeliveryAnswer.reason": Note("Why it failed.", ""),
    "number": Note("The number of the delivery, to send it once more.", 7),
    "answer": Note("The beginning of what the endpoint answered.", "ok"),
    "is_resent": Note("It was sent by hand; the message was not affected.", False),
    "failures": Note("Deliveries that failed in a row.", 0),
    "open_for_s": Note("Seconds until one delivery is tried, while the circuit is open.", 0),
    "WebhookAnswer.deliveries": Note("How its deliveries went; only when one is shown.", None),
    "DeliveryStats.delivered": Note("Deliveries that succeeded since it was made.", 120),
    "DeliveryStats.failed": Note("Deliveries that failed since it was made.", 3),
    "recent": Note("Deliveries in the log.", 100),
    "success_rate": Note("Which part of these succeeded.", 0.97),
    "last_delivered_at": Note("The last that succeeded, in the log.", _AT),
    "last_failed_at": Note("The last that failed, in the log.", _AT),
    "p50_s": Note("Seconds in which half of them were answered.", 0.08),
    "p95_s": Note("Seconds in which 95 % of them were answered.", 0.4),
    "retry_in_s": Note("Seconds until the next try.", 0),
    # files
    "identity": Note("The 32 bits that ids and receipts of the queue carry.", 3735928559),
    "created_at_ns": Note("When it was made, nanoseconds since 1970.", 1896080400000000000),
    "SegmentList.messages": Note("The message log.", None),
    "SegmentList.events": Note("The event log.", None),
    "snapshots": Note("The snapshots.", None),
    "low": Note("Entries below this number were removed.", 1),
    "segments": Note("The segments, oldest first.", None),
    "archive": Note("Where the queue's archive is; without it, what is recorded.", "s3://archive"),
    "archived_as": Note("The name of the queue in that archive.", "shop/orders"),
    "archive_damage": Note("Why the record of the archive cannot be read; absent if it can.", ""),
    "archived_upto": Note("All messages below this seq are in that archive.", 4712),
    # readers
    "readers": Note("Readers that lease nothing, those with most lag first.", None),
    "ReaderAnswer.name": Note("The name of the reader.", "orders-to-parquet"),
    "ReaderAnswer.position": Note("The next seq that it reads.", 4711),
    "ReaderBody.position": Note("The next seq that it reads.", 4711),
    "lag": Note("Messages from there to the end of the queue, now.", 42),
    "rows_per_s": Note("Messages a second that it processed last.", 1250.0),
    "reported_at": Note("When it reported last.", _AT),
    "ReaderAnswer.expires_at": Note("When it is not listed any more.", _AT),
    "expires_s": Note("Seconds for which the report is listed.", 3600),
    "seq_at_time": Note("The first entry at or after the time that was asked for.", 1),
    "base_seq": Note("The number of its first entry.", 1),
    "end_seq": Note("The number after its last entry.", 12),
    "size_bytes": Note("How many of its bytes are durable.", 4096),
    "header_b64": Note("Its header as base64.", "UFNUSw=="),
    "upto": Note("All messages below this number are archived.", 4711),
    "applications": Note("Names of the jobs whose versions it remembers.", ["nightly-import"]),
    "staged": Note("The staged segments, in order.", None),
    "app": Note("The name of the job; with it, a version is taken in once.", "nightly-import"),
    "version": Note("The version of the job's output.", 1),
    "folder": Note("The folder of the staging area.", "1896080400000000000-00112233445566ff"),
    "StagedItem.name": Note("The file in the folder.", "0.log"),
    "entries": Note("How many messages.", 1000),
    "first_seq": Note("The number of the first of them.", 12),
    "repeated": Note("They were there before; nothing was done.", False),
    # probes and problems
    "status": Note("How it is.", "live"),
    "recovered": Note("How many of them are recovered.", 12),
    "Ready.status": Note("ready, starting, stopping or trouble.", "ready"),
    "Ready.warning": Note("Calls are accepted, but something needs an operator.", None),
    "Ready.database": Note("The database behind the store; left out if there is none.", None),
    "Database.name": Note("Its addresses and its name.", "db1:5432,db2:5432/shop"),
    "Database.primary": Note("Whether it takes writes.", True),
    "Database.needs_standby": Note("Whether a commit waits for a synchronous standby.", True),
    "Database.standbys": Note("The standbys that are connected.", None),
    "Database.commits_waiting": Note("Commits that wait for a standby now.", 0),
    "Database.outbox_waiting": Note("Rows of the outbox that are not published yet.", 0),
    "Database.outbox_refused": Note("Rows of the outbox that their queue refused.", 0),
    "Database.oldest_snapshot_s": Note("Age of the oldest transaction with a snapshot.", 0.4),
    "Standby.name": Note("Its application_name, or its address.", "db2"),
    "Standby.state": Note("streaming, catchup, startup or backup.", "streaming"),
    "Standby.sync_state": Note("sync, quorum, potential or async.", "quorum"),
    "Standby.lag_s": Note("How far it is behind with applying, in seconds.", 0.002),
    "Standby.lag_bytes": Note("How far it is behind with applying, in bytes.", 512),
    "Ready.reason": Note("Why it is not ready.", ""),
    "ProblemBody.type": Note("Always about:blank; `code` says more.", "about:blank"),
    "title": Note("The name of the HTTP status.", "Not Found"),
    "ProblemBody.status": Note("The HTTP status.", 404),
    "code": Note("The problem, for programs; it is stable.", "no_such_queue"),
    "ProblemBody.detail": Note("The problem, for people.", "there is no queue default/orders"),
    "request_id": Note("The request, as the server's log names it.", "6c3c9909-16e"),
    "retry_after_s": Note("Seconds after which the call may succeed.", 1.0),
    "ProblemBody.results": Note("Of a settle: the outcome of each receipt.", []),
}

# The bodies that /docs begins with.
REQUESTS: dict[str, Any] = {
    "create_namespace": {"name": "shop", "max_queues": 100},
    "change_namespace": {"defaults": {"lease_s": 60}},
    "put_queue": {"lease_s": 60, "max_attempts": 10},
    "change_queue": {"lease_s": 60},
    "put_rate_limit": {"refill_per_s": 50, "capacity": 100},
    "publish_messages": {"payload": {"order": 17}, "priority": 7},
    "publish_batch": [{"payload": {"order": 17}}, {"payload": {"order": 18}, "priority": 7}],
    "lease_messages": {"max": 10, "wait_s": 5},
    "settle_messages": {
        "ack": [_RECEIPT],
        "nack": [{"receipt": _RECEIPT, "reason": "printer on fire", "delay_s": 60}],
    },
    "put_group": {"at": "beginning"},
    "seek": {"to": {"time": _AT}},
    "redrive": {"reason": "refused", "limit": 100},
    "put_schedule": {
        "cron": "30 2 * * *",
        "time_zone": "Europe/Berlin",
        "message": {"payload": {"report": "daily"}},
    },
    "discard": {"ids": [_ID]},
    "get_endings": {"ids": [_ID]},
    "resolve": {"earlier": _ID, "outcome": 3, "how": "cancelled"},
    "purge": {"group": "main"},
    "note_archived": {"upto": 4711},
    "report_reader": {"position": 4711, "rows_per_s": 1250},
    "adopt_staged": {
        "staged": [
            {"folder": "1896080400000000000-00112233445566ff", "name": "0.log", "entries": 1000}
        ]
    },
    "create_webhook": {"url": "https://example.com/hooks/orders"},
    "change_webhook": {"rotate_secret": True},
    "preview_seek": {"to": {"time": _AT}},
    "create_api_key": {"label": "web", "verbs": ["publish"], "namespaces": ["shop"]},
}


def note_of(struct: str, field: str) -> Note | None:
    """Return the note of a field of a struct, by their names; None if there is none."""
    return NOTES.get(f"{struct}.{field}") or NOTES.get(field)


def explain(components: dict[str, Any]) -> None:
    """Put the notes into the schemas of structs, where a field has no description of its own."""
    for struct, schema in components.items():
        if struct in SETTINGS:
            continue
        for field, inner in schema.get("properties", {}).items():
            note = note_of(struct, field)
            if note is not None and "description" not in inner:
                inner["description"] = note.description


def example_of(schema: Any, components: dict[str, Any]) -> Any:
    """Return a value that the schema of an answer allows, made of the examples of its fields."""
    if "$ref" in schema:
        struct = schema["$ref"].rpartition("/")[2]
        return _example_of_struct(struct, components)
    if schema.get("type") == "array":
        return [example_of(schema["items"], components)]
    if "anyOf" in schema:
        return example_of(schema["anyOf"][0], components)
    return {}


def _example_of_struct(struct: str, components: dict[str, Any]) -> dict[str, Any]:
    schema = components[struct]
    made = {}
    for field, inner in schema["properties"].items():
        note = note_of(struct, field)
        if field not in schema.get("required", ()) and field != "payload":
            continue  # what may be left out is in the table of fields
        if note is not None and note.example is not None:
            made[field] = note.example
        else:
            made[field] = example_of(inner, components)
    return made
