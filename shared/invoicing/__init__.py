"""The business side of the two operation types: orders in, invoices, documents and e-mails out.

orders (a shop's order file) → operations → record → render → notify; generate → notify for reports.
Nothing here knows how steps are claimed, retried or settled: a handler takes a `StepContext` and returns its
result.
"""
