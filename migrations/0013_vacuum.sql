-- Steps change four times each and then rest: with the default, a fifth of the table would have to be dead before it is
-- vacuumed, which at a million operations is hours of work at once and an index that grows meanwhile.

ALTER TABLE steps SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE operations SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
