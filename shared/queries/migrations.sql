-- The migration runner's own bookkeeping.

-- name: applied_migrations
-- Every migration that was applied, with the checksum of the file as it was then.
SELECT number, name, checksum FROM schema_migrations ORDER BY number;

-- name: record_migration
-- Records an applied migration in the transaction that applied it.
INSERT INTO schema_migrations (number, name, checksum) VALUES (:number, :name, :checksum);
