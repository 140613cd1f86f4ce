-- An attempt can end because its instance was shut down: its step is queued again at once and nothing is charged.

ALTER TABLE attempts DROP CONSTRAINT attempts_outcome_check;
ALTER TABLE attempts ADD CONSTRAINT attempts_outcome_check CHECK (outcome IN ('succeeded', 'retry', 'wait', 'failed',
    'unresolved', 'exhausted', 'abandoned', 'handed_back'));
COMMENT ON COLUMN attempts.outcome IS 'How it ended; abandoned: its lease ran out and reconcile moved the step on; handed_back: its instance was shut down.';
