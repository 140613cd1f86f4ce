"""Review: what needs a person, what a decision about it would do, and the decisions themselves.

`reading` shows, `plan` is the dry run, `decide` acts and writes the audit; `rest` has the two moves of a resting step.
"""

from shared.review.rest import NotRenewableError, NotResumableError, renew_effect, resume

__all__ = ["NotRenewableError", "NotResumableError", "renew_effect", "resume"]
