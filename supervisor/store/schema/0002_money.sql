-- What model calls hold and cost. Money is integer nano-dollars; a day is a date in the zone of the
-- configuration. balances are the sums of charges and ceilings, kept in the same transactions.

CREATE TABLE balances (
    scope       TEXT NOT NULL,
    key         TEXT NOT NULL,
    day         TEXT NOT NULL,
    spent_nanos BIGINT NOT NULL DEFAULT 0,
    held_nanos  BIGINT NOT NULL DEFAULT 0,
    tokens      BIGINT NOT NULL DEFAULT 0,
    held_tokens BIGINT NOT NULL DEFAULT 0,
    calls       BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (scope, key, day)
);

CREATE TABLE charges (
    charge_id      TEXT PRIMARY KEY,
    run_id         TEXT NOT NULL,
    ticket         TEXT NOT NULL,
    project        TEXT NOT NULL,
    worker_id      TEXT NOT NULL,
    day            TEXT NOT NULL,
    state          TEXT NOT NULL,
    provider       TEXT NOT NULL,
    model          TEXT NOT NULL,
    output_tokens  BIGINT NOT NULL,
    held_nanos     BIGINT NOT NULL,
    held_tokens    BIGINT NOT NULL,
    ceiling_nanos  BIGINT NOT NULL DEFAULT 0,
    spent_nanos    BIGINT NOT NULL DEFAULT 0,
    tokens         BIGINT NOT NULL DEFAULT 0,
    usage          TEXT NOT NULL DEFAULT '{}',
    usage_source   TEXT,
    outcome        TEXT NOT NULL DEFAULT '',
    reserved_at    TEXT NOT NULL,
    lease_until    TEXT NOT NULL,
    settled_at     TEXT
);

CREATE INDEX charges_by_run ON charges (run_id, charge_id);
CREATE INDEX charges_by_time ON charges (reserved_at);
CREATE INDEX charges_held ON charges (worker_id, lease_until) WHERE state = 'held';

CREATE TABLE ceilings (
    run_id      TEXT PRIMARY KEY,
    ticket      TEXT NOT NULL,
    project     TEXT NOT NULL,
    worker_id   TEXT NOT NULL,
    day         TEXT NOT NULL,
    left_nanos  BIGINT NOT NULL,
    lease_until TEXT NOT NULL
);

CREATE TABLE caps (
    scope     TEXT NOT NULL,
    key       TEXT NOT NULL,
    cap_nanos BIGINT,
    PRIMARY KEY (scope, key)
);
