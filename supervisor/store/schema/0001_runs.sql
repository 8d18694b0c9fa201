-- Runs, what is known of them, and who supervises them. Instants are RFC 3339 UTC text; durations
-- come from the boot clock and are only meaningful beside the boot id of the same row.

CREATE TABLE tickets (
    key            TEXT PRIMARY KEY,
    project        TEXT NOT NULL DEFAULT '',
    goal           TEXT NOT NULL DEFAULT '',
    state          TEXT NOT NULL DEFAULT 'open',
    stop_requested BOOLEAN NOT NULL DEFAULT FALSE,
    stop_reason    TEXT,
    attempts       INTEGER NOT NULL DEFAULT 0,
    updated_at     TEXT NOT NULL
);

CREATE TABLE agent_settings (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

CREATE TABLE workers (
    worker_id  TEXT PRIMARY KEY,
    host       TEXT NOT NULL,
    boot_id    TEXT NOT NULL,
    pid        INTEGER NOT NULL,
    kind       TEXT NOT NULL,
    socket     TEXT NOT NULL,
    started_at TEXT NOT NULL
);

CREATE TABLE runs (
    run_id         TEXT PRIMARY KEY,
    ticket         TEXT NOT NULL,
    project        TEXT NOT NULL DEFAULT '',
    profile        TEXT NOT NULL,
    profile_digest TEXT NOT NULL,
    command        TEXT NOT NULL,
    worktree       TEXT NOT NULL,
    overlay        TEXT NOT NULL DEFAULT '',
    host           TEXT NOT NULL,
    boot_id        TEXT NOT NULL,
    worker_id      TEXT NOT NULL,
    state          TEXT NOT NULL,
    reason         TEXT,
    reason_by      TEXT NOT NULL DEFAULT '',
    reason_who     TEXT NOT NULL DEFAULT '',
    reason_note    TEXT NOT NULL DEFAULT '',
    figures        TEXT NOT NULL DEFAULT '{}',
    stage          TEXT NOT NULL DEFAULT '',
    exit_status    INTEGER,
    created_at     TEXT NOT NULL,
    started_at     TEXT,
    ended_at       TEXT,
    limits         TEXT NOT NULL DEFAULT '{}',
    totals         TEXT NOT NULL DEFAULT '{}',
    kill           TEXT,
    attestation    TEXT,
    cgroups        TEXT NOT NULL DEFAULT '[]',
    applied        TEXT NOT NULL DEFAULT ''
);

CREATE INDEX runs_by_ticket ON runs (ticket, run_id);
CREATE INDEX runs_by_end ON runs (ended_at);
CREATE UNIQUE INDEX one_live_run_per_ticket ON runs (ticket) WHERE state <> 'ended';

CREATE TABLE events (
    event_id INTEGER PRIMARY KEY,
    run_id   TEXT NOT NULL REFERENCES runs (run_id),
    ticket   TEXT NOT NULL,
    at       TEXT NOT NULL,
    kind     TEXT NOT NULL,
    detail   TEXT NOT NULL
);

CREATE INDEX events_by_run ON events (run_id, event_id);
