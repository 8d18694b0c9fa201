-- Tickets as a queue: who has one, until when, and the number that fences off whoever had it before.

ALTER TABLE tickets ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tickets ADD COLUMN fence BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tickets ADD COLUMN worker_id TEXT NOT NULL DEFAULT '';
ALTER TABLE tickets ADD COLUMN lease_until TEXT NOT NULL DEFAULT '';
ALTER TABLE tickets ADD COLUMN created_at TEXT NOT NULL DEFAULT '';

-- A worker of another host is known by its lease, one of this host by the lock that the kernel holds.
ALTER TABLE workers ADD COLUMN lock_path TEXT NOT NULL DEFAULT '';
ALTER TABLE workers ADD COLUMN lease_until TEXT NOT NULL DEFAULT '';

ALTER TABLE runs ADD COLUMN fence BIGINT NOT NULL DEFAULT 0;

CREATE INDEX tickets_open ON tickets (priority DESC, created_at, key) WHERE state = 'open';
CREATE INDEX tickets_leased ON tickets (lease_until) WHERE state IN ('claimed', 'running');
