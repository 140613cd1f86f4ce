-- Indexes of the console's pages at a hundred thousand operations and five thousand dead letters.

-- When operations ended: a summary of blocks, which a settle does not touch and which is read for the last hour alone.
CREATE INDEX operations_by_end ON operations USING brin (finished_at) WITH (pages_per_range = 16, autosummarize = on);

-- The open letters counted by cause, from the index alone.
CREATE INDEX dead_letters_open_by_cause ON dead_letters (cause, opened_at) WHERE state = 'open';
