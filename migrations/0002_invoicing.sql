-- What the two operation types leave behind: invoices, the documents made from them, and the e-mails sent.
-- operation_id has no foreign key anywhere here: accounts are kept for years, operation records for weeks, and a
-- pruned operation must not take its invoice along or be held back by it.

CREATE TABLE invoice_counters (
    tenant text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('invoice', 'credit_note')),
    last_number bigint NOT NULL CHECK (last_number >= 1),
    PRIMARY KEY (tenant, kind)
) WITH (fillfactor = 50);
COMMENT ON TABLE invoice_counters IS 'The last number given out in each series. A row, not a sequence: a rollback gives the number back, so no gap is left.';
COMMENT ON COLUMN invoice_counters.tenant IS 'The tenant that owns the series.';
COMMENT ON COLUMN invoice_counters.kind IS 'invoice or credit_note: each is a number series of its own.';
COMMENT ON COLUMN invoice_counters.last_number IS 'The highest number that is taken; the next document gets the one after it.';

CREATE TABLE invoices (
    invoice_id uuid PRIMARY KEY DEFAULT uuidv7(),
    operation_id uuid NOT NULL,
    tenant text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('invoice', 'credit_note')),
    number bigint NOT NULL CHECK (number >= 1),
    order_reference text NOT NULL CHECK (length(order_reference) BETWEEN 1 AND 64),
    customer_id text NOT NULL CHECK (length(customer_id) BETWEEN 1 AND 64),
    customer_name text NOT NULL CHECK (length(customer_name) BETWEEN 1 AND 200),
    customer_email text NOT NULL CHECK (length(customer_email) BETWEEN 3 AND 254),
    country text NOT NULL CHECK (length(country) BETWEEN 1 AND 64),
    ordered_at timestamptz NOT NULL,
    ordered_on date NOT NULL,
    currency text NOT NULL CHECK (currency = 'GBP'),
    line_count integer NOT NULL CHECK (line_count >= 1),
    total_pence bigint NOT NULL CHECK (total_pence >= 1),
    accepted_at timestamptz NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT invoices_once_per_operation UNIQUE (operation_id),
    CONSTRAINT invoices_number_in_series UNIQUE (tenant, kind, number),
    CONSTRAINT invoices_once_per_order UNIQUE (tenant, kind, order_reference)
);
COMMENT ON TABLE invoices IS 'Invoices and credit notes as issued; rows are added, never changed.';
COMMENT ON COLUMN invoices.invoice_id IS 'UUIDv7 of the document.';
COMMENT ON COLUMN invoices.operation_id IS 'The operation that issued it; no foreign key, see the head of the migration.';
COMMENT ON COLUMN invoices.tenant IS 'The tenant that issued it.';
COMMENT ON COLUMN invoices.kind IS 'invoice or credit_note; amounts of both are positive, the kind gives the direction.';
COMMENT ON COLUMN invoices.number IS 'Place in the gapless series of tenant and kind; printed as INV-000123 or CRN-000123.';
COMMENT ON COLUMN invoices.order_reference IS 'The shop''s order number; an order is invoiced once and a return credited once.';
COMMENT ON COLUMN invoices.customer_id IS 'The shop''s customer number; the account that a report is about.';
COMMENT ON COLUMN invoices.customer_name IS 'Name on the document, as of the order.';
COMMENT ON COLUMN invoices.customer_email IS 'Where the document is sent, as of the order.';
COMMENT ON COLUMN invoices.country IS 'Country of the customer, in the shop''s words.';
COMMENT ON COLUMN invoices.ordered_at IS 'When the order was placed.';
COMMENT ON COLUMN invoices.ordered_on IS 'Date of the order in the shop''s own time zone; reports select by it.';
COMMENT ON COLUMN invoices.currency IS 'ISO 4217 code; amounts are in its hundredths.';
COMMENT ON COLUMN invoices.line_count IS 'How many lines the document has.';
COMMENT ON COLUMN invoices.total_pence IS 'Sum of the lines in pence, without tax.';
COMMENT ON COLUMN invoices.accepted_at IS 'When the operation was accepted; the date of issue on the document.';
COMMENT ON COLUMN invoices.recorded_at IS 'When the row was written.';
CREATE INDEX invoices_by_account ON invoices (tenant, customer_id, ordered_on);

CREATE TABLE invoice_lines (
    invoice_id uuid NOT NULL REFERENCES invoices,
    position integer NOT NULL CHECK (position >= 1),
    sku text NOT NULL CHECK (length(sku) BETWEEN 1 AND 64),
    description text NOT NULL CHECK (length(description) <= 500),
    quantity integer NOT NULL CHECK (quantity >= 1),
    unit_pence bigint NOT NULL CHECK (unit_pence >= 0),
    total_pence bigint NOT NULL,
    PRIMARY KEY (invoice_id, position),
    CONSTRAINT invoice_lines_total CHECK (total_pence = quantity * unit_pence)
);
COMMENT ON TABLE invoice_lines IS 'The lines of an invoice or credit note, in the order of the input.';
COMMENT ON COLUMN invoice_lines.invoice_id IS 'The document.';
COMMENT ON COLUMN invoice_lines.position IS 'Place on the document, from 1.';
COMMENT ON COLUMN invoice_lines.sku IS 'The shop''s stock code.';
COMMENT ON COLUMN invoice_lines.description IS 'What it is; may be empty.';
COMMENT ON COLUMN invoice_lines.quantity IS 'How many; positive on credit notes too.';
COMMENT ON COLUMN invoice_lines.unit_pence IS 'Price of one in pence; zero for a gift.';
COMMENT ON COLUMN invoice_lines.total_pence IS 'quantity times unit_pence.';

CREATE TABLE artifacts (
    operation_id uuid NOT NULL,
    name text NOT NULL CHECK (name IN ('invoice.pdf', 'report.csv', 'report.pdf')),
    tenant text NOT NULL,
    object text NOT NULL UNIQUE CHECK (length(object) BETWEEN 1 AND 1024),
    sha256 text NOT NULL CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    size_bytes bigint NOT NULL CHECK (size_bytes >= 1),
    pages integer CHECK (pages >= 1),
    documents integer NOT NULL CHECK (documents >= 0),
    stored_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (operation_id, name),
    CHECK ((pages IS NULL) = (name = 'report.csv'))
);
COMMENT ON TABLE artifacts IS 'Completion record of each document in Cloud Storage, committed with its step; a later run returns it instead of making another.';
COMMENT ON COLUMN artifacts.operation_id IS 'The operation that made it; no foreign key, see the head of the migration.';
COMMENT ON COLUMN artifacts.name IS 'Which of the operation''s documents it is.';
COMMENT ON COLUMN artifacts.tenant IS 'The tenant that owns it.';
COMMENT ON COLUMN artifacts.object IS 'Name of the object in the bucket.';
COMMENT ON COLUMN artifacts.sha256 IS 'SHA-256 of the content, in hexadecimal.';
COMMENT ON COLUMN artifacts.size_bytes IS 'Length of the content.';
COMMENT ON COLUMN artifacts.pages IS 'Pages of a PDF; null for other formats.';
COMMENT ON COLUMN artifacts.documents IS 'How many invoices and credit notes it covers.';
COMMENT ON COLUMN artifacts.stored_at IS 'When the record was written, after the object.';

CREATE TABLE notifications (
    operation_id uuid NOT NULL,
    step text NOT NULL,
    effect text NOT NULL,
    tenant text NOT NULL,
    message_id text NOT NULL UNIQUE,
    sent_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (operation_id, step, effect)
);
COMMENT ON TABLE notifications IS 'Completion record of each e-mail, committed with its step; a later run returns it and sends nothing. Holds no address.';
COMMENT ON COLUMN notifications.operation_id IS 'The operation that sent it; no foreign key, see the head of the migration.';
COMMENT ON COLUMN notifications.step IS 'The step that sent it.';
COMMENT ON COLUMN notifications.effect IS 'Which of the step''s messages it is.';
COMMENT ON COLUMN notifications.tenant IS 'The tenant that it was sent for.';
COMMENT ON COLUMN notifications.message_id IS 'Its Message-ID, without angle brackets: the same for every attempt.';
COMMENT ON COLUMN notifications.sent_at IS 'When the record was written, after the mail server accepted the message.';
