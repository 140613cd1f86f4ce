-- Queries of the two operation types (shared/invoicing). Times are the database's.

-- name: record_invoice
-- Writes an invoice with its lines under the next number of its series; if its operation or its order has one, returns that one.
WITH item AS MATERIALIZED (
    SELECT item.*, item.quantity * item.unit_pence AS total_pence
    FROM unnest(CAST(:skus AS text[]), CAST(:descriptions AS text[]), CAST(:quantities AS integer[]),
        CAST(:units_pence AS bigint[])) WITH ORDINALITY AS item (sku, description, quantity, unit_pence, position)
), existing AS MATERIALIZED (
    SELECT i.operation_id, i.invoice_id, i.number, i.total_pence, i.line_count
    FROM invoices AS i
    WHERE i.operation_id = CAST(:operation_id AS uuid)
        OR (i.tenant = :tenant AND i.kind = :kind AND i.order_reference = :order_reference)
), counter AS (
    INSERT INTO invoice_counters AS c (tenant, kind, last_number)
    SELECT :tenant, :kind, 1 WHERE NOT EXISTS (SELECT 1 FROM existing)
    ON CONFLICT (tenant, kind) DO UPDATE SET last_number = c.last_number + 1
    RETURNING last_number
), issued AS (
    INSERT INTO invoices (operation_id, tenant, kind, number, order_reference, customer_id, customer_name,
        customer_email, country, ordered_at, ordered_on, currency, line_count, total_pence, accepted_at)
    SELECT CAST(:operation_id AS uuid), :tenant, :kind, counter.last_number, :order_reference, :customer_id,
        :customer_name, :customer_email, :country, CAST(:ordered_at AS timestamptz), CAST(:ordered_on AS date),
        :currency, totals.line_count, totals.total_pence, CAST(:accepted_at AS timestamptz)
    FROM counter
    CROSS JOIN (SELECT count(*) AS line_count, sum(item.total_pence) AS total_pence FROM item) AS totals
    RETURNING operation_id, invoice_id, number, total_pence, line_count
), line AS (
    INSERT INTO invoice_lines (invoice_id, position, sku, description, quantity, unit_pence, total_pence)
    SELECT issued.invoice_id, item.position, item.sku, item.description, item.quantity, item.unit_pence,
        item.total_pence
    FROM issued CROSS JOIN item
)
SELECT operation_id, invoice_id, number, total_pence, line_count FROM issued
UNION ALL
SELECT operation_id, invoice_id, number, total_pence, line_count FROM existing;

-- name: invoice_of_operation
-- The invoice or credit note that an operation issued.
SELECT invoice_id, tenant, kind, number, order_reference, customer_id, customer_name, customer_email, country,
    ordered_on, currency, line_count, total_pence, accepted_at
FROM invoices
WHERE operation_id = CAST(:operation_id AS uuid) AND tenant = :tenant;

-- name: lines_of_invoice
-- The lines of an invoice in the order of the document.
SELECT position, sku, description, quantity, unit_pence, total_pence
FROM invoice_lines
WHERE invoice_id = CAST(:invoice_id AS uuid)
ORDER BY position;

-- name: invoices_of_account
-- What was invoiced and credited to an account for orders of a period, both days included, oldest first; as recorded
-- when the report was asked for, so that each attempt reads the same.
SELECT kind, number, order_reference, country, ordered_on, currency, line_count, total_pence
FROM invoices
WHERE tenant = :tenant AND customer_id = :account
    AND ordered_on BETWEEN CAST(:first_day AS date) AND CAST(:last_day AS date)
    AND recorded_at <= CAST(:asked_at AS timestamptz)
ORDER BY ordered_on, kind DESC, number
LIMIT :at_most;

-- name: artifacts_of_operation
-- The documents that an operation has stored.
SELECT name, object, sha256, size_bytes, pages, documents
FROM artifacts
WHERE operation_id = CAST(:operation_id AS uuid) AND tenant = :tenant
ORDER BY name;

-- name: record_artifacts
-- Records stored documents as complete.
INSERT INTO artifacts (operation_id, tenant, name, object, sha256, size_bytes, pages, documents)
SELECT CAST(:operation_id AS uuid), :tenant, item.name, item.object, item.sha256, item.size_bytes, item.pages,
    CAST(:documents AS integer)
FROM unnest(CAST(:names AS text[]), CAST(:objects AS text[]), CAST(:sha256s AS text[]), CAST(:sizes AS bigint[]),
    CAST(:pages AS integer[])) AS item (name, object, sha256, size_bytes, pages)
RETURNING name, object, sha256, size_bytes, pages, documents;

-- name: record_notification
-- Records an e-mail as sent.
INSERT INTO notifications (operation_id, step, effect, tenant, message_id)
VALUES (CAST(:operation_id AS uuid), :step, :effect, :tenant, :message_id)
RETURNING message_id;
