-- Read by the demonstration and the tests: what the database says happened, operation by operation.

-- name: count_states
-- How many operations of a tenant are in each state.
SELECT type, state, count(*) AS operations FROM operations WHERE tenant = :tenant GROUP BY type, state;

-- name: prove_invoices
-- Each invoice operation with how many invoices it has, and the results of its steps.
SELECT o.id, o.key, o.state,
    (SELECT count(*) FROM invoices AS i WHERE i.operation_id = o.id) AS invoices,
    (SELECT s.result ->> 'object' FROM steps AS s WHERE s.operation_id = o.id AND s.step = 'render') AS object,
    (SELECT s.result ->> 'message_id' FROM steps AS s WHERE s.operation_id = o.id AND s.step = 'notify') AS message_id
FROM operations AS o
WHERE o.tenant = :tenant AND o.type = 'invoice.generate'
ORDER BY o.id;

-- name: prove_reports
-- Each report operation with the results of its steps.
SELECT o.id, o.key, o.state,
    (SELECT s.result FROM steps AS s WHERE s.operation_id = o.id AND s.step = 'generate') AS artifact,
    (SELECT s.result ->> 'message_id' FROM steps AS s WHERE s.operation_id = o.id AND s.step = 'notify') AS message_id
FROM operations AS o
WHERE o.tenant = :tenant AND o.type = 'report.generate'
ORDER BY o.id;

-- name: prove_due
-- Each invoice that asks for money.
SELECT number, total_pence FROM invoices WHERE tenant = :tenant AND kind = 'invoice';

-- name: prove_series
-- Each number series of a tenant: how many numbers it has given out and the highest; equal when there is no gap.
SELECT kind, count(*) AS documents, max(number) AS highest FROM invoices WHERE tenant = :tenant GROUP BY kind;

-- name: prove_attempts
-- How many attempts ended in each way.
SELECT a.outcome, count(*) AS attempts
FROM attempts AS a
INNER JOIN operations AS o ON o.id = a.operation_id
WHERE o.tenant = :tenant
GROUP BY a.outcome;

-- name: prove_rest
-- What is left over: outbox rows, open review rows, operations without their identity or their steps.
SELECT (SELECT count(*) FROM outbox) AS outbox,
    (SELECT count(*) FROM dead_letters WHERE state = 'open') AS dead_letters,
    (SELECT count(*) FROM operations AS o WHERE NOT EXISTS (SELECT FROM identities AS i WHERE i.operation_id = o.id))
        AS without_identity,
    (SELECT count(*) FROM operations AS o WHERE NOT EXISTS (SELECT FROM steps AS s WHERE s.operation_id = o.id))
        AS without_steps;
