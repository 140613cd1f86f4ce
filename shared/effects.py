"""The effect ledger: an outside effect is intended, permitted, sent and accounted for, in that order.

What is known is written before anything else happens, so that whoever comes after a crash knows what may have been
done: the same bytes are sent again under the same key where the provider is idempotent, or the effect is looked up.
Nothing is ever sent blindly a second time. docs/effects.md has the contract; the rules were checked in a model.
"""

from __future__ import annotations

import hashlib
import json
import logging
from datetime import timedelta
from functools import partial
from typing import Any

from shared import circuits, ijson, retry
from shared.database import Database, Row
from shared.errors import EchoproofError, LeaseLostError, PermanentError, RetryLater, Unresolved, sanitise
from shared.providers import Absent, Ambiguous, Confirmed, Found, NotKnown, NotSent, Outcome, Provider, Rejected
from shared.steps import Claim

MARGIN = timedelta(seconds=5)  # from the end of a call to the end of the lease: enough to write the outcome down
SOON = timedelta(seconds=1)  # the shortest wait for a lookup that would be proof

# Repeated when the connection was lost, because a second run finds what the first has written. The others are not:
# permit_send would count a send that nobody makes, account_for_send would account for another send, and the second run
# of fill_approved_effect or prove_absent finds nothing and looks like a lost lease. After a lost answer of these the
# handler runs again in the same attempt and goes on from what the ledger says.
REPEATABLE = frozenset({"intend_effect", "withdraw_effect", "mark_unknown", "begin_lookup", "confirm_effect"})

log = logging.getLogger(__name__)


class EffectRejectedError(PermanentError):
    """The provider refused the effect."""


class EffectUnknownError(EchoproofError):
    """The effect's outcome is not known yet; the next attempt finds out before it sends anything."""


class ChangedRequestError(Unresolved):
    """The handler now asks for another effect under the same name; a person decides which one was meant."""


def provider_key(tenant: str, operation_type: str, key: str, step: str, name: str, generation: int) -> str:
    """Return the key sent to the provider: of the identity, not of the random id.

    After a restore of the database a resubmitted operation gets another id, and meets its own effects.
    """
    identity = json.dumps([tenant, operation_type, key, step, name, generation], ensure_ascii=False)
    return hashlib.sha256(identity.encode()).hexdigest()


class Effect:
    """One named effect of one attempt, from its intention to its outcome."""

    def __init__(self, database: Database, claim: Claim, name: str, provider: Provider) -> None:
        self._database = database
        self._claim = claim
        self._name = name
        self._provider = provider
        self._row: Row = None

    def happen(self, request: Any) -> dict[str, Any]:
        """Make the effect happen once and return the provider's answer, saved or new.

        Raises EffectRejectedError for a definite no, Unresolved when only a lookup or a person can tell, RetryLater
        when the provider asked for a wait, EffectUnknownError when the next attempt must find out, LeaseLostError.
        """
        self._intend(request)
        if self._row.state == "confirmed":
            return self._saved()
        if self._row.state == "rejected":
            raise EffectRejectedError(self._row.reason or "")
        no_more_sends = self._claim.ending or self._row.key_spent or not self._provider.idempotent
        if self._row.unaccounted > 0 and no_more_sends:
            return self._look_up_first()
        return self._send()

    def _intend(self, request: Any) -> None:
        encoded = self._provider.encode(request)
        wanted = {"request": encoded, "essence": hashlib.sha256(self._provider.essence(encoded)).digest()}
        key = self._key(generation=1)
        held = self._run("intend_effect", provider=self._provider.name, provider_key=key, **wanted)
        if not held:
            raise LeaseLostError
        self._read()
        if self._row.state == "approved":
            self._fill_approved(wanted)
        if self._row.provider != self._provider.name or bytes(self._row.essence) != wanted["essence"]:
            raise ChangedRequestError

    def _fill_approved(self, wanted: dict[str, bytes]) -> None:
        if not self._write("fill_approved_effect", provider=self._provider.name, **wanted):
            raise LeaseLostError
        self._read()

    def _send(self) -> dict[str, Any]:
        if self._row.key_spent:
            raise Unresolved(f"{self._provider.name} did not do it and refuses the key: approve a new generation")
        if self._claim.ending:
            self._run("withdraw_effect", after=self._row.generation - 1, reason="cancelled or past the deadline")
            raise RetryLater(timedelta(0), "nothing is sent after a cancel or the deadline")
        permits = self._write(
            "permit_send",
            timeout=self._provider.timeout.total_seconds(),
            margin=MARGIN.total_seconds(),
            horizon=self._provider.horizon.total_seconds(),
            idempotent=self._provider.idempotent,
        )
        if not permits:
            raise LeaseLostError
        if permits[0].permits is None:
            return self._not_permitted()
        return self._account(self._provider.send(self._row.provider_key, bytes(self._row.request)))

    def _not_permitted(self) -> dict[str, Any]:
        """Do what is left without a send: somebody's answer arrived meanwhile, or the key has expired."""
        self._read()
        if self._row.state == "confirmed":
            return self._saved()
        if self._row.state == "rejected":
            raise EffectRejectedError(self._row.reason or "")
        return self._look_up_first()

    def _account(self, outcome: Outcome) -> dict[str, Any]:
        """Write down what a send came to, and say it."""
        if isinstance(outcome, Confirmed):
            return self._confirm(outcome.response, outcome.reference, "answer")
        self._count(outcome)
        reason = sanitise(outcome.reason, 200)
        if isinstance(outcome, Ambiguous):
            return self._ambiguous(outcome, reason)
        kind = "rejected" if isinstance(outcome, Rejected) else "not_sent"
        rows = self._write("account_for_send", outcome=kind, reason=reason)
        if not rows:
            return self._overtaken()
        if rows[0].state == "rejected":
            raise EffectRejectedError(reason)
        if isinstance(outcome, Rejected):
            # An earlier send is unaccounted for: this no may well mean "I have already done it".
            return self._look_up_first()
        raise RetryLater(outcome.after, reason)

    def _count(self, outcome: NotSent | Rejected | Ambiguous | Absent | NotKnown) -> None:
        """Tell the provider's circuit whether it answered; a busy one, or one that asks for a wait, does neither."""
        match outcome:
            case Rejected() | Absent():
                circuits.answered(self._database, self._provider.name)
            case NotKnown() | NotSent(after=None) | Ambiguous(after=None, final=False):
                circuits.failed(self._database, self._provider.name)

    def _ambiguous(self, outcome: Ambiguous, reason: str) -> dict[str, Any]:
        if not self._write("mark_unknown", reason=reason, final=outcome.final):
            return self._overtaken()
        if outcome.final:
            self._read()
            return self._look_up_first()
        if outcome.after is not None:
            raise RetryLater(outcome.after, reason)
        raise EffectUnknownError(reason)

    def _look_up_first(self) -> dict[str, Any]:
        """Look the effect up, and send only on proof that no earlier send had an effect."""
        visibility = self._provider.visibility
        seconds = None if visibility is None else visibility.total_seconds()
        begun = self._write("begin_lookup", visibility=seconds)
        if not begun:
            return self._overtaken()
        found = self._provider.lookup(self._row.provider_key, bytes(self._row.request))
        if isinstance(found, Found):
            return self._confirm(found.response, found.reference, "lookup")
        self._count(found)
        if not isinstance(found, Absent):
            raise Unresolved(f"{self._provider.name} could not say: {sanitise(found.reason, 200)}")
        self._check_proof(begun[0].too_early)
        if not self._write("prove_absent", permits=begun[0].permits):
            return self._overtaken()
        return self._send()

    def _check_proof(self, too_early: float | None) -> None:
        """Raise unless the lookup began when absence was proof already."""
        if too_early is None:
            raise Unresolved(f"{self._provider.name} does not have it, which is no proof that it will not")
        if too_early > 0:
            raise RetryLater(max(timedelta(seconds=too_early), SOON), "an earlier send may still appear")

    def _overtaken(self) -> dict[str, Any]:
        """Say what there is when a write did not land: somebody's confirmation, or the lease is lost."""
        self._read()
        if self._row.state == "confirmed":
            return self._saved()
        raise LeaseLostError

    def _confirm(self, response: dict[str, Any], reference: str, evidence: str) -> dict[str, Any]:
        """Record the confirmation, which is welcome even when this attempt has lost its lease.

        Repeated for a lease's length while the database is away: what is not recorded must be asked for again.
        """
        confirm = partial(
            self._write,
            "confirm_effect",
            provider=self._provider.name,
            response=ijson.canonical(response).decode(),
            reference=sanitise(reference, 500),
            evidence=evidence,
        )
        retry.patiently(confirm, self._claim.policy.lease.total_seconds())
        log.info("effect confirmed", extra={"effect": self._name, "evidence": evidence})
        self._read()
        return self._saved()

    def _saved(self) -> dict[str, Any]:
        if self._row.newest > self._row.generation:
            self._run("withdraw_effect", after=self._row.generation, reason="an earlier generation happened")
        saved: dict[str, Any] = json.loads(self._row.response)
        return saved

    def _write(self, query: str, **parameters: Any) -> list[Row]:
        """Run a fenced write of the current generation; no row when it did not land."""
        return self._run(query, generation=self._row.generation, **parameters)

    def _read(self) -> None:
        claim = self._claim
        rows = self._database.run(
            "read_effect",
            repeat_if_lost=True,
            operation_id=claim.operation_id,
            step=claim.policy.name,
            name=self._name,
        )
        self._row = rows[0]

    def _run(self, query: str, **parameters: Any) -> list[Row]:
        guard = self._claim.guard
        if query == "confirm_effect":
            guard.pop("fence")
        return self._database.run(query, repeat_if_lost=query in REPEATABLE, name=self._name, **guard, **parameters)

    def _key(self, generation: int) -> str:
        claim = self._claim
        return provider_key(claim.tenant, claim.policy.type, claim.key, claim.policy.name, self._name, generation)
