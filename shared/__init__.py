"""What every function stands on: operations and their steps, the outbox, the effect ledger, review.

The words: an **operation** is what an application asked for; a **step** is a part of it, run by one function; an
**attempt** is one run of a step. A **dispatch** is the number of the message that may start a step; a **lease** says
how long an attempt may hold it; the **fence** is the number that grows at each claim and guards every write; the
**generation** grows at each replay. The **outbox** holds the dispatches that nobody has claimed; the **relay**
publishes them; **reconcile** moves what time has decided. An **effect** is a change in the outside world, kept in the
ledger. A **dead letter** needs **review**. The **idempotency key** is the caller's name for an operation, the
**fingerprint** tells whether a repeated key repeats the same request.
"""
